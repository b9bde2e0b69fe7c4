"""Weights of few bits beside fp32, and of floats of 8 bits, on the GPU: kernels launched and right."""

import numpy as np
import onnxruntime as ort
import pytest
from dequantized_models import between, dequantized, integers
from float_products import float8
from packed_models import norm
from region_meaning import meant
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
  "zero points that are floats": (2, 1024, 512, {"zero": "float"}),
}
KINDS = ("DequantizeLinear", "MatMulNBits", "MatMul", "Gemm", "MatMulBlockQuantizedFp8Weight")
FLOATS = {
  "e4m3": (2, {"kind": "e4m3", "axis": 1}),
  "e5m2 in blocks": (8, {"kind": "e5m2", "axis": 0, "block": 32, "form": "gemm"}),
  "e4m3 beside fp32": (1, {"kind": "e4m3", "axis": 1, "dtype": np.float32}),
  "4 bits beside fp32": (3, {"kind": "i4", "axis": 0, "block": 64, "dtype": np.float32}),
}


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
  """A product of the original is said to take 100 us, so that ours is chosen."""
  floors = pipeline.with_floors

  def slow(times, program, target):
    own = {n.name: 100.0 for n in program.nodes if n.op_type in KINDS}
    return {**floors(times, program, target), **own}

  monkeypatch.setattr(pipeline, "unpredicted_at", lambda *_: Unpredicted())
  monkeypatch.setattr(pipeline, "with_floors", slow)


def check(model, near, tmp_path, values=None):
  if "CUDAExecutionProvider" not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  source, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
  source.write_bytes(model.SerializeToString())
  mirage_onnx.optimize(source, out, target="h200", workers=1)
  values = feeds(model, np.random.default_rng(0)) if values is None else values
  gpu = Gpu(H200)
  optimized = OrtRun(gpu, str(out), values, make=mirage_onnx.InferenceSession)
  launches = mirage_onnx.launches(optimized.session)
  assert launches and all(launches.values()), launches
  (y,), expected = optimized.results().values(), meant(model, values)  # fp32 of ONNX Runtime may be TF32
  y = y.astype(float)
  assert np.linalg.norm(y - expected) <= near * np.linalg.norm(expected)


@pytest.mark.parametrize("name", CASES)
def test_beside_fp32(name, tmp_path, h200):
  rows, k, n, how = CASES[name]
  check(norm(rows, k, n, dtype=np.float32, **how), 1e-5, tmp_path)


@pytest.mark.parametrize("how", [{}, {"kind": np.uint8, "point": 128}, {"rows": 1, "dtype": np.float32}])
def test_activations_that_are_integers(how, tmp_path, h200):
  model = between(k=1024, n=512, **how)
  check(model, 1e-5 if "dtype" in how else 3e-3, tmp_path, integers(model))


@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_8_bits(name, tmp_path, h200):
  rows, how = FLOATS[name]
  check(dequantized(rows, 1024, 512, **how), 1e-5 if "fp32" in name else 3e-3, tmp_path)


@pytest.mark.parametrize("how", [{"rows": 1}, {"rows": 2, "block": 128}, {"rows": 20, "bias": True}], ids=str)
def test_products_of_floats_of_8_bits(how, tmp_path, h200):
  """As onnxruntime-genai's builder writes them; onnxruntime's own mean the same."""
  model = float8(k=4096, n=1032, **how)
  values = feeds(model, np.random.default_rng(0))
  check(model, 3e-3, tmp_path, values)
  (own,) = OrtRun(Gpu(H200), model.SerializeToString(), values).results().values()
  own, expected = own.astype(float), meant(model, values)
  assert np.linalg.norm(own - expected) <= 3e-3 * np.linalg.norm(expected)
