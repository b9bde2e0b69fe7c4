"""Weights of few bits beside activations of fp32, on the GPU: kernels of multiply-adds, launched and right."""

import numpy as np
import onnxruntime as ort
import pytest
from packed_models import norm
from small_models import feeds

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu
from mirage_onnx.tune.known_sizes import Unpredicted
from mirage_onnx.tune.ort_run import OrtRun

pytestmark = pytest.mark.gpu
#: rows, K, N, how the weights are.
CASES = {
  "one row": (1, 4096, 4096, {"block": 32}),
  "one row, blocks of 128": (1, 1024, 4096, {"block": 128, "zero": True}),
  "three rows": (3, 1024, 1024, {"zero": True, "bias": True}),
  "eight rows": (8, 4096, 1024, {"block": 128}),
  "rows of three tiles": (20, 1024, 520, {"block": 64}),
  "8 bits": (2, 1024, 1024, {"bits": 8, "zero": True, "bias": True}),
  "2 bits": (5, 1024, 1024, {"bits": 2, "zero": True}),
  "an uneven depth": (5, 1024 + 32 * 3, 200, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name, tmp_path, h200, monkeypatch):
  if "CUDAExecutionProvider" not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  floors = pipeline.with_floors

  def slow(times, program, target):
    """A product of the original is said to take 100 us, so that ours is chosen."""
    own = {n.name: 100.0 for n in program.nodes if n.op_type == "MatMulNBits"}
    return {**floors(times, program, target), **own}

  monkeypatch.setattr(pipeline, "unpredicted_at", lambda *_: Unpredicted())
  monkeypatch.setattr(pipeline, "with_floors", slow)
  rows, k, n, how = CASES[name]
  model = norm(rows, k, n, dtype=np.float32, **how)
  source, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
  source.write_bytes(model.SerializeToString())
  mirage_onnx.optimize(source, out, target="h200", workers=1)
  values = feeds(model, np.random.default_rng(0))
  gpu = Gpu(H200)
  want = OrtRun(gpu, str(source), values).results()
  optimized = OrtRun(gpu, str(out), values, make=mirage_onnx.InferenceSession)
  launches = mirage_onnx.launches(optimized.session)
  assert launches and all(launches.values()), launches
  (y,), (expected,) = optimized.results().values(), want.values()
  assert np.linalg.norm(y - expected) <= 1e-5 * np.linalg.norm(expected)
