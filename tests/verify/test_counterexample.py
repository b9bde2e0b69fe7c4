"""A counterexample can be run again, and points at the first value that explains it."""

import numpy as np
import pytest
from goldens import GOLDENS
from raw_programs import X, exp, graph_of, region_of, sqrt, top, total

from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.field import P
from mirage_onnx.verify.verdict import judge

GOLDEN = {g.name: g for g in GOLDENS}


def refuted(name, old, new):
  golden = GOLDEN[name]
  text = print_ugraph(golden.ugraph)
  assert text.count(old) == 1, f"{old} is not once in\n{text}"
  verdict = judge(golden.region, parse_ugraph(text.replace(old, new)))
  assert not verdict.accepted and verdict.counterexample is not None, verdict
  return verdict.counterexample


@pytest.mark.parametrize(
  ("name", "old", "new", "index", "op"),
  [
    ("norm_linear", "rsqrt %13", "rsqrt %11", 14, "rsqrt"),
    ("norm_linear", "mul %6 %14", "mul %6 %13", 15, "mul"),
    ("norm_linear", "acc_sum %5", "acc_max %5", 6, "acc_max"),
    ("norm_linear", "square %0", "neg %0", 9, "acc_sum"),
    ("norm_linear_cluster", "red_sum %6", "red_max %6", 7, "red_max"),
    ("attention_online", "div %19 %16", "mul %19 %16", 20, "mul"),
    ("attention_online", "exp %13", "neg %13", 16, "acc_scaled"),
  ],
)
def test_the_first_value_that_leads_to_nothing_right_is_the_wrong_one(name, old, new, index, op):
  first = refuted(name, old, new).first
  assert first is not None and (first.index, first.op) == (index, op)
  assert first.sentence.endswith(f"kernel {first.kernel}, %{index} = {op} {_args(first)}")


def _args(first):
  return " ".join(f"%{a}" for a in first.args)


def test_every_value_of_a_right_program_leads_to_something_right():
  """Of another program's point of view: only its last value is wrong."""
  for golden in GOLDENS:
    text = print_ugraph(golden.ugraph)
    lines = text.splitlines()
    saves = [i for i, line in enumerate(lines) if line.startswith("  save o0")]
    number = int(lines[saves[0]].split("%")[1].split()[0])
    at = max(i for i, line in enumerate(lines[: saves[0]]) if line.startswith(f"  %{number} ="))
    if " = cast " in lines[at]:
      lines[at] = lines[at].replace(" = cast ", " = neg ")
      verdict = judge(golden.region, parse_ugraph("\n".join(lines) + "\n"))
      assert verdict.counterexample is not None and verdict.counterexample.first is not None
      assert verdict.counterexample.first.index == number, golden.name


def test_the_inputs_show_the_difference():
  """The formula, computed in Python's integers, gives ``want`` and ``got``."""
  want, got = total(X * X), total(X * X) + 1
  verdict = judge(region_of(want), graph_of(got))
  shown = verdict.counterexample
  assert shown is not None and shown.output == "o"
  ((axis, row),) = shown.element
  x = shown.inputs["x"].astype(object)
  exact = int((x[row] ** 2).sum()) % P
  assert axis == "i" and (shown.want, shown.got) == (exact, (exact + 1) % P)
  assert shown.differing == shown.compared and "i=" in shown.instantiation


def test_the_cone_leaves_out_what_the_wrong_output_does_not_need():
  verdict = judge(region_of(sqrt(total(X**2))), graph_of(sqrt(total(X**2) + 1)))
  assert verdict.counterexample is not None and verdict.counterexample.first is not None
  assert verdict.counterexample.first.op == "add"


def test_shifts_are_probed_in_residues():
  m = top(X)
  verdict = judge(region_of(exp(X - m) / total(exp(X - m))), graph_of(exp(X - m) / total(exp(X))))
  shown = verdict.counterexample
  assert shown is not None and shown.first is not None
  assert all(v.dtype == np.uint64 and (v < P).all() for v in shown.inputs.values())
  assert shown.inputs["x"].shape == tuple(
    int(n.split("=")[1]) for n in shown.instantiation.split(";")[0].split()
  )
  # exp(x - max) is the region's; exp(x) and its sum are not, nor is the quotient
  assert shown.first.op == "exp"
