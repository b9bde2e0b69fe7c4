"""``--target local`` on models whose inputs and outputs are no float16: measured, and right."""

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from small_models import Net

import mirage_onnx
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu
from mirage_onnx.tune.ort_run import OrtRun

pytestmark = pytest.mark.gpu
BF16 = np.dtype(ml_dtypes.bfloat16)


def bf16_model():
  net = Net(BF16, opset=22)
  x = net.input(8, 1024)
  return net.model(net.Relu(net.MatMul(net.rms(x, net.weight(1024, scale=1.0)), net.weight(1024, 4096)))), x


def outputs_model():
  net = Net(np.float16)
  x = net.input(8, 1024)
  y = net.Relu(net.Add(net.Mul(net.MatMul(x, net.weight(1024, 2048)), 2.0), 1.0))
  either = net.And(net.Greater(y, 0.5), net.Less(y, 1.5))
  return net.model(y, net.ArgMax(y, axis=-1, keepdims=0), either), x


def picked_model():
  net = Net(np.float16)
  x, rows, mask = net.input(8, 1024), net.input(8, dtype=np.int64), net.input(8, 2048, dtype=np.bool_)
  y = net.MatMul(net.Add(x, net.Gather(net.weight(64, 1024), rows)), net.weight(1024, 2048))
  return net.model(net.Where(mask, net.Sigmoid(y), 0.0)), x, rows, mask


@pytest.mark.parametrize("make", [bf16_model, outputs_model, picked_model])
def test_local(make, tmp_path, h200):
  if "CUDAExecutionProvider" not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  model, x, *others = make()
  source, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
  source.write_bytes(model.SerializeToString())
  report = mirage_onnx.optimize(source, out, target="local", budget_s=60).report
  rows = report["regions"]
  assert any(r["measured_us"] for r in rows), [(r["status"], r["reason_text"]) for r in rows]
  rng = np.random.default_rng(0)
  kind = BF16 if make is bf16_model else np.dtype(np.float16)
  feeds = {x: rng.standard_normal((8, 1024)).astype(kind)}
  if others:
    feeds |= {others[0]: rng.integers(0, 64, 8), others[1]: rng.random((8, 2048)) < 0.5}
  gpu = Gpu(H200)
  want = OrtRun(gpu, str(source), feeds).results()
  optimized = OrtRun(gpu, str(out), feeds, make=mirage_onnx.InferenceSession)
  launches = mirage_onnx.launches(optimized.session)
  assert launches and all(launches.values()), launches
  for name, got in optimized.results().items():
    a, b = got.astype(np.float64), want[name].astype(np.float64)
    if got.dtype.kind in "bi":  # a near tie may go the other way
      assert (a != b).mean() < 0.02
    else:
      assert np.linalg.norm(a - b) <= (2e-2 if kind == BF16 else 5e-3) * np.linalg.norm(b)
