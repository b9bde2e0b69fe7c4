"""Rounding by bits, which array modules without bf16 take, is the rounding of ml_dtypes."""

import numpy as np

from mirage_onnx.ir.dtype import DType, _round_to_bf16, round_to

HARD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, 1e39, -1e-45, 1 + 2**-8, 1 + 3 * 2**-8,
        1 + 2**-8 + 2**-40, 1 + 2**-8 - 2**-40]  # fmt: skip


def test_bf16_by_bits(rng):
  x = np.concatenate([rng.standard_normal(20000) * 2.0 ** rng.integers(-140, 130, 20000), HARD])
  # A NaN whose payload the carry would clear.
  x = np.concatenate([x, np.array([0x7FF0000020000000], dtype=np.uint64).view(np.float64)])
  with np.errstate(all="ignore"):
    got = _round_to_bf16(x)
  want = round_to(x, DType.BF16)
  assert np.array_equal(got, want, equal_nan=True)
  assert np.array_equal(np.signbit(got), np.signbit(want))


def test_a_number_is_rounded_as_an_array():
  """What reduces to one number is one of numpy, no array."""
  x = 1 + 2**-8 + 2**-40
  for dtype in (DType.F16, DType.BF16, DType.F32):
    assert round_to(np.float64(x), dtype) == round_to(np.array([x]), dtype)[0]
