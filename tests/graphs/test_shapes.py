"""Sizes of a call: arrays of other shapes than the graph's, and one clear line where none fit."""

import numpy as np
import pytest
from readme_graphs import attention
from refused import refused

import mirage_onnx as mi
from mirage_onnx.errors import MirageError
from mirage_onnx.graphs.shapes import sizes_of_call
from mirage_onnx.match.whole import whole_region


def sizes(graph, *shapes):
  program = graph.program()
  return sizes_of_call(program, whole_region(program), shapes)


def outputs(graph, *shapes):
  found = sizes(graph, *shapes)
  return [found.shapes[n] for n in graph.program().outputs]


def test_the_graphs_own_shapes():
  graph = attention()
  shapes = ((2, 256, 64), (2, 64, 4096), (2, 4096, 64))
  found = sizes(graph, *shapes)
  assert found.extents == whole_region(graph.program()).extents
  assert [found.shapes[n] for n in ("x0", "x1", "x2", "matmul4")] == [*shapes, (2, 256, 64)]


def test_shapes_of_the_readmes_call():
  """The README calls its graph with other heads, rows and depths than it declares."""
  shapes = ((64, 1, 128), (64, 128, 4096), (64, 4096, 128))
  assert outputs(attention(), *shapes) == [(64, 1, 128)]
  extents = sizes(attention(), *shapes).extents
  assert sorted(extents.values()) == sorted([64, 1, 128, 4096, 128])


def merged():
  graph = mi.new_kernel_graph()
  x, y = (graph.new_input((4, 6, 8), mi.float16) for _ in range(2))
  graph.div(graph.add(x, y), graph.reduction(graph.exp(x), 2))
  return graph


def test_dimensions_that_are_one_axis():
  assert outputs(merged(), (3, 5, 7), (3, 5, 7)) == [(3, 5, 7)]
  extents = sizes(merged(), (3, 5, 7), (3, 5, 7)).extents
  assert sorted(extents.values()) == [7, 15]


def broadcast():
  graph = mi.new_kernel_graph()
  x, y = graph.new_input((4, 6), mi.float16), graph.new_input((1, 6), mi.float16)
  graph.mul(graph.exp(x), y)
  return graph


REFUSED = {
  "too few": (attention, ((2, 256, 64),), "1 arrays for the 3 inputs of the graph"),
  "a rank": (broadcast, ((4, 6), (6,)), r"x1 of shape \(6,\): the graph has \(1, 6\)"),
  "an empty array": (broadcast, ((0, 6), (1, 6)), r"x0 of shape \(0, 6\): the graph has"),
  "a dimension that is broadcast": (
    broadcast, ((4, 6), (4, 6)), r"x1 of shape \(4, 6\): the graph has \(1, 6\)"
  ),
  "a dimension that is no longer shared": (
    broadcast, ((4, 6), (1, 1)), r"x\d of shape .* do not fit together as .* do in the graph"
  ),
  "depths": (
    attention, ((2, 8, 64), (2, 32, 16), (2, 16, 64)),
    r"x1 of shape \(2, 32, 16\) and x0 of shape \(2, 8, 64\) do not fit together",
  ),
  "an axis cut in another place": (
    merged, ((3, 5, 7), (5, 3, 7)), r"add0: add of \(3, 5, 7\) and \(5, 3, 7\)"
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  build, shapes, line = REFUSED[name]
  with refused("GRAPH_OPERAND", line):
    sizes(build(), *shapes)


def test_inputs_that_nothing_reads_have_a_shape_too():
  graph = mi.new_kernel_graph()
  x, _unread = graph.new_input((4, 6), mi.float16), graph.new_input((2, 2), mi.float16)
  graph.exp(x)
  assert outputs(graph, (8, 6), (5, 5)) == [(8, 6)]
  with pytest.raises(MirageError, match=r"x1 of shape \(5,\)"):
    sizes(graph, (8, 6), (5,))


@pytest.mark.parametrize("seed", range(8))
def test_shapes_are_numpys(seed):
  """Every operation's result at random sizes, against numpy's own."""
  n, m, k, p = (int(i) for i in np.random.default_rng(seed).integers(2, 9, 4))
  graph = mi.new_kernel_graph()
  x, w = graph.new_input((2, 3, 4), mi.float16), graph.new_input((2, 4, 5), mi.float16)
  y = graph.softmax(graph.matmul(graph.rms_norm(x), w), 1)
  graph.mark_output(y)
  graph.mark_output(graph.reduction(graph.gelu(y), 2))
  graph.mark_output(graph.reduction(graph.silu(x), 0))
  a, b = np.ones((n, m, k)), np.ones((n, k, p))
  want = [(a @ b).shape, (n, m, 1), a.sum(axis=0, keepdims=True).shape]
  assert outputs(graph, a.shape, b.shape) == want
