"""Approximate functions beside the right result, as a device has them: no kernel may rest on exact ones."""

import numpy as np
from banded import banded, banded_text
from tiled_kernels import near

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import compile_kernels
from tests.codegen.tiled.test_warpgroup import RUN, attention

TEXT = """#include "ptx.cuh"
PTX_KERNEL(128) k(const float* __restrict__ x, float* __restrict__ y) {
  const int i = ptx::thread();
  const float v = x[i];
  y[i] = ptx::ex2(v);
  y[128 + i] = expf(v);
  y[256 + i] = ptx::rsqrt(v * v + 0.5f);
  y[384 + i] = tanhf(v);
  y[512 + i] = erff(v);
  y[640 + i] = logf(v * v + 0.5f);
  // Rests on 2^v 2^-v being 1: so it is here where v is whole, and 2^v, too; not on a device.
  y[768 + i] = ptx::ex2(v) * ptx::ex2(-v) == 1.0f ? 1.0f : 0.0f;
}
"""


def run(x, ulps):
  source = KernelSource("k", TEXT, (1, 1, 1), 128, 1, 0, ("x", "y"), False)
  y = np.full(896, np.nan, np.float32)
  compile_kernels([source], ulps=ulps).run({"x": x, "y": y})
  return y.reshape(7, 128)


def test_as_far_as_is_asked_and_both_ways():
  x = np.random.default_rng(0).standard_normal(128).astype(np.float32) * 3
  x[0] = 0
  exact, beside = run(x, 0), run(x, 2)
  off = (beside.view(np.int32) - exact.view(np.int32))[:6]
  assert np.abs(off).max() == 2
  assert all(len(set(row)) == 5 for row in off)
  assert (beside[:2, 0] == 1).all()
  assert (run(x, 2) == beside).all()


def test_what_rests_on_exact_functions_is_noticed():
  x = np.arange(-64, 64, dtype=np.float32)
  assert (run(x, 0)[6] == 1).all()
  assert (run(x, 2)[6] == 1).sum() < 64


def test_kernels_rest_on_none():
  cases = [RUN["norm"], RUN["gelu"], RUN["gated"], attention(64, 64, 2, a1=200, a3=77)]
  cases += [attention(64, 64, 3, a1=256, a3=64), banded(banded_text("..0 else 0"), 64, 64, 2, a1=264, a3=200)]
  near(cases, bound=6e-3, ulps=2)
