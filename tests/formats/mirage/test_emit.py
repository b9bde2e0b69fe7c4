"""The µGraphs of saved graphs: their text, and indices that the µGraph has no place for."""

import numpy as np
import pytest
from saved_examples import EXAMPLES
from saved_oracle import run_saved
from saved_truth import Truth
from saved_values import read, values
from saved_writer import Graph

import mirage_onnx as mi
from mirage_onnx.errors import Rejection
from mirage_onnx.formats.mirage.check import SavedProgram
from mirage_onnx.ir.spec import check_interface, check_ugraph
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.verify.equivalence import Proof, verify

ROWS = (0, -1, -1)


@pytest.mark.parametrize("name", ["norm_linear", "attention"])
def test_text(name, golden):
  ours = read(EXAMPLES[name].graphs()[1], EXAMPLES[name].reference())
  assert isinstance(ours, SavedProgram)
  text = print_ugraph(ours.ugraph)
  assert check_ugraph(ours.ugraph) is None and check_interface(ours.region, ours.ugraph) is None
  assert parse_ugraph(text) == ours.ugraph
  numbers = "".join(p.to_text() + "\n" for p in ours.params)
  assert ours.region.text + text + numbers == golden


def total_of_rows():
  g = mi.new_kernel_graph()
  x = g.new_input((2, 8, 32), mi.float16)
  g.mark_output(g.reduction(g.exp(x), 2))
  return g


def test_more_index_factors_than_grid_dimensions(rng):
  """Four splits of a row, merged two by two in later kernels: the grid has four factors."""
  g = Graph()
  x = g.input(2, 8, 32)
  first = g.kernel((2, 4, 4))
  part = first.op("accum_red_ld_sum", first.op("exp", first.load(x, (0, 2, 1))))
  second = g.kernel((2, 1, 1), chunk=2)
  pairs = second.load(first.store(part, (0, 2, 1)), ROWS)
  third = g.kernel((2, 1, 1))
  rest = third.load(second.store(second.op("accum_redtox_ld_sum", pairs), ROWS), ROWS)
  g.output(third.store(third.op("accum_red_ld_sum", rest), ROWS))
  truth = Truth(total_of_rows(), rng)
  ours = read(g.saved(), truth)
  assert isinstance(ours, SavedProgram)
  grid = ours.ugraph.kernels[0].grid
  cut = [a for a in ours.region.extents if a in grid]
  assert len(cut) == 3 and ours.params[0].tile.count(1) == 2
  np.testing.assert_allclose(values(ours, truth), truth.outputs[0], rtol=1e-12)
  assert isinstance(verify(ours.region, ours.ugraph), Proof)


@pytest.mark.parametrize("times", [4, 3])
def test_more_loop_factors_than_loops(times, rng):
  """One kernel cuts the rows in 4 by its loop, another in 2; y is added in 4 iterations."""
  reference = mi.new_kernel_graph()
  x = reference.new_input((8, 8), mi.float16)
  y = reference.new_input((8, 1), mi.float16)
  total = reference.add(reference.reduction(x, 1), reference.reduction(x, 1))
  for _ in range(times):
    total = reference.add(total, y)
  reference.mark_output(total)
  g = Graph()
  a, b = g.input(8, 8), g.input(8, 1)
  partial = []
  for loop in (4, 2):
    k = g.kernel((2, 1, 1), loop)
    partial.append(k.store(k.op("accum_nored", k.load(a, ROWS, loop_dim=1)), ROWS))
    if loop == 4:
      repeated = k.store(k.op("accum_nored", k.load(b, ROWS)), ROWS)
  sums = [g.op("reduction_1", p) for p in partial]
  g.output(g.op("add", g.op("add", *sums), repeated))
  truth = Truth(reference, rng)
  ours = read(g.saved(), truth)
  assert isinstance(ours, SavedProgram)
  assert sorted(ours.region.extents.values()) == [2, 2, 2, 8]
  (want,) = run_saved(g.saved(), truth.inputs)
  np.testing.assert_allclose(values(ours, truth), want, rtol=1e-12)
  assert truth.equal(g.saved()) == (times == 4)


def test_copies_of_one_value_are_refused(rng):
  """All blocks of grid y write the same sum; a later kernel adds up what they wrote."""
  g = Graph()
  x = g.input(2, 8, 32)
  k = g.kernel((2, 4, 1))
  e = k.op("exp", k.load(x, ROWS))
  k.load(x, (0, 2, -1))
  copies = k.store(k.op("accum_red_ld_sum", e), (0, 2, -1))
  g.output(g.op("reduction_2", copies))
  found = read(g.saved(), Truth(total_of_rows(), rng))
  assert isinstance(found, Rejection) and found.code == "SAVED_UNSUPPORTED"
