"""Which factors become one axis, and the reference over the axes of a graph."""

import pytest
from saved_examples import EXAMPLES
from saved_references import reference
from saved_values import read
from saved_writer import squares

from mirage_onnx.errors import Rejection
from mirage_onnx.formats.mirage.check import SavedProgram
from mirage_onnx.ir import term as t

ROWS, COLUMNS = (0, -1, -1), (1, -1, -1)
SQUARES = ((8, 8), (8, 8))
NORM = reference(lambda g, x: g.rms_norm(x), (8, 8))
CHAIN = reference(lambda g, x, y: g.matmul(g.exp(x), y), *SQUARES)


def example(name, index):
  found = read(EXAMPLES[name].graphs()[index], EXAMPLES[name].reference())
  assert isinstance(found, SavedProgram), found
  return found


def test_cut_axes_stay_whole():
  """Grid and loop are cuts of an axis where nothing tells their factors apart."""
  ours = example("norm_linear", 0)
  (kernel,), (params,) = ours.ugraph.kernels, ours.params
  assert dict(ours.region.extents) == dict.fromkeys(("a0", "a1", "a2"), 8)
  assert (kernel.grid, kernel.loop) == (("a2",), "a1")
  assert (params.tile, params.loop_tile) == ((2,), 4)


def test_partial_results_split_an_axis():
  """The keys, 32 = 4 splits x 2 iterations x 4: the first kernel keeps the splits apart."""
  ours = example("attention", 0)
  sizes = sorted(n for a, n in ours.region.extents.items() if a.startswith("a1"))
  first, second = ours.ugraph.kernels
  assert sizes == [4, 8] and first.loop == "a1_1" and ours.params[0].loop_tile == 4
  assert "a1_0" in first.grid and second.loop is None
  (low, high) = (t for t in ours.ugraph.tensors if t.role == "temp")
  assert low.axes[-1] == "a1_0" and high.axes[-2] == "a1_0"


def test_sums_of_tiles_at_different_places_split_an_axis():
  """accum_nored adds the j-th elements of all tiles, so that tile and element are two axes."""
  ours = example("attention", 2)
  assert sorted(n for a, n in ours.region.extents.items() if a.startswith("a1")) == [2, 4, 4]
  (ops,) = [k.ops for k in ours.ugraph.kernels if k.loop == "a1_1"]
  assert [o.reduced for o in ops if o.op == "sum"] == [("a1_1",), ("a1_1",)]


def test_means_of_tiles_split_an_axis():
  g, x = squares(1)
  k = g.kernel((2, 1, 1))
  g.output(k.store(k.op("accum_nored", k.op("rms_norm", k.load(x, COLUMNS))), COLUMNS))
  ours = read(g.saved(), NORM)
  assert isinstance(ours, SavedProgram)
  extents = [o.reduced for o in ours.ugraph.kernels[0].ops if o.op == "extent"]
  assert extents == [("a1_1",)] and ours.region.extents["a1_1"] == 4


def test_refined_reference():
  """Every reduction over a split axis is one over its parts; a mean counts all of them."""
  g, x = squares(1)
  k = g.kernel((4, 1, 1), 2)
  tile = k.op("square", k.load(x, ROWS, loop_dim=1))
  partial = k.store(k.op("accum_nored", tile), ROWS)
  root = g.op("sqrt", g.op("reduction_1", partial))
  g.output(g.op("div", x, root))
  ours = read(g.saved(), NORM)
  assert isinstance(ours, SavedProgram)
  terms = {(u.op, u.attr) for u in t.walk(ours.region.terms)}
  assert {("sum", ("a1_0", "a1_1")), ("extent", ("a1_0", "a1_1"))} <= terms
  assert ours.region.inputs[0].axes == ("a0", "a1_0", "a1_1") and ours.region.steps == ()


def refused(g, given=CHAIN, code="SAVED_UNSUPPORTED"):
  found = read(g.saved(), given)
  assert isinstance(found, Rejection) and found.code == code, found
  return found.reason


def test_a_tensor_has_an_axis_once():
  g, x, y = squares(2)
  g.output(g.op("matmul", y, g.op("exp", x)))
  assert "would have one axis twice" in refused(g)


def test_indices_run_over_different_axes():
  g, x, y = squares(2)
  k = g.kernel((2, 2, 1))
  a, b = k.load(x, (1, 0, -1)), k.load(y, (1, 0, -1))
  g.output(k.store(k.op("accum_nored", k.op("mul", a, b)), (1, 0, -1)))
  assert "two indices (grid, loop) run over one axis" in refused(g)


def test_an_axis_is_cut_in_all_operands():
  """Right, but named axes cannot say it: a row whole for its sum, and cut for the rest."""
  g, y = squares(1)
  k = g.kernel((4, 1, 1))
  a, b = k.load(y, COLUMNS), k.load(y)
  total = k.op("div", a, k.op("reduction_1", b))
  g.output(k.store(k.op("accum_nored", total), COLUMNS))
  wanted = reference(lambda g, x: g.div(x, g.reduction(x, 1)), (8, 8))
  assert "cut in one operand and whole in another" in refused(g, wanted)


def test_a_grid_dimension_cuts_an_input():
  g, x, y = squares(2)
  k = g.kernel((4, 1, 1))
  total = k.op("reduction_1", k.op("matmul", k.load(x), k.load(y)))
  g.output(k.store(k.op("accum_nored", total), COLUMNS))
  wanted = reference(lambda g, a, b: g.reduction(g.matmul(a, b), 1), *SQUARES)
  # Four copies are no (8, 1).
  assert "output 0 is (8, 4)" in refused(g, wanted, "SAVED_INVALID")


@pytest.mark.parametrize("name", EXAMPLES)
def test_axes_have_the_extents_of_the_reference(name):
  for index, _ in enumerate(EXAMPLES[name].graphs()):
    ours = example(name, index)
    for tensor in (*ours.region.inputs, *ours.region.outputs):
      elements = 1
      for a in tensor.axes:
        elements *= ours.region.extents[a]
      want = 1
      for n in tensor.tensor.shape or ():
        want *= int(n)
      assert elements == want
