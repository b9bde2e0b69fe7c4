"""What constants and shapes make is known when loading, as ONNX Runtime computes it."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.folding import LARGEST
from mirage_onnx.rewrite.body import MAX_CONSTANT_BYTES

ONE = numpy_helper.from_array(np.array([1], np.int64))


def chain(net, x):
  """Every operator that is folded, from the shape of x, f16[3, 4, 5]; the last from floats."""
  s, one = net.Shape(x, end=-1), net.constant(1, np.int64)
  n = net.Slice(net.Gather(s, [1, -2, 0]), [-1], [-9], [0], [-2])
  mixed = net.Where(net.Equal(n, [3, 4]), net.Mul(n, [7]), net.Sub(net.Div(n, [2]), [2]))
  filled = net.ConstantOfShape(s, value=numpy_helper.from_array(np.array([2], np.int64)))
  row = net.Range(one, net.constant(9, np.int64), net.constant(3, np.int64))
  both = net.And(net.Less(row, [5]), net.GreaterOrEqual(row, [2]))
  either = net.Or(net.LessOrEqual(row, [2]), net.Greater(row, [5]))
  return (
    s, mixed, filled, row, both, either, net.Not(both), net.cast(both, np.int32),
    net.Concat(net.Add(s, n), [-1], axis=0), net.Identity(n), net.Unsqueeze(n, [0, -1]),
    net.Squeeze(net.Unsqueeze(n, [0])), net.Reshape(filled, [0, 2, -1]),
    net.Transpose(filled), net.Expand(net.Reshape(n, [2, 1]), [1, 3]),
    net.Shape(net.ConstantOfShape(n)),
  )  # fmt: skip


def test_every_operator(net):
  x = net.input(3, 4, 5)
  outputs = chain(net, x)
  model = net.model(*outputs)
  del model.graph.value_info[:]
  folded = load_model(model).folded
  options = ort.SessionOptions()
  options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
  session = ort.InferenceSession(model.SerializeToString(), options)
  wanted = session.run(list(outputs), {x: np.zeros((3, 4, 5), np.float16)})
  for name, want in zip(outputs, wanted, strict=True):
    got = numpy_helper.to_array(folded[name])
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize(
  "make",
  [
    lambda net, x: net.Shape(net.Reshape(x, [-1]), start=0),  # of a size that a run says
    lambda net, x: net.Div([-7], [2]),
    lambda net, x: net.ConstantOfShape([LARGEST // 8 + 1], value=ONE),
    lambda net, x: net.Expand([1], [1 << 20, 1 << 20]),
    lambda net, x: net.Range(*(net.constant(n, np.int64) for n in (0, 1 << 40, 1))),
  ],
)  # fmt: skip
def test_left_to_the_run(net, make):
  model = net.model(make(net, net.input("n", 4)))
  assert not load_model(model).folded
  assert LARGEST <= MAX_CONSTANT_BYTES


def test_the_shape_of_torchscript(net):
  """Expand to Where(shape == -1, 1, shape), as repeated heads are written."""
  x = net.input(1, 2, 1, 8, 16)
  ones = net.ConstantOfShape([5], value=ONE)
  given = net.constant([1, -1, 4, 8, 16], np.int64)
  shape = net.Where(net.Equal(given, net.Mul(ones, [-1])), ones, given)
  y = net.Add(net.Expand(x, shape), net.constant(1.5))
  model = net.model(net.Reshape(y, net.Concat([1], [8], [8], net.Gather(given, [4]), axis=0)))
  del model.graph.value_info[:]
  model.graph.output[0].ClearField("type")
  program = import_model(load_model(model))
  moves = ("Expand", "Add", "Reshape")
  assert not any(n.barrier for n in program.nodes if n.op_type in moves)
  assert program.tensors[program.outputs[0]].shape == (1, 8, 8, 16)
