"""What is done to a program before its numbers with wgmma are timed."""

from contextlib import suppress

from golden_texts import PROGRAMS
from tiled_kernels import Case, near

from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.superopt.timed_numbers import parts_apart
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.target import H100


def test_parts_of_many_elements_lie_apart():
  """One behind the other, each in rows; sums of a row stay as they are. The same numbers come out."""
  graph = parse_ugraph(PROGRAMS["attention_shared"])
  apart = parts_apart(graph)
  orders = {t.name: t.axes for t in apart.tensors if t.role == "temp"}
  assert orders["t2"] == ("a1/k0", "a0", "a3", "a2")
  assert {n: orders[n] for n in ("t0", "t1")} == dict.fromkeys(("t0", "t1"), ("a0", "a3", "a1/k0"))
  assert apart.kernels == graph.kernels and parts_apart(apart) == apart
  sizes = {"a0": 1, "a1": 1024, "a2": 64, "a3": 200, "a4": 64}
  few = {**sizes, "a0": 2, "a1": 4096, "a3": 256}
  tensors = {t.name: t for t in apart.tensors}
  points = chained_points(apart.kernels[0], tensors, few, H100, 20)
  first = {p.teams: p for _, p in reversed(points)}
  text = str(PROGRAMS["attention_shared"]).replace("t2 f32[a0,a2,a3,a1/k0]", "t2 f32[a1/k0,a0,a3,a2]")
  assert parse_ugraph(text) == apart
  near([Case(text, (p, KernelParams((1, 64, 1), 1, 0, 2, 1)), sizes) for p in first.values()])


def test_others_stay():
  """Nobody else shares a loop of several products and leaves many elements a row."""
  changed = set()
  for name, text in PROGRAMS.items():
    with suppress(ValueError):  # some are parts of programs
      graph = parse_ugraph(text)
      changed |= {name} if parts_apart(graph) is not graph else set()
  assert changed == {"attention_shared", "split"}
