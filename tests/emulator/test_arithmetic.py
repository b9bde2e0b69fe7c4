"""Conversions, arithmetic and matrix products of the emulator against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.kernels import Run, kernel, normal

BF16 = np.dtype(ml_dtypes.bfloat16)

MMA = """
    PTX_KERNEL(32) mma_{t}(const unsigned short* __restrict__ a, const unsigned short* b,
                           float* d) {{
      int g = ptx::lane() / 4, t = ptx::lane() % 4;
      float acc[4] = {{1.0f, 2.0f, 3.0f, 4.0f}};
      unsigned r[6];
      for (int i = 0; i < 4; ++i)
        r[i] = ptx::ld_nc_u32(a + (g + (i & 1) * 8) * 16 + 2 * t + (i >> 1) * 8);
      for (int i = 0; i < 2; ++i) {{
        unsigned lo = ptx::ld_nc_u16(b + (2 * t + i * 8) * 8 + g);
        unsigned hi = ptx::ld_nc_u16(b + (2 * t + i * 8 + 1) * 8 + g);
        r[4 + i] = lo | hi << 16;
      }}
      ptx::mma_16816_{t}(acc, r[0], r[1], r[2], r[3], r[4], r[5]);
      for (int i = 0; i < 4; ++i)
        ptx::st_f32(d + (g + (i >> 1) * 8) * 8 + 2 * t + (i & 1), acc[i]);
    }}"""

KERNELS = [
    kernel("mma_f16", MMA.format(t="f16"), "a b d"),
    kernel("mma_bf16", MMA.format(t="bf16"), "a b d"),
    kernel(
        "widen",
        """
    PTX_KERNEL(256) widen(const unsigned short* x, float* f16, float* bf16, float* pairs) {
      int i = ptx::block_x() * 256 + ptx::thread();
      ptx::st_f32(f16 + i, ptx::f16_to_f32(ptx::ld_u16(x + i)));
      ptx::st_f32(bf16 + i, ptx::bf16_to_f32(ptx::ld_u16(x + i)));
      if (i % 2 == 0) {
        float v[4];
        ptx::unpack_f16(ptx::ld_u32(x + i), v[0], v[1]);
        ptx::unpack_bf16(ptx::ld_u32(x + i), v[2], v[3]);
        for (int k = 0; k < 4; ++k) ptx::st_f32(pairs + i * 2 + k, v[k]);
      }
    }""",
        "x f16 bf16 pairs",
        grid=(256, 1, 1),
        block=256,
    ),
    kernel(
        "narrow",
        """
    PTX_KERNEL(256) narrow(const float* x, unsigned short* f16, unsigned short* bf16,
                           unsigned* pairs) {
      for (int i = ptx::block_x() * 256 + ptx::thread(); i < 1 << 20; i += 64 * 256) {
        float v = ptx::ld_f32(x + i);
        ptx::st_u16(f16 + i, ptx::f32_to_f16(v));
        ptx::st_u16(bf16 + i, ptx::f32_to_bf16(v));
        if (i % 2 == 0) {
          float w = ptx::ld_f32(x + i + 1);
          ptx::st_v2(pairs + i, {ptx::pack_f16(v, w), ptx::pack_bf16(v, w)});
        }
      }
    }""",
        "x f16 bf16 pairs",
        grid=(64, 1, 1),
        block=256,
    ),
    kernel(
        "arithmetic",
        """
    PTX_KERNEL(32) arithmetic(const float* x, float* y) {
      float v = ptx::ld_nc_f32(x + ptx::lane()), u = ptx::ld_nc_f32(x + 31 - ptx::lane());
      float r[8] = {ptx::rcp(v), ptx::rsqrt(v), ptx::ex2(v), ptx::max_nan(v, u),
                    ptx::min_nan(v, u), expf(v), tanhf(v), erff(v)};
      for (int i = 0; i < 8; ++i) ptx::st_f32(y + i * 32 + ptx::lane(), r[i]);
    }""",
        "x y",
    ),
]


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=["f16", "bf16"])
def test_mma(run: Run, dtype: np.dtype) -> None:
    a, b = normal(16, 16).astype(dtype), normal(16, 8, seed=1).astype(dtype)
    d = np.zeros((16, 8), np.float32)
    run("mma_f16" if dtype == np.float16 else "mma_bf16", a=a, b=b, d=d)
    want = np.empty((16, 8), np.float32)
    want[:8, 0::2], want[:8, 1::2], want[8:, 0::2], want[8:, 1::2] = 1, 2, 3, 4
    for k in range(16):  # the documented order: products exact, sums rounded, k ascending
        want += np.outer(a[:, k].astype(np.float32), b[k].astype(np.float32))
    np.testing.assert_array_equal(d, want)


def test_widening_is_exact_for_every_half(run: Run) -> None:
    x = np.arange(65536, dtype=np.uint16)
    f16, bf16 = np.zeros(65536, np.float32), np.zeros(65536, np.float32)
    pairs = np.zeros((32768, 2, 2), np.float32)
    run("widen", x=x, f16=f16, bf16=bf16, pairs=pairs)
    want = x.view(np.float16).astype(np.float32)
    nan = np.isnan(want)
    np.testing.assert_array_equal(f16.view(np.uint32)[~nan], want.view(np.uint32)[~nan])
    assert set(f16.view(np.uint32)[nan]) == {0x7FFFFFFF}
    np.testing.assert_array_equal(bf16.view(np.uint32), x.astype(np.uint32) << 16)
    np.testing.assert_array_equal(pairs[:, 0].view(np.uint32).ravel(), f16.view(np.uint32))
    np.testing.assert_array_equal(pairs[:, 1].view(np.uint32).ravel(), bf16.view(np.uint32))


def hard_floats() -> np.ndarray:
    """2^20 floats: random bits, every value between two halves, their neighbours, and specials."""
    rng = np.random.default_rng(2)
    halves = np.arange(0x7C01, dtype=np.uint16).view(np.float16).astype(np.float64)
    halves[-1] = 65536.0  # where infinity would be
    ties = ((halves[:-1] + halves[1:]) / 2).astype(np.float32).view(np.uint32)
    bties = (np.arange(0x7F80, dtype=np.uint32) << 16) + 0x8000
    near = np.concatenate([t + np.uint32(d) for t in (ties, bties) for d in (0, 1, 2**32 - 1)])
    special = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000])
    bits = np.concatenate([near, special]).astype(np.uint32)
    bits = np.concatenate([bits, bits | 0x80000000])
    rest = rng.integers(0, 2**32, 2**20 - bits.size, dtype=np.uint32)
    middle = rng.integers(0x33000000, 0x47900000, rest.size // 2, dtype=np.uint32)
    rest[: middle.size] = middle | (rest[: middle.size] & 0x80000000)
    return np.concatenate([bits, rest]).view(np.float32)


def test_narrowing_rounds_like_cvt_rn(run: Run) -> None:
    x = hard_floats()
    f16, bf16 = np.zeros(x.size, np.uint16), np.zeros(x.size, np.uint16)
    pairs = np.zeros((x.size // 2, 2), np.uint32)
    run("narrow", x=x, f16=f16, bf16=bf16, pairs=pairs)
    with np.errstate(over="ignore", invalid="ignore"):
        wants = {"f16": x.astype(np.float16), "bf16": x.astype(BF16)}
    for got, want, pair in ((f16, wants["f16"], 0), (bf16, wants["bf16"], 1)):
        bits = np.where(np.isnan(x), np.uint16(0x7FFF), want.view(np.uint16))
        np.testing.assert_array_equal(got, bits)
        np.testing.assert_array_equal(pairs[:, pair].copy().view(np.uint16), bits)


def test_arithmetic(run: Run) -> None:
    x = normal(32)
    x[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -140.0, 130.0]
    x[31], x[30] = -0.0, 0.0
    y = np.zeros((8, 32), np.float32)
    run("arithmetic", x=x, y=y)
    wide, other = x.astype(np.float64), x[::-1]
    with np.errstate(all="ignore"):
        want = [1 / wide, 1 / np.sqrt(wide), np.exp2(wide)]
        want += [np.maximum(x, other), np.minimum(x, other), np.exp(wide), np.tanh(wide)]
        ex2 = want[2].astype(np.float32)
        want[2] = np.where(np.abs(ex2) < 2.0**-126, np.float32(0), ex2)
        for got, ref in zip(y, want, strict=False):
            np.testing.assert_allclose(got, ref.astype(np.float32), rtol=2e-7)
    assert np.signbit(y[3, 0]) == 0 and np.signbit(y[4, 0]) == 1  # max, min of +0 and -0
