"""What constants and shapes make is known when loading, as ONNX Runtime computes it."""

import tracemalloc
from unittest import mock

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from mirage_onnx.importer import folding, import_model, load_model, shapes
from mirage_onnx.importer.folding import LARGEST
from mirage_onnx.importer.inferring import MOST_ROUNDS
from mirage_onnx.rewrite.body import MAX_CONSTANT_BYTES

INFER = shapes.infer
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


def large(net, op):
  """Operands of 1024 elements, and results of 2**30."""
  a, b, c = (net.constant(np.ones(s), np.int64) for s in ([1024, 1, 1], [1, 1024, 1], [1, 1, 1024]))
  if op == "Where":
    return net.Where(net.constant(np.ones([1024, 1, 1]), bool), b, c)
  if op == "Concat":
    return net.Concat(*[b] * 20_000, axis=0)
  if op == "Gather":
    return net.Gather(b, net.constant(np.zeros(1024), np.int64), axis=0)
  return getattr(net, op)(net.Add(a, b), c)


@pytest.mark.parametrize("op", ["Where", "Add", "Mul", "Div", "Equal", "Concat", "Gather"])
def test_the_size_of_a_result_is_known_before_it_is_computed(net, op):
  """18 kB of model took 8 GB."""
  model = net.model(large(net, op), net.Relu(net.input(2, 3)))
  tracemalloc.start()
  try:
    assert not load_model(model).folded
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
  finally:
    tracemalloc.stop()


def test_rows_of_a_large_table_are_small(net):
  table = net.constant(np.arange(1024).reshape(256, 4), np.int64)
  model = net.model(net.Gather(table, [3, 1, 0], axis=0))
  (found,) = load_model(model).folded.values()
  assert numpy_helper.to_array(found).tolist()[0] == [12, 13, 14, 15]


def test_all_results_together_have_a_limit(net, monkeypatch):
  monkeypatch.setattr(folding, "MOST_ELEMENTS", 250)
  ones = [net.ConstantOfShape([100], value=ONE) for _ in range(4)]
  assert list(load_model(net.model(*ones)).folded) == ones[:2]


def test_shapes_of_shapes_are_followed_so_often(net):
  """Each is known when the one before was folded: every time inference runs over the whole model."""
  s = net.Shape(net.input(2, 3))
  both = net.constant([True, True], bool)
  for _ in range(MOST_ROUNDS + 40):
    s = net.Shape(net.Expand(net.constant([[1.0]]), net.Where(both, s, s)))
  model = net.model(s)
  del model.graph.value_info[:]
  model.graph.output[0].ClearField("type")
  calls = []
  with mock.patch.object(shapes, "infer", side_effect=lambda *a: calls.append(1) or INFER(*a)):
    folded = load_model(model).folded
  assert len(calls) == MOST_ROUNDS + 1 and len(folded) > MOST_ROUNDS


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
