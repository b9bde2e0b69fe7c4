"""FLOPs and bytes of nodes, against numbers worked out by hand."""

import numpy as np
import onnx
import pytest
from coverage_table.node_work import Work, node_work, rows
from onnx import helper
from small_models import Net

from mirage_onnx.importer import import_model, load_model


def program_of(net, *outputs):
  return import_model(load_model(net.model(*outputs)))


def last(net, *outputs):
  program = program_of(net, *outputs)
  return program.nodes[-1], program


def work(net, output):
  return node_work(*last(net, output))


def test_batched_matmul(net):
  """Heads 4, K 16, two 8-row operands of which one has a single head."""
  y = net.MatMul(net.input(1, 4, 8, 16), net.input(1, 1, 16, 24))
  assert work(net, y) == Work(2 * 4 * 8 * 24 * 16, 2 * (4 * 8 * 16 + 16 * 24 + 4 * 8 * 24))


@pytest.mark.parametrize(("a", "trans"), [((8, 64), 0), ((64, 8), 1)])
def test_gemm_with_bias(net, a, trans):
  """The bias is one addition per element of the result."""
  y = net.Gemm(net.input(*a), net.weight(64, 32), net.weight(32), transA=trans)
  assert work(net, y) == Work(2 * 8 * 64 * 32 + 8 * 32, 2 * (8 * 64 + 64 * 32 + 32 + 8 * 32))


def test_convolution(net):
  """16 channels in 4 groups, kernel 3 x 3: 36 weights per output; padding reads nothing."""
  y = net.Conv(net.input(2, 16, 10, 10), net.constant(np.ones((8, 4, 3, 3))), group=4)
  out = 2 * 8 * 8 * 8
  assert work(net, y) == Work(2 * out * 36, 2 * (2 * 16 * 100 + 8 * 36 + out))


def test_transposed_convolution(net):
  """Every element of the input meets all weights of its channel."""
  x, w = net.input(1, 6, 5, 5), net.constant(np.ones((6, 4, 3, 3)))
  y = net.ConvTranspose(x, w)
  assert work(net, y) == Work(2 * 150 * 36, 2 * (150 + 6 * 36 + 4 * 7 * 7))


@pytest.mark.parametrize(
  ("build", "flops", "elements"),
  [
    (lambda net, x: net.Exp(x), 32, 64),
    (lambda net, x: net.Add(x, net.input(8)), 32, 72),  # a row, broadcast
    (lambda net, x: net.Mul(x, x), 32, 64),  # one operand, read once
    (lambda net, x: net.Pow(x, 3.0), 32, 64),
    (lambda net, x: net.ReduceMean(x, [-1]), 32, 36),  # the axes are no traffic
    (lambda net, x: net.Softmax(x), 32 * 5, 64),  # max, sub, exp, sum, div
    (lambda net, x: net.Transpose(x, perm=[1, 0]), 0, 64),
    (lambda net, x: net.Reshape(x, [32]), 0, 0),
    (lambda net, x: net.Shape(x), 0, 8),  # two numbers of 8 bytes
    (lambda net, x: net.Unsqueeze(x, [0]), 0, 0),
    (lambda net, x: net.Expand(x, [3, 4, 8]), 0, 32 + 96),
    (lambda net, x: net.Concat(x, x, axis=0), 0, 32 + 64),
    (lambda net, x: net.IsInf(x), 32 * 2, 32 + 16),  # abs, less_equal; booleans have one byte
  ],
)  # fmt: skip
def test_one_input(net, build, flops, elements):
  """``elements`` of two bytes that x[4, 8] and the rest of the node move."""
  assert work(net, build(net, net.input(4, 8))) == Work(flops, 2 * elements)


def test_what_picks_reads_what_it_yields():
  """Three rows of a table of a thousand, and a slice."""
  net = Net()
  ids = net.input(3, dtype=np.int64)
  y = net.Gather(net.constant(np.zeros((1000, 16))), ids)
  assert work(net, y) == Work(0, 2 * (2 * 3 * 16) + 3 * 8)
  net = Net()
  y = net.Slice(net.input(100, 16), [2], [5], [0])
  assert work(net, y) == Work(0, 2 * (2 * 3 * 16))


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_what_scatters_in_place_writes_what_it_scatters(op):
  """Two rows into a table of a hundred: one computed for it, one that is fed or read again."""
  rows, table = 2 * 2 * 16, 2 * 100 * 16
  indices = np.array([[3], [5]]) if op == "ScatterND" else np.array([[3] * 16, [5] * 16])

  def scatter(net, data):
    updates = net.input(2, 16)
    return getattr(net, op)(data, net.constant(indices, np.int64), updates)

  net = Net()
  own = scatter(net, net.Exp(net.input(100, 16)))
  assert work(net, own) == Work(0, 8 * indices.size + 2 * rows)
  net = Net()
  assert work(net, scatter(net, net.input(100, 16))) == Work(0, 8 * indices.size + rows + 2 * table)
  net = Net()
  shared = net.Exp(net.input(100, 16))
  y = scatter(net, shared)
  program = program_of(net, y, shared)
  assert node_work(program.nodes[-1], program) == Work(0, 8 * indices.size + rows + 2 * table)


def test_all_results_of_a_split_count(net):
  x = net.input(4, 6)
  node = helper.make_node("Split", [x], ["a", "b"], name="it", axis=1, num_outputs=2)
  net.nodes.append(node)
  model = net.model("a", "b")
  program = import_model(load_model(model))
  assert node_work(program.nodes[0], program) == Work(0, 2 * 2 * 24)


def test_unknown_dimension(net):
  assert work(net, net.Exp(net.input("batch", 8))) is None


@pytest.mark.parametrize(
  ("build", "m"),
  [
    (lambda net: net.MatMul(net.input(2, 40, 64), net.weight(64, 32)), 80),
    (lambda net: net.Gemm(net.input(65, 64), net.weight(64, 32)), 65),
    (lambda net: net.Conv(net.input(2, 3, 32, 32), net.constant(np.ones((8, 3, 4, 4))),
                          strides=[2, 2]), 450),
    (lambda net: net.MatMul(net.input(80, 64), net.input(64, 32)), None),  # no weight
    (lambda net: net.Exp(net.input(80, 64)), None),
  ],
)  # fmt: skip
def test_rows(net, build, m):
  assert rows(*last(net, build(net))) == m


def test_every_operator_of_the_architectures_is_sized():
  """In one model with attention, masks and a cache."""
  import weights

  model = weights.load("llama3_decode")
  assert isinstance(model, onnx.ModelProto)
  program = import_model(load_model(model))
  found = [node_work(n, program) for n in program.nodes]
  assert all(found)
  matmuls = sum(w.flops for n, w in zip(program.nodes, found, strict=True) if n.op_type == "MatMul" and w)
  # Two layers: q and o 64x64, k and v 64x32, three of 64x128; 4 heads of 16 against 25 positions,
  # twice; the head 64x128.
  layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 4 * 16 * 25
  assert matmuls == 2 * (2 * layer + 64 * 128)
