"""Up to where a model of fp32 is a measure: what it adds up inside must not overflow either."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from small_models import Net

from mirage_onnx import api
from mirage_onnx.custom_op.defined import Defined
from mirage_onnx.custom_op.model_run import How, open_session
from mirage_onnx.custom_op.widen import widened


def defined(model):
  data = model.SerializeToString()
  return Defined(data, open_session(data, How("cpu", ep="none")))


def product(dtype=np.float32):
  """A norm before a product: squares of more than 1.8e19 overflow, and what they divide is 0."""
  net = Net(dtype, seed=1)
  x = net.input(8, 64)
  return net.model(net.MatMul(net.rms(x), net.weight(64, 64))), x


def test_sums_that_overflow_inside():
  model, x = product()
  found = defined(model)
  for size, finite in ((1.0, True), (1e18, True), (1e20, False), (1e38, False), (1e-30, True)):
    assert found({x: np.full((8, 64), size, np.float32)}) is finite
  (y,) = found.run({x: np.full((8, 64), 1e20, np.float32)}).values()
  assert not y.any()


def one_node(operator):
  """A norm that is one node, behind a sum."""
  net = Net(np.float32, seed=1, opset=23)
  x, y = net.input(8, 64), net.input(8, 64)
  gamma, beta = net.weight(64), net.weight(64)
  if operator == "SkipLayerNormalization":
    return net.model(getattr(net, operator)(x, y, gamma, beta, domain="com.microsoft")), (x, y)
  more = (beta,) if operator == "LayerNormalization" else ()
  return net.model(getattr(net, operator)(net.Add(x, y), gamma, *more)), (x, y)


@pytest.mark.parametrize("operator", ["LayerNormalization", "RMSNormalization", "SkipLayerNormalization"])
def test_squares_that_overflow_within_a_node(operator):
  """Its output is finite all the same: a variance that overflows leaves the shift."""
  model, names = one_node(operator)
  found = defined(model)
  values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
  for size, finite in ((1.0, True), (1e17, True), (1e20, False), (1e36, False), (1e-30, True)):
    assert found(dict.fromkeys(names, values * np.float32(size))) is finite
  assert all(np.isfinite(y).all() for y in found.run(dict.fromkeys(names, values * 1e20)).values())


def test_bfloat16_goes_as_far_as_fp32():
  kinds = {onnx.TensorProto.FLOAT: onnx.TensorProto.BFLOAT16}
  for model, *names in (product(), (one_node("LayerNormalization")[0], *one_node("LayerNormalization")[1])):
    found = Defined(widened(model, None, kinds).SerializeToString())  # onnxruntime runs none on the CPU
    values = np.random.default_rng(0).standard_normal((8, 64))
    for size, finite in ((1.0, True), (1e17, True), (1e20, False), (1e-30, True)):
      assert found(dict.fromkeys(names, (values * size).astype(ml_dtypes.bfloat16))) is finite


def test_masks_are_finite():
  net = Net(np.float32)
  x, m = net.input(4, 8), net.input(4, 8)
  masked = net.Where(net.Greater(m, 0.0), x, net.constant(-np.inf, np.float32))
  found = defined(net.model(net.Softmax(masked, axis=-1)))
  mask = np.ones((4, 8), np.float32)
  mask[:, 3:] = -1
  assert found({x: np.ones((4, 8), np.float32), m: mask})
  assert not found({x: np.full((4, 8), np.inf, np.float32), m: mask})


@pytest.mark.slow  # kernels are emulated
def test_a_norm_before_a_product_passes_in_fp32(tmp_path):
  a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
  onnx.save(product()[0], a)
  api.optimize(a, b, target="h200", margin=-20.0, workers=1)
  found = api.verify(a, b)
  assert [n.path for n in found.nodes] == ["emulated"] and "edge" in found.inputs
  assert found.passed
