"""Element types and their rounding on the host."""

from enum import StrEnum

import ml_dtypes
import numpy as np


class DType(StrEnum):
  """Element types that programs speak of; the value is the canonical spelling."""

  F16 = "f16"
  BF16 = "bf16"
  F32 = "f32"
  F64 = "f64"
  I32 = "i32"
  I64 = "i64"
  BOOL = "bool"
  U8 = "u8"

  @property
  def size_bytes(self) -> int:
    return _SIZE[self]

  @property
  def is_float(self) -> bool:
    return self in (DType.F16, DType.BF16, DType.F32, DType.F64)

  @property
  def is_computed(self) -> bool:
    """Whether programs compute with it.

    Floats, truth values as the numbers 0 and 1, and integers until they are cast to a float.
    """
    return self.is_float or self in (DType.BOOL, DType.I32, DType.I64)

  @property
  def is_half(self) -> bool:
    """True for the 16-bit types that tensor cores take."""
    return self in (DType.F16, DType.BF16)

  @property
  def numpy(self) -> np.dtype:
    return _NUMPY[self]


_SIZE = {
  DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F64: 8,
  DType.I32: 4, DType.I64: 8, DType.BOOL: 1, DType.U8: 1,
}  # fmt: skip
_NUMPY = {
  DType.F16: np.dtype(np.float16),
  DType.BF16: np.dtype(ml_dtypes.bfloat16),
  DType.F32: np.dtype(np.float32),
  DType.F64: np.dtype(np.float64),
  DType.I32: np.dtype(np.int32),
  DType.I64: np.dtype(np.int64),
  DType.BOOL: np.dtype(np.bool_),
  DType.U8: np.dtype(np.uint8),
}


def as_input(x: np.ndarray, dtype: DType) -> np.ndarray:
  """Random numbers of either sign as values of an input: a boolean is their sign."""
  if dtype is DType.BOOL:
    return (x > 0) * 1.0
  return x if dtype.is_float else np.rint(x)


def round_to(x: np.ndarray, dtype: DType) -> np.ndarray:
  """Round a float64 array to ``dtype`` and back to float64 (round to nearest even).

  ``x`` may be a cupy array.
  """
  if dtype is DType.F64 or not dtype.is_float:
    return x
  of_numpy = isinstance(x, (np.ndarray, np.generic))
  with np.errstate(over="ignore", invalid="ignore"):
    if dtype is DType.BF16 and not of_numpy:
      return _round_to_bf16(x)
    return x.astype(dtype.numpy).astype(np.float64)


def _round_to_bf16(x: np.ndarray) -> np.ndarray:
  """By the bits of fp32, for array modules without bf16; ml_dtypes too goes by fp32."""
  bits = x.astype(np.float32).view(np.uint32)
  odd = (bits >> np.uint32(16)) & np.uint32(1)
  high = (bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)
  result: np.ndarray = high.view(np.float32).astype(np.float64)
  # The carry turns some NaN into numbers.
  result[x != x] = np.nan
  return result
