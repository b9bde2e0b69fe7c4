"""The reading of a block value is its value; what has no reading has none."""

import numpy as np
import pytest
from goldens import GOLDENS, golden
from interval_runs import CASES, hard_inputs
from mutations import mutants

from mirage_onnx.ir import term as t
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.adversarial import even_instantiation
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.symbolic import PART, PREV, RUN, block_values

each_golden = pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)


def assert_readings(given, graph):
  """Every saved tensor with a whole reading has its value; returns how many there are."""
  sizes = even_instantiation(graph, given.region)
  inputs, _ = hard_inputs(given.region, dict(sizes.extents), np.random.default_rng(2), 0.5)
  try:
    got = interpret_ugraph(Float64(CASES), graph, sizes.params, sizes.extents, inputs)
  except ValueError:
    return 0
  values = block_values(graph)
  compared = 0
  for kernel in graph.kernels:
    for save in kernel.saves:
      reading = values[kernel.name, save.arg].term
      if reading is None or _is_partial(reading):
        continue
      found = interpret_terms(Float64(CASES), [reading], inputs, sizes.extents)[0]
      axes = graph.tensor(save.tensor).axes
      y = got[save.tensor].data
      x = np.broadcast_to(found.aligned(axes), y.shape)
      both = np.isfinite(x) & np.isfinite(y)
      scale = max(1.0, float(np.abs(y[both]).max(initial=0.0)))
      np.testing.assert_allclose(x[both], y[both], rtol=1e-6, atol=1e-6 * scale)
      compared += 1
  return compared


def _is_partial(x):
  return any(n.op.startswith(PART) or n.op in (RUN, PREV) for n in t.walk([x]))


@each_golden
def test_every_value_of_a_golden_has_a_reading(given):
  values = block_values(given.ugraph)
  assert [place for place, v in values.items() if v.term is None] == []
  assert assert_readings(given, given.ugraph) >= len(given.region.outputs)


COMPARISONS = ("less", "less_equal", "equal")


@pytest.mark.slow
@each_golden
def test_readings_of_mutants_are_their_values(given):
  """Wrong accumulators, missing rescales, stale values: read as they are or not at all."""
  compared = 0
  for _, graph in mutants(given.ugraph):
    if any(op.op in COMPARISONS for k in graph.kernels for op in k.ops):
      continue  # of values that are equal but for their rounding either answer is right
    if check_ugraph(graph) is None and check_interface(given.region, graph) is None:
      compared += assert_readings(given, graph)
  assert compared > 10


@pytest.mark.parametrize(
  ("name", "old", "new"),
  [
    ("attention_online", "acc_scaled %15 %14", "acc_sum %15"),
    ("attention_online", "acc_scaled %15 %14", "acc_scaled %15 %13"),
    ("attention_online", "%13 = sub %12 %9", "%13 = sub %9 %12"),
    ("attention_cluster", "%25 = red_sum %24", "%25 = red_sum %16"),
    ("attention_split_kv", "%7 = sum[a3/k0] %6", "%7 = sum[a3/k0] %1"),
    ("norm_linear", "%6 = acc_sum", "%6 = acc_max"),
  ],
)
def test_sums_of_parts_that_are_not_rescaled_alike_have_no_reading(name, old, new):
  text = print_ugraph(golden(name).ugraph)
  if old not in text:
    old = next(line for line in text.splitlines() if "= acc_sum" in line).split(" : ")[0]
    new = old.replace("acc_sum", "acc_max")
  values = block_values(parse_ugraph(text.replace(old, new)))
  assert any(v.term is None for v in values.values())


def test_marks_say_in_which_part_an_element_is():
  values = block_values(golden("attention_cluster").ugraph)
  assert values["k0", 7].marks == {f"{PART}a0/k0", f"{PART}a3/k0"} | {
    f"{PART}{level}/k0" for level in ("loop", "rank")
  }
  assert values["k0", 21].marks == {f"{PART}a0/k0", f"{PART}a3/k0"}
