"""Every operator of the format, at both levels, against the independent interpreter."""

import numpy as np
import pytest
from saved_oracle import run_saved
from saved_truth import Truth
from saved_values import read, values
from saved_writer import Graph

import mirage_onnx as mi
from mirage_onnx.formats.mirage.check import SavedProgram
from mirage_onnx.formats.mirage.ops import BLOCK, COMMON

X, W = (4, 8), (8, 4)
#: What comes out of x (4, 8) and w (8, 4), by operator; others keep the shape of x.
SHAPES = {
  "matmul": (4, 4),
  "reduction_0": (1, 8), "reduction_1": (4, 1),
  "reduction_0_to_dimx": (4, 8), "reduction_1_to_dimx": (4, 4), "accum_redtox_ld_sum": (4, 4),
  "accum_red_ld_sum": (4, 1), "accum_red_ld_mean": (4, 1), "accum_red_ld_rms": (4, 1),
}  # fmt: skip
CHUNK = 4
#: Needs a third dimension.
DEEP = ("reduction_2", "reduction_2_to_dimx")


def reference(*shapes):
  """Reads every input and yields the shape of the last one; no two of them share an axis."""
  g = mi.new_kernel_graph()
  tensors = [g.new_input(s, mi.float16) for s in shapes]
  total = tensors[-1]
  for x in tensors[:-1]:
    for d in range(len(x.dims)):
      x = g.reduction(x, d)
    total = g.add(total, x)
  g.mark_output(total)
  return g


def inputs(g, shape):
  x, w, _ = g.input(*X), g.input(*W), g.input(*shape)
  return x, w


def library(name):
  g = Graph()
  x, w = inputs(g, SHAPES.get(name, X))
  positive = g.op("exp", x)
  operands = (positive, w) if name == "matmul" else (positive, x)[: COMMON[name][0]]
  g.output(g.op(name, *operands))
  return g.saved()


def block(name, loop=1):
  """In a kernel with a grid over the rows where the operator leaves them alone."""
  g = Graph()
  x, w = inputs(g, SHAPES.get(name, X))
  rows = not name.startswith("reduction_0")
  k = g.kernel((2, 1, 1) if rows else (1, 1, 1), loop, chunk=CHUNK)
  a = k.load(x, (0, -1, -1), loop_dim=1)
  positive = k.op("exp", a)
  second = k.load(w, loop_dim=0) if name == "matmul" else a
  result = k.op(name, *(positive, second)[: BLOCK[name][0]])
  if not name.startswith("accum_"):
    result = k.op("accum_nored", result)
  g.output(k.store(result, (0, -1, -1)))
  return g.saved()


def truth_of(name, rng):
  return Truth(reference(X, W, SHAPES.get(name, X)), rng)


def compare(graph, truth):
  ours = read(graph, truth)
  assert isinstance(ours, SavedProgram), ours
  (want,) = run_saved(graph, truth.inputs)
  np.testing.assert_allclose(values(ours, truth), want, rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in COMMON if n not in DEEP])
def test_library_operators(name, rng):
  compare(library(name), truth_of(name, rng))


@pytest.mark.parametrize("name", [n for n in BLOCK if n not in DEEP])
def test_block_operators(name, rng):
  compare(block(name), truth_of(name, rng))


@pytest.mark.parametrize("name", [n for n in BLOCK if n.startswith("accum_red")])
def test_accumulators_over_a_loop(name, rng):
  compare(block(name, loop=2), truth_of(name, rng))


@pytest.mark.parametrize("name", ["accum_nored", "accum_red_ld_mean", "accum_red_ld_rms"])
def test_loops_that_cut_nothing(name, rng):
  """A sum is as often as there are iterations, a mean is not."""
  g = Graph()
  x, _ = inputs(g, SHAPES.get(name, X))
  k = g.kernel((2, 1, 1), 4)
  g.output(k.store(k.op(name, k.op("exp", k.load(x, (0, -1, -1)))), (0, -1, -1)))
  compare(g.saved(), truth_of(name, rng))


@pytest.mark.parametrize(("name", "last"), [("reduction_2", 1), ("reduction_2_to_dimx", CHUNK)])
def test_third_dimension(name, last, rng):
  g = Graph()
  x, _, _ = g.input(2, 4, 8), g.input(1, 1, 1), g.input(2, 4, last)
  k = g.kernel((2, 1, 1), 1, chunk=CHUNK)
  total = k.op("accum_nored", k.op(name, k.load(x, (0, -1, -1))))
  g.output(k.store(total, (0, -1, -1)))
  compare(g.saved(), Truth(reference((2, 4, 8), (1, 1, 1), (2, 4, last)), rng))
