"""Conversions and arithmetic (PTX ISA: cvt, rcp.rn, max, min), and approximations."""

import ml_dtypes
import numpy as np
from scipy import special

from tests.support.primitives.case import F32, TEXTS, U16, U32, case

BF16 = np.dtype(ml_dtypes.bfloat16)
COUNT = 2**18
NAN = np.array(0x7FFFFFFF, U32).view(F32)  # the one that the device makes


def hard_floats(rng):
  """COUNT floats: ties between 16-bit values and their neighbours, specials, random bits."""
  halves = np.arange(0x7C01, dtype=U16).view(np.float16).astype(np.float64)
  halves[-1] = 65536.0  # where infinity would be
  ties = ((halves[:-1] + halves[1:]) / 2).astype(F32).view(U32)[::3]
  bf16_ties = ((np.arange(0x7F80, dtype=U32) << 16) + 0x8000)[::3]
  tf32_ties = (rng.integers(0, 0x7F800, 8000, dtype=U32) << 13 >> 1 << 1) | 0x1000
  near = [t + U32(d) for t in (ties, bf16_ties, tf32_ties) for d in (0, 1, 2**32 - 1)]
  special_bits = [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000]
  bits = np.concatenate([*near, np.array(special_bits, U32)])
  bits = np.concatenate([bits, bits | U32(0x80000000)])
  rest = rng.integers(0, 2**32, COUNT - bits.size, dtype=U32)
  middle = rng.integers(0x33000000, 0x47900000, rest.size // 2, dtype=U32)  # f16's range
  rest[: middle.size] = middle | (rest[: middle.size] & U32(0x80000000))
  return np.concatenate([bits, rest]).view(F32)


def _canonical(x):
  return np.where(np.isnan(x), NAN, x)


def _widen(given):
  bits = given["x"]
  f16 = _canonical(bits.view(np.float16).astype(F32))
  bf16 = (bits.astype(U32) << 16).view(F32)  # a move: NaN keep their bits
  pairs = np.stack([f16.reshape(-1, 2), bf16.reshape(-1, 2)], 1)
  return {"f16": f16, "bf16": bf16, "same": bits * U32(65537), "pairs": pairs}


def _narrow(given):
  x = given["x"]
  nan = np.isnan(x)
  with np.errstate(over="ignore", invalid="ignore"):
    f16 = np.where(nan, U16(0x7FFF), x.astype(np.float16).view(U16))
    bf16 = np.where(nan, U16(0x7FFF), x.astype(BF16).view(U16))
  # Half of the last place away from zero, then cut: 2^13 fp32 units are one of tf32. The PTX ISA
  # does not say what becomes of NaN: the H200 cuts it too, which turns some into infinity.
  tf32 = np.where(np.isfinite(x), x.view(U32) + U32(0x1000), x.view(U32)) & U32(0xFFFFE000)
  pairs = np.stack([f16.view(U32), bf16.view(U32)], 1)
  return {"f16": f16, "bf16": bf16, "tf32": tf32, "pairs": pairs}


def _draw_exact(rng):
  x = hard_floats(rng)
  x[:4], x[-4:] = [0.0, -0.0, 0.0, -0.0], [-0.0, 0.0, 0.0, -0.0]  # max and min of zeros
  return {"x": x}


def _exact(given):
  x, other = given["x"], given["x"][::-1]
  with np.errstate(all="ignore"):
    rcp = (1 / x.astype(np.float64)).astype(F32)  # rounds once: 53 >= 2 * 24 + 2 bits
    largest, least = np.maximum(x, other), np.minimum(x, other)
  equal = x == other  # the greater zero is the positive one
  largest = np.where(equal & ~np.signbit(x), x, np.where(equal, other, largest))
  least = np.where(equal & np.signbit(x), x, np.where(equal, other, least))
  return {"rcp": _canonical(rcp), "max": _canonical(largest), "min": _canonical(least)}


def _draw_pairs(rng):
  """Pairs of 16-bit numbers: all there are, against others; ``y`` of those that bf16 has room for."""
  x = rng.permutation(np.arange(65536, dtype=U16))
  return {
    "x": x,
    "y": rng.integers(0, 65536, 65536, dtype=U16),
    "z": rng.integers(0, 65536, 65536, dtype=U16),
  }


def _odd(v):
  """fp32 numbers that are odd where they are not exact, so that rounding them rounds ``v`` once."""
  near = v.astype(F32)
  large = np.abs(near.astype(np.float64)) > np.abs(v)
  cut = np.where(large, np.nextafter(near, F32(0)), near)
  return np.where(near == v, near, (cut.view(U32) | U32(1)).view(F32))


def _sum(a, b):
  """a + b in float64, odd where it is not exact: a small ``b`` still says which way a tie of ``a`` rounds."""
  s = a + b
  more = s - a
  lost = (a - (s - more)) + (b - more)  # Knuth's two-sum: exact
  cut = np.where((lost != 0) & ((lost < 0) != (s < 0)), np.nextafter(s, 0.0), s)
  odd = (cut.view(np.uint64) | np.uint64(1)).view(np.float64)
  return np.where(np.isfinite(lost) & (lost != 0), odd, s)


def _pairs(given):
  """Exact in float64 but for the last sum, which keeps that it was not."""
  found = {}
  for name, dtype in (("f16", np.float16), ("bf16", BF16)):
    with np.errstate(all="ignore"):
      x, y, z = (given[k].view(dtype).astype(np.float64) for k in "xyz")
      values = {"sub": x - y, "mul": x * y, "fma": _sum(x * y, z)}
      for op, v in values.items():
        once = v if dtype is np.float16 else _odd(v)  # ml_dtypes goes by fp32
        found[f"{op}_{name}"] = np.where(np.isnan(v), U16(0x7FFF), once.astype(dtype).view(U16)).astype(U16)
  pairs = [given[k].reshape(-1, 2) for k in "xy"]
  halves = [np.stack([p[:, i] for p in pairs], 1).reshape(-1) for i in (0, 1)]
  kept = {
    "sub": found["sub_f16"],
    "mul": found["mul_f16"],
    "fma": found["fma_f16"],
    "fma_b": found["fma_bf16"],
  }
  a, b, c = (given[k].view(U32) for k in "xyz")
  words = {"both": (a & b) | c}
  for name, v in (("low_8", a), ("high_8", a >> 16)):
    words[name] = (v & 0xFF) | (v & 0xFF00) << 8 | (b & 0xFF) * U32(0x01000100)
  return kept | {"low": halves[0], "high": halves[1]} | {n: w.view(U16) for n, w in words.items()}


def _ex2(v):
  """2^v; subnormal results are zero (.ftz)."""
  return np.where(v < -126, 0.0, np.exp2(v))


#: function -> (its text, numpy in float64, least and greatest argument, ulps)
_APPROXIMATE = {
  "rsqrt": ("ptx::rsqrt(v)", lambda v: 1 / np.sqrt(v), (2e-38, 1e38), 2),
  "ex2": ("ptx::ex2(v)", _ex2, (-125.9, 127.9), 2),
  "expf": ("expf(v)", np.exp, (-86.0, 88.0), 2),
  "logf": ("logf(v)", np.log, (1e-37, 1e38), 1),
  "tanhf": ("tanhf(v)", np.tanh, (-12.0, 12.0), 2),
  "erff": ("erff(v)", special.erf, (-5.0, 5.0), 2),
  "sqrtf": ("sqrtf(v)", np.sqrt, (0.0, 1e38), 0),
}
_SPECIALS = np.array(
  [0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 1e-40, -1e-40, 200.0, -200.0, -130.0, 3e38], F32
)


def _approximate(name):
  text, function, (low, high), ulps = _APPROXIMATE[name]
  body = TEXTS["approximate"] % text

  def draw(rng):
    even = rng.uniform(low, high, 2**15)
    small = np.ldexp(rng.uniform(1, 2, 2**15), rng.integers(-20, 3, 2**15))
    x = np.concatenate([even, np.where(even < 0, -small, small)]).astype(F32)
    x[: _SPECIALS.size] = _SPECIALS
    return {"x": x}

  def reference(given):
    with np.errstate(all="ignore"):
      return {"y": function(given["x"].astype(np.float64)).astype(F32)}

  covers = name if text.startswith("ptx::") else ""
  return case(
    f"approximate_{name}", covers, body, draw=draw, outputs={"y": ((2**16,), F32)},
    reference=reference, grid=(32, 1, 1), block=256, ulps=ulps,
  )  # fmt: skip


_PAIRS_TEXT = """
  for (int i = ptx::block_x() * 256 + ptx::thread(); i < 32768; i += 32 * 256) {
    const unsigned a = ptx::ld_u32(x + 2 * i), b = ptx::ld_u32(y + 2 * i), c = ptx::ld_u32(z + 2 * i);
    ptx::st_u32(sub + 2 * i, ptx::sub_f16x2(a, b));
    ptx::st_u32(mul + 2 * i, ptx::mul_f16x2(a, b));
    ptx::st_u32(fma + 2 * i, ptx::fma_f16x2(a, b, c));
    ptx::st_u32(fma_b + 2 * i, ptx::fma_bf16x2(a, b, c));
    ptx::st_u32(low + 2 * i, ptx::low_halves(a, b));
    ptx::st_u32(high + 2 * i, ptx::high_halves(a, b));
    ptx::st_u32(both + 2 * i, ptx::and_or(a, b, c));
    ptx::st_u32(low_8 + 2 * i, ptx::low_bytes(a, b));
    ptx::st_u32(high_8 + 2 * i, ptx::high_bytes(a, b));
  }
"""
CASES = (
  case(
    "widen", "f16_to_f32 bf16_to_f32 unpack_f16 unpack_bf16 bits_to_f32 f32_to_bits",
    draw=lambda _: {"x": np.arange(65536, dtype=U16)}, reference=_widen,
    outputs={
      "f16": ((65536,), F32), "bf16": ((65536,), F32), "same": ((65536,), U32),
      "pairs": ((32768, 2, 2), F32),
    },
    grid=(32, 1, 1), block=256,
  ),
  case(
    "narrow", "f32_to_f16 f32_to_bf16 f32_to_tf32 pack_f16 pack_bf16",
    draw=lambda rng: {"x": hard_floats(rng)}, reference=_narrow,
    outputs={
      "f16": ((COUNT,), U16), "bf16": ((COUNT,), U16), "tf32": ((COUNT,), U32),
      "pairs": ((COUNT // 2, 2), U32),
    },
    grid=(32, 1, 1), block=256,
  ),
  case(
    "exact", "rcp max_nan min_nan", draw=_draw_exact, reference=_exact,
    outputs={"rcp": ((COUNT,), F32), "max": ((COUNT,), F32), "min": ((COUNT,), F32)},
    grid=(32, 1, 1), block=256,
  ),
  case(
    "pairs",
    "sub_f16x2 mul_f16x2 fma_f16x2 fma_bf16x2 low_halves high_halves and_or low_bytes high_bytes",
    _PAIRS_TEXT, draw=_draw_pairs, reference=_pairs,
    outputs=dict.fromkeys(
      ("sub", "mul", "fma", "fma_b", "low", "high", "both", "low_8", "high_8"), ((65536,), U16)
    ),
    grid=(32, 1, 1), block=256,
  ),
  *(_approximate(name) for name in _APPROXIMATE),
)  # fmt: skip
