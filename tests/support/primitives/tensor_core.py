"""Hopper's tensor core in integers, and data that tells ways of adding apart.

The PTX ISA leaves the order of additions of ``mma`` open; this is fitted to an H200
(docs/emulator.md). Published models of the same chip: arXiv 2511.10909 and 2512.07004.
"""

import os

import numpy as np

FRACTION = 25
LEAST_EXPONENT = -133
#: Of each kind of data; more of them are a longer search for a difference.
TILES = int(os.environ.get("MMA_TILES", "24"))


def split(x):
  """Sign and significand as integers, exponent, and the significand's fraction bits.

  Zeros have a very low exponent. fp32 operands are cut to tf32 by who calls this.
  """
  bits, exponent_bits = {2: (10, 5), 4: (23, 8)}[x.dtype.itemsize]
  if x.dtype.name == "bfloat16":
    bits, exponent_bits = 7, 8
  raw = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").astype(np.int64)
  field = raw >> bits & ((1 << exponent_bits) - 1)
  fraction = raw & ((1 << bits) - 1)
  significand = np.where(field > 0, fraction | 1 << bits, fraction)
  exponent = np.maximum(field, 1) - ((1 << (exponent_bits - 1)) - 1)
  negative = raw >> (bits + exponent_bits) & 1
  exponent = np.where(significand == 0, -4096, exponent)
  return np.where(negative, -significand, significand), exponent, bits


def cut_to(significand, shift):
  magnitude = np.abs(significand)
  left = magnitude << np.clip(shift, 0, 62)
  right = magnitude >> np.clip(-shift, 0, 62)
  return np.sign(significand) * np.where(shift >= 0, left, right)


def cut_to_f32(total, unit):
  length = np.zeros_like(total)  # bits of |total|
  rest = np.abs(total)
  while rest.any():
    length += rest > 0
    rest >>= 1
  drop = np.maximum(length - 24, -149 - unit)  # of the low bits, so many go
  kept = cut_to(total, -drop)
  with np.errstate(over="ignore"):
    return np.ldexp(kept.astype(np.float64), (unit + drop).astype(np.int32)).astype(np.float32)


def tf32(x):
  """What a tensor core sees of an fp32 operand: the low 13 bits are ignored."""
  return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def multiply_add(a, b, c):
  """``c + a b`` of tiles [n, 16, k], [n, k, 8], [n, 16, 8]; fp32 operands as tf32."""
  if a.dtype == np.float32:
    a, b = tf32(a), tf32(b)
  (sa, ea, bits), (sb, eb, _) = split(a), split(b)
  sc, ec, c_bits = split(c)
  significand = sa[:, :, :, None] * sb[:, None]  # [n, 16, k, 8]
  exponent = ea[:, :, :, None] + eb[:, None]
  largest = np.maximum(np.maximum(exponent.max(2), ec), LEAST_EXPONENT)
  unit = largest - FRACTION
  terms = cut_to(significand, exponent - 2 * bits - unit[:, :, None])
  total = terms.sum(2) + cut_to(sc, ec - c_bits - unit)
  found = cut_to_f32(total, unit)
  with np.errstate(invalid="ignore", over="ignore"):  # where not all is finite: IEEE 754, and one NaN
    wide = c.astype(np.float64) + np.matmul(a.astype(np.float64), b.astype(np.float64))
    found = np.where(np.isfinite(wide), found, wide.astype(np.float32))
  return np.where(np.isnan(wide), np.array(0x7FFFFFFF, np.uint32).view(np.float32), found)


def largest_partial_sum(a, b, c):
  """A bound on every partial sum in any order: |c| + sum |a b|, in float64."""
  if a.dtype == np.float32:
    a, b = tf32(a), tf32(b)
  return np.abs(c.astype(np.float64)) + np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))


# ---- data: (generator, element type, k) -> tiles of A, B, C


def _shapes(k):
  return (TILES, 16, k), (TILES, k, 8), (TILES, 16, 8)


def _normal(rng, dtype, k):
  a, b, c = (rng.standard_normal(s) for s in _shapes(k))
  return a.astype(dtype), b.astype(dtype), c.astype(np.float32)


def _integers(rng, dtype, k):
  a, b, c = (rng.integers(-9, 10, s) for s in _shapes(k))
  return a.astype(dtype), b.astype(dtype), c.astype(np.float32)


def _scaled(rng, shape, spread):
  return np.ldexp(rng.standard_normal(shape), rng.integers(-spread, spread + 1, shape))


def _wide(rng, dtype, k):
  """Exponents over a wide range, also across the 25 bits that are kept."""
  a, b, c = (_scaled(rng, s, 12) for s in _shapes(k))
  return a.astype(dtype), b.astype(dtype), c.astype(np.float32)


def _cancelling(rng, dtype, k):
  """Products in pairs of opposite sign, and an accumulator far below or close to them."""
  a, b, c = _wide(rng, dtype, k)
  a[:, :, 1::2], b[:, 1::2] = -a[:, :, ::2], b[:, ::2]
  a[:, :, -1] = np.asarray(rng.standard_normal(a[:, :, -1].shape) * 2.0**-10).astype(dtype)
  c = np.ldexp(c, rng.integers(-30, 3, c.shape)).astype(np.float32)
  return a, b, c


def _sparse(rng, dtype, k):
  """Many zeros beside large factors: a zero's exponent must not count."""
  a, b, c = (_scaled(rng, s, 10) for s in _shapes(k))
  for x in (a, b, c):
    x[rng.random(x.shape) < 0.6] = 0.0
    x[rng.random(x.shape) < 0.2] *= -1.0  # some zeros are negative
  return a.astype(dtype), b.astype(dtype), (c * 2.0**-15).astype(np.float32)


def _same_sign(rng, dtype, k):
  """Nothing cancels, and full significands: the most that cutting can lose."""
  a, b, c = (2.0 - 2.0**-7 * rng.random(s) for s in _shapes(k))
  sign = np.where(rng.random((TILES, 1, 1)) < 0.5, -1.0, 1.0)
  scale = np.ldexp(1.0, rng.integers(-3, 4, (TILES, 16, 1)))
  return (a * scale * sign).astype(dtype), b.astype(dtype), (c * sign).astype(np.float32)


def _subnormal(rng, dtype, k):
  tiny = 2.0**-16 if dtype == np.float16 else 2.0**-127
  a, b, c = (rng.standard_normal(s) for s in _shapes(k))
  a = a * tiny
  b[::2] *= 1.0 if dtype == np.float16 else 2.0**-4
  c = c * (2.0**-20 if dtype == np.float16 else 2.0**-128)
  return a.astype(dtype), b.astype(dtype), c.astype(np.float32)


def _vanishing(rng, dtype, k):
  """Products and sums around and below the least fp32 number, of both signs."""
  tiny = 2.0**-24 if dtype == np.float16 else 2.0**-75
  a, b, c = (rng.standard_normal(s) for s in _shapes(k))
  c = np.where(rng.random(c.shape) < 0.5, 0.0, np.rint(c)) * 2.0**-149
  return (a * tiny).astype(dtype), (b * tiny).astype(dtype), c.astype(np.float32)


def _any_bits(rng, dtype, k):
  """Random bits, a few of them infinite or NaN; results overflow."""
  kept = []
  for s, d in zip(_shapes(k), (dtype, dtype, np.dtype(np.float32)), strict=True):
    bits = rng.integers(0, 1 << (8 * d.itemsize), s, dtype=f"u{d.itemsize}")
    x = bits.view(d)
    bad = ~np.isfinite(x.astype(np.float32)) & (rng.random(s) < 0.9)
    kept.append(np.where(bad, np.ones((), d), x))
  return kept[0], kept[1], kept[2]


def _specials(rng, dtype, k):
  made = list(_normal(rng, dtype, k))
  for x in made:
    for value in (np.inf, -np.inf, np.nan, 0.0, -0.0):
      x[rng.random(x.shape) < 0.02] = value
  return made[0], made[1], made[2]


DATA = {
  "integers": _integers, "normal": _normal, "wide": _wide, "cancelling": _cancelling,
  "sparse": _sparse, "same sign": _same_sign, "subnormal": _subnormal,
  "vanishing": _vanishing, "any bits": _any_bits, "specials": _specials,
}  # fmt: skip
