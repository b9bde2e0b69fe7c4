"""Steps as text: what a vote of the warp leaves out."""

import numpy as np

from mirage_onnx.emulator import compile_kernels
from tests.codegen.tiled.test_warpgroup import attention, emit


def test_accumulators_whose_factors_are_1_are_left_alone():
  """Scores that only fall: the first tile has the maximum, and all factors are 1 from then on."""
  text = emit(attention(64, 64, 2, a1=256, a3=64)).text
  assert text.count("ptx::all(same") == 1
  c = attention(64, 64, 3, a0=1, a1=256, a3=64)
  rng = np.random.default_rng(5)
  for order in (1, -1):
    q, k, v = (rng.standard_normal((1, n, 64)).astype(np.float16) for n in (64, 256, 256))
    q, k = np.abs(q) / 8, np.abs(k) * np.linspace(4, 0, 256)[::order, None].astype(np.float16)
    y = np.full((1, 64, 64), np.nan, np.float16)
    compile_kernels([emit(c)]).run({"i0": k, "i1": q, "i2": v, "o0": y})
    s = q[0].astype(float) @ k[0].astype(float).T
    p = np.exp(s - s.max(1, keepdims=True))
    want = p @ v[0].astype(float) / p.sum(1, keepdims=True)
    assert np.abs(y[0] - want).max() < 4e-3 * np.abs(want).max()
