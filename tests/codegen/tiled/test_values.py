"""Functions as near as 16 bits need, in kernels with wgmma."""

import math

import numpy as np

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import compile_kernels


def test_functions_as_near_as_16_bits_need():
  """erf within 1e-7 everywhere, exp relatively; beyond the ends their limits."""
  text = """#include "ptx.cuh"
#include "vector.cuh"
#include "ptx_warpgroup.cuh"
#include "warpgroup.cuh"
PTX_KERNEL(128) near(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ z) {
  for (int i = ptx::thread(); i < 8192; i += 128) {
    y[i] = erf_near(x[i]);
    z[i] = exp_by_two(x[i]);
  }
}
"""
  x = np.concatenate([np.linspace(-7, 7, 4096), -np.geomspace(1e-30, 87, 4090)]).astype(np.float32)
  x = np.concatenate([x, np.array([0, -0.0, 1e30, -1e30, np.inf, -np.inf], np.float32)])
  y, z = np.full_like(x, np.nan), np.full_like(x, np.nan)
  compile_kernels([KernelSource("near", text, (1, 1, 1), 128, 1, 0, ("x", "y", "z"), False)]).run(
    {"x": x, "y": y, "z": z}
  )
  wide = x.astype(np.float64)
  assert np.abs(y - np.vectorize(math.erf)(wide)).max() < 1.01e-7
  with np.errstate(over="ignore"):
    want = np.exp(wide)
  finite = (np.abs(wide) < 87.3) & (wide <= 7)
  assert (np.abs(z[finite] / want[finite] - 1) <= 2.0**-22 * (1 + np.abs(wide[finite]))).all()
  assert (z[-6:] == [1, 1, np.inf, 0, np.inf, 0]).all()


def test_a_value_times_its_normal_distribution():
  """Within a part in 11000 of either tail (f16 rounds six times that); NaN of NaN, infinity of infinity."""
  text = """#include "ptx.cuh"
#include "vector.cuh"
#include "ptx_warpgroup.cuh"
#include "warpgroup.cuh"
PTX_KERNEL(128) near(const float* __restrict__ x, float* __restrict__ y) {
  for (int i = ptx::thread(); i < 8192; i += 128) {
    y[i] = times_normal(x[i]);
  }
}
"""
  x = np.concatenate([np.linspace(-9, 9, 8186), [1e30, -1e30, np.inf, -np.inf, np.nan, 0.0]]).astype(
    np.float32
  )
  y = np.full_like(x, 7.0)
  compile_kernels([KernelSource("near", text, (1, 1, 1), 128, 1, 0, ("x", "y"), False)]).run({"x": x, "y": y})
  wide, found = x[:8186].astype(np.float64), y[:8186].astype(np.float64)
  tail = np.abs(wide) * np.vectorize(math.erfc)(np.abs(wide) / math.sqrt(2)) / 2
  off = np.abs(found - (np.maximum(wide, 0) - tail))
  assert (off <= 8.6e-5 * tail + 2.0**-23 * np.maximum(wide, 0) + 6.1e-9).all()
  assert y[8186] == x[8186] and y[8188] == np.inf and max(abs(y[8187]), abs(y[8189])) < 6.1e-9
  assert np.isnan(y[-2]) and y[-1] == 0


def test_exponentials_with_a_shared_part():
  """exp(x + y) and exp(c x + y) of all x are off by one factor, as y is rounded, and by what exp(x) is."""
  text = """#include "ptx.cuh"
#include "vector.cuh"
#include "ptx_warpgroup.cuh"
#include "warpgroup.cuh"
PTX_KERNEL(128) near(const float* __restrict__ x, float* __restrict__ y, float* __restrict__ z) {
  for (int i = ptx::thread(); i < 4096; i += 128) {
    y[i] = exp_by_two(x[i], -77.7f);
    z[i] = exp_by_two(x[i], 0.08837890625f, -77.7f);
  }
}
"""
  x = np.linspace(0, 77, 4096).astype(np.float32)
  y, z = np.full_like(x, np.nan), np.full_like(x, np.nan)
  compile_kernels([KernelSource("near", text, (1, 1, 1), 128, 1, 0, ("x", "y", "z"), False)]).run(
    {"x": x, "y": y, "z": z}
  )
  for found, factor in ((y, 1.0), (z, 0.08837890625)):
    exponent = factor * x.astype(np.float64) - np.float32(77.7)
    off = found / np.exp(exponent) - 1
    shared = np.median(off)
    assert abs(shared) < 77.7 * 2.0**-23
    assert (np.abs(off - shared) <= 2.0**-23 * (2 + np.abs(factor * x) + np.abs(exponent))).all()
