"""fp32 that is lost in both models: float64 says who is nearer, and a fault is none the less one."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from small_models import Net

from mirage_onnx.custom_op import in_double
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.difference import difference, nearer
from mirage_onnx.custom_op.in_double import run_in_double

SIZE = 1 << 12


def norms(fault=""):
  """The variance of rows as the mean of squares less the square of the mean, or as it should be."""
  net = Net(np.float32)
  x = net.input(4, SIZE)
  mean = net.ReduceMean(x, [-1])
  if fault == "lost":
    net.nodes.clear()
    mean = net.ReduceMean(x, [-1])
    variance = net.Sub(net.ReduceMean(net.Mul(x, x), [-1]), net.Mul(mean, mean))
  else:
    apart = net.Sub(x, mean)
    variance = net.ReduceMean(net.Mul(apart, apart), [-1])
  if fault == "eps":
    variance = net.Sub(variance, net.constant(2e-3))
  scale = net.Sqrt(net.Add(net.Abs(variance), net.constant(1e-3)))
  y = net.Div(net.Sub(x, mean), scale)
  if fault == "clipped":
    y = net.Min(y, net.constant(3.5))
  net.nodes[-1].output[0] = "y"
  return net.model("y").SerializeToString()


@pytest.fixture
def offset(rng):
  """Rows far from zero, of which fp32 has no digit of the variance."""
  return {"x0": (1e5 + rng.standard_normal((4, SIZE))).astype(np.float32)}


def test_nearer_than_the_original_is_no_failure(offset):
  """The original is lost there; the other way round it is a failure."""
  assert compare_models(norms("lost"), norms(), inputs=offset).passed
  assert not compare_models(norms(), norms("lost"), inputs=offset).passed


@pytest.mark.parametrize("fault", ["eps", "clipped"])
def test_a_fault_is_one_all_the_same(fault, offset):
  """An ``eps`` that is off by 2e-3 is less than what fp32 loses of the mean of ``offset``."""
  assert not compare_models(norms("lost"), norms(fault)).passed
  assert compare_models(norms(), norms(fault), inputs=offset).passed == (fault == "eps")


def test_a_tolerance_that_is_given_is_not_stretched(offset):
  assert not compare_models(norms("lost"), norms(), inputs=offset, rtol=1e-4).passed


@pytest.mark.parametrize("op", ["Mul", "InstanceNormalization"])
def test_float64_by_onnxruntime_and_where_it_has_no_kernel(rng, op, tmp_path):
  """Also of weights that lie in files."""
  shape = [2, 3, 16]
  gamma = rng.standard_normal(3 if op != "Mul" else 16).astype(np.float32)
  names = ["x", "g", "b"] if op != "Mul" else ["x", "g"]
  value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy"]
  graph = helper.make_graph(
    [helper.make_node(op, names, ["y"])], "g", value[:1], value[1:],
    [numpy_helper.from_array(gamma, n) for n in names[1:]],
  )  # fmt: skip
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
  path = tmp_path / "m.onnx"
  onnx.save_model(model, path, save_as_external_data=True, location="w", size_threshold=0)
  x = rng.standard_normal(shape).astype(np.float32)
  stored = onnx.load(path, load_external_data=False)
  got = run_in_double(stored, tmp_path, {"x": x})["y"]
  if op == "Mul":
    want = x.astype(np.float64) * gamma
  else:
    y, g = x.astype(np.float64), gamma.astype(np.float64)[:, None]
    want = g * (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + np.float32(1e-5)) + g
  assert got.dtype == np.float64
  np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("opset", [9, 13, 14, 15, 21])
def test_the_evaluator_takes_a_model_for_one_that_does_not_train(rng, opset):
  """Before opset 14 onnx's own takes the statistics of the batch, and agrees with no trained model."""
  named = {n: rng.random(3).astype(np.float32) + 0.5 for n in ("scale", "bias", "mean", "var")}
  value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3, 4, 5]) for n in "xy"]
  node = helper.make_node("BatchNormalization", ["x", *named], ["y"], epsilon=1e-3, momentum=0.9)
  graph = helper.make_graph(
    [node], "g", value[:1], value[1:], [numpy_helper.from_array(x, n) for n, x in named.items()]
  )
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
  x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  (want,) = session.run(None, {"x": x})
  got = in_double._in_numpy(in_double.widened(model, None, in_double._DOUBLE), None)({"x": x})["y"]
  assert got.dtype == np.float64
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_an_evaluator_that_gives_something_else_is_not_asked(monkeypatch, offset):
  """It would excuse everything: both are far from it."""
  model = onnx.load_from_string(norms())
  assert run_in_double(model, None, offset)
  for name in ("_in_onnxruntime", "_in_numpy"):
    make = getattr(in_double, name)
    monkeypatch.setattr(
      in_double, name, lambda *a, m=make: lambda feeds: {k: v * 2 for k, v in m(*a)(feeds).items()}
    )
  assert run_in_double(model, None, offset), "of one model it has been found"
  assert not run_in_double(onnx.load_from_string(norms()), None, offset)
  monkeypatch.undo()
  monkeypatch.setattr(in_double, "MOST_NUMBERS", 10)
  assert not run_in_double(onnx.load_from_string(norms()), None, offset)


@pytest.mark.parametrize(
  ("want", "got", "passes"),
  [
    ([1.0, 2.3, 3.0], [1.0, 2.2, 3.0], True),  # nearer
    ([1.0, 2.3, 3.0], [1.1, 2.0, 3.0], True),  # another row
    ([1.0, 2.3, 3.0], [1.1, 2.2, 3.0], False),  # more rows
    ([1.0, 2.1, 3.0], [1.0, 2.3, 3.0], False),  # further
    ([1.0, np.inf, 3.0], [1.0, 2.3, 3.0], False),
    ([1.0, 2.3, 3.0], [1.0, np.nan, 3.0], False),
  ],
)
def test_rows_that_are_off(want, got, passes):
  exact, ones = np.array([[1.0], [2.0], [3.0]]), np.ones((1, 2))
  a, b = (np.array(v, np.float32)[:, None] * ones.astype(np.float32) for v in (want, got))
  found = difference("y", a, b, 1e-4, 0.0, "large")
  assert not found.passed
  assert nearer(found, a, b, exact * ones, 0.0).passed == passes
