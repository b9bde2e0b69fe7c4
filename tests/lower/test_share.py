"""How warps share out sides: the cheapest of all ways."""

from itertools import product as combinations
from math import prod

import pytest
from tiled_kernels import ATTENTION, CENTRED, NORM_LINEAR, case, product

from mirage_onnx.lower.assign import Assignment, vector_frames
from mirage_onnx.lower.dataflow import needed_values
from mirage_onnx.lower.forms import Warps
from mirage_onnx.lower.share import split_costs, splits

KERNELS = {
  "norm": case(NORM_LINEAR, 64, 8, a0=8, a1=64, a2=64),
  "product": case(product(), 32, 32, loop_tile=32, a0=32, a1=256, a2=32),
  "chain": case(ATTENTION, 32, 1, loop_tile=32, a0=1, a1=64, a2=32, a3=32, a4=16),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("warps", [1, 2, 6, 8])
def test_no_split_is_cheaper(name, warps):
  c = KERNELS[name]
  kernel = c.graph.kernels[0]
  assignment = Assignment.of(kernel, c.plan().pieces, needed_values(kernel))
  forms = assignment.forms()
  (cost, split), *others = splits(assignment, forms, warps)
  assert all(cost <= c for c, _ in others)
  cost_of = split_costs(assignment, forms)
  assert cost == cost_of(split)
  sides = {s for p in assignment.products.values() for s in (p.c.g, p.c.t, (p.depth,)) if s}
  sides |= {s for f in forms.values() for s in (f.g, f.t) if s}
  every = [
    Warps(tuple((s, n) for s, n in zip(sides, counts, strict=True) if n > 1), warps,
          assignment.even)
    for counts in combinations(range(1, warps + 1), repeat=len(sides))
    if warps % prod(counts) == 0
  ]  # fmt: skip
  assert len(every) > 1 or warps == 1
  assert cost == min(map(cost_of, every))


def test_warps_take_rows_rather_than_parts_of_a_sum():
  wide = case(product(loop=False), 128, 16, warps=4, a0=16, a1=64, a2=128)
  deep = case(product(loop=False), 8, 16, warps=4, a0=16, a1=1024, a2=8)
  for c, axis in ((wide, "a2"), (deep, "a1")):
    digits = {s[0].axis: n for s, n in c.plan().warps.digits}
    assert digits[axis] == 4


def test_lanes_lie_along_memory():
  """Of frames that compute the same, the one whose loads are neighbours."""
  plan = case(CENTRED, 64, warps=1, a0=64, a1=64).plan()
  frames = list(vector_frames(plan.pieces.kernel, plan.pieces, frozenset(range(3))))
  assert {f.t[0].axis for f in frames} == {"a0", "a1"}
  assert plan.lowering.forms[2].t[0].axis == "a1"


def test_iterations_count():
  costs = []
  for depth in (64, 128):
    plan = case(product(), 16, 16, loop_tile=16, warps=1, a0=16, a1=depth, a2=16).plan()
    costs.append(split_costs(plan.lowering.assignment, plan.lowering.forms)(plan.warps))
  assert 1.5 < costs[1] / costs[0] < 2
