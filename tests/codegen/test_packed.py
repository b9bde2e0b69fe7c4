"""Integers of few bits on the device: all values, all zero points, both orders, bit for bit."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.emulator import run_kernel
from mirage_onnx.ir import DType
from mirage_onnx.ir.dtype import packed
from mirage_onnx.target import H200

EIGHTS = {DType.Q2: 8, DType.Q4: 4, DType.Q8: 2, DType.S4: 4, DType.S8: 2, DType.P4M3: 2, DType.P5M2: 2}
HALF = {"F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
APART = [0, 4, 1, 5, 2, 6, 3, 7]

#: Thread i widens lane i of the integers, with the scale and the zero point at i.
TEXT = """#include "ptx.cuh"
#include "vector.cuh"
#include "fragment.cuh"
#include "numeric.cuh"
#include "packed.cuh"
template <class T, class L>
PTX_DEVICE Eight<T> whole(const L& lane, int part, unsigned short, unsigned zero) {{
  return integers8_apart<T>(lane, part, zero);
}}
PTX_KERNEL(256) k(const unsigned char* __restrict__ q, const unsigned short* __restrict__ s,
    const unsigned char* __restrict__ z, unsigned short* __restrict__ y, float* __restrict__ f) {{
  const int i = ptx::block_x() * 256 + ptx::thread();
  const Lane<{tag}, {eights}> lane = load_lane<{tag}, {eights}, Path::kConst>(q + i * 16);
  const unsigned short scale = load_bits<{half}, Path::kConst>(s + i);
  const unsigned char zero = load_packed<{tag}, Path::kConst>(z, i);
  for (int u = 0; u < {eights}; ++u) {{
    ptx::st_v4(y + (i * {eights} + u) * 8, {call}(lane, u, scale, zero).v);
    float v[8];
    unpack8(lane, u, v);
    for (int j = 0; j < 8; ++j) ptx::st_f32(f + (i * {eights} + u) * 8 + j, v[j]);
  }}
}}
"""


def kernel(dtype, half, apart, whole=False):
  tag, eights = dtype.upper(), EIGHTS[dtype]
  call = f"scaled8_apart<{half}>" if apart else f"scaled8<{half}, {tag}>"
  call = f"whole<{half}>" if whole else call
  text = TEXT.format(tag=tag, eights=eights, half=half, call=call)
  return KernelSource("k", text, (1, 1, 1), 256, 1, 0, ("q", "s", "z", "y", "f"), False)


CASES = [
  (d, h, a) for d in EIGHTS if not d.is_float8 for h in HALF for a in (False, True) if d.bits == 4 or not a
]


@pytest.mark.parametrize(
  ("dtype", "half", "apart", "whole"),
  [*((*c, False) for c in CASES), *((d, h, True, True) for d in (DType.Q4, DType.S4) for h in HALF)],
)
def test_widened(dtype, half, apart, whole, rng):
  low, high = dtype.integers
  each = 8 * EIGHTS[dtype]
  # 256 lanes: every integer with every zero point of 4 bits, and many of 8.
  q = rng.integers(low, high + 1, (256, each))
  q[:, : min(each, 16)] = np.arange(256 * min(each, 16)).reshape(256, -1) % (high - low + 1) + low
  z = np.arange(256) % (high - low + 1) + low
  scale = rng.standard_normal(256) * 2.0 ** rng.integers(-12, 6, 256)
  scale[:3] = 0.0, 2.0**-24, -1.0
  scale = scale.astype(HALF[half])
  tensors = {
    "q": packed(q, dtype), "s": scale.view(np.uint16), "z": packed(z, dtype),
    "y": np.full((256, each), 0xFFFF, np.uint16), "f": np.full((256, each), np.nan, np.float32),
  }  # fmt: skip
  run_kernel(kernel(dtype, half, apart, whole), tensors)
  if whole:  # the scale comes later
    scale = np.ones_like(scale)
  # Exact in float64; fp32 holds it, so bf16 is rounded once.
  want = ((q - z[:, None]) * scale[:, None].astype(np.float64)).astype(HALF[half])
  got = tensors["y"].view(HALF[half]).reshape(256, -1, 8)
  if apart:
    got = got[..., np.argsort(APART)]
  np.testing.assert_array_equal(got.reshape(256, -1), want)
  np.testing.assert_array_equal(tensors["f"], q)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize(("dtype", "half", "apart"), [*CASES, (DType.P4M3, "F16", False)])
def test_compiles(dtype, half, apart, arch):
  cubin = compile_cubin(kernel(dtype, half, apart).text, replace(H200, arch=arch), name="k")
  assert cubin.stack_bytes == cubin.spill_bytes == 0


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("dtype", [DType.P4M3, DType.P5M2])
def test_floats_of_8_bits(dtype, half, rng):
  """All of them, times scales, rounded once; what is no number stays so."""
  q = np.resize(np.arange(256, dtype=np.uint8), (256, 16)) ^ (np.arange(256, dtype=np.uint8)[:, None] & 0xF0)
  values = q.view(dtype.numpy).astype(np.float32)
  scale = (rng.standard_normal(256) * 2.0 ** rng.integers(-6, 2, 256)).astype(HALF[half])
  tensors = {
    "q": q.copy(), "s": scale.view(np.uint16), "z": np.zeros(256, np.uint8),
    "y": np.full((256, 16), 0xFFFF, np.uint16), "f": np.full((256, 16), np.nan, np.float32),
  }  # fmt: skip
  run_kernel(kernel(dtype, half, False), tensors)
  np.testing.assert_array_equal(tensors["f"], values)
  with np.errstate(over="ignore", invalid="ignore"):
    want = (values * scale[:, None].astype(np.float32)).astype(HALF[half])
  np.testing.assert_array_equal(tensors["y"].view(HALF[half]).astype(float), want.astype(float))


@pytest.mark.parametrize("half", HALF)
def test_the_other_operand(half, rng):
  text = (
    TEXT.split("PTX_KERNEL")[0]
    + f"""PTX_KERNEL(32) k(
    const unsigned short* __restrict__ x, unsigned short* __restrict__ y, unsigned short* __restrict__ p) {{
  const int i = ptx::thread();
  const Eight<{half}> e = load8<{half}, Path::kConst>(x + 8 * i);
  float v[8];
  unpack8(e, v);
  ptx::st_v4(y + 8 * i, apart(e).v);
  ptx::st_v4(p + 8 * i, pack8_apart<{half}>(v).v);
}}
"""
  )
  x = rng.standard_normal((32, 8)).astype(HALF[half]).view(np.uint16)
  tensors = {"x": x, "y": np.zeros((32, 8), np.uint16), "p": np.zeros((32, 8), np.uint16)}
  run_kernel(KernelSource("k", text, (1, 1, 1), 32, 1, 0, ("x", "y", "p"), False), tensors)
  np.testing.assert_array_equal(tensors["y"], x[:, APART])
  np.testing.assert_array_equal(tensors["p"], x[:, APART])
