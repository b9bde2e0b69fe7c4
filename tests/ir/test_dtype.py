"""Rounding by bits, which array modules without bf16 take, is the rounding of ml_dtypes."""

import numpy as np
import pytest

from mirage_onnx.ir.dtype import DType, _round_to_bf16, as_input, packed, round_to, unpacked

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


@pytest.mark.parametrize("dtype", [DType.P4M3, DType.P5M2])
def test_floats_of_8_bits(dtype, rng):
  data = np.arange(256, dtype=np.uint8)
  values = unpacked(data, dtype)
  np.testing.assert_array_equal(values, data.view(dtype.numpy).astype(np.float32))
  same = packed(values, dtype) == data
  assert same[np.isfinite(values)].all()
  assert np.nanmax(np.where(np.isinf(values), np.nan, values)) == dtype.integers[1]
  drawn = as_input(rng.standard_normal(4000) * 2.0**8, dtype)
  np.testing.assert_array_equal(drawn, round_to(drawn, DType.F32))
  assert 0.5 < drawn.std() < 2 and (drawn.astype(dtype.numpy) == drawn).all()


@pytest.mark.parametrize("dtype", [DType.Q2, DType.Q4, DType.Q8])
def test_packed_bytes_and_values(dtype, rng):
  data = rng.integers(0, 256, (5, 60), dtype=np.uint8)
  values = unpacked(data, dtype)
  low, high = dtype.integers
  assert (values.min(), values.max()) >= (low, low) and values.max() <= high
  assert dtype.bytes_of(values.size) == data.nbytes
  np.testing.assert_array_equal(packed(values.reshape(5, -1), dtype), data)


def test_what_comes_first_in_a_byte():
  assert unpacked(np.array([0x0F, 0x80], np.uint8), DType.Q4).tolist() == [7, -8, -8, 0]
  assert unpacked(np.array([0b11_00_10_01], np.uint8), DType.Q2).tolist() == [-1, 0, -2, 1]
  assert unpacked(np.array([0, 128, 255], np.uint8), DType.Q8).tolist() == [-128, 0, 127]


@pytest.mark.parametrize("dtype", [DType.Q2, DType.Q4, DType.Q8])
@pytest.mark.parametrize("scale", [2.0**-8, 1.0, 2.0**8])
def test_random_numbers_fill_the_range(dtype, scale, rng):
  values = as_input(rng.standard_normal(4000) * scale, dtype)
  assert (values.min(), values.max()) == dtype.integers and len(np.unique(values)) >= min(32, 2**dtype.bits)
