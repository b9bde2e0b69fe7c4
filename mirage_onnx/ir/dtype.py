"""Element types and their rounding on the host."""

from __future__ import annotations

from enum import StrEnum

import ml_dtypes
import numpy as np


class DType(StrEnum):
  """Element types that programs speak of; the value is the canonical spelling.

  ``q2``, ``q4`` and ``q8`` are integers of quantized weights, packed in bytes: -2 .. 1, -8 .. 7 and
  -128 .. 127, stored with 2, 8 and 128 added; of several in a byte the first has the lowest bits.
  ``s4`` and ``s8`` are the same integers stored in two's complement. ``u4`` and ``i4`` are what ONNX
  calls so: models have tensors of them, and arrays an element in a byte; kernels read their bytes.
  ``e4m3`` and ``e5m2`` are ONNX's FLOAT8E4M3FN and FLOAT8E5M2, of which models have weights; ``p4m3`` and
  ``p5m2`` the same weights as programs read them, packed types whose values are no integers.
  """

  F16 = "f16"
  BF16 = "bf16"
  F32 = "f32"
  F64 = "f64"
  I32 = "i32"
  I64 = "i64"
  BOOL = "bool"
  U8 = "u8"
  I8 = "i8"
  U4 = "u4"
  I4 = "i4"
  Q2 = "q2"
  Q4 = "q4"
  Q8 = "q8"
  S4 = "s4"
  S8 = "s8"
  E4M3 = "e4m3"
  E5M2 = "e5m2"
  P4M3 = "p4m3"
  P5M2 = "p5m2"

  @property
  def size_bytes(self) -> int:
    """Of one element; asked of types only that fill a byte."""
    return _SIZE[self]

  @property
  def bits(self) -> int:
    """Of one element in memory."""
    return _BITS[self] if self in _BITS else 8 * _SIZE[self]

  def bytes_of(self, elements: int) -> int:
    """What so many elements take in memory."""
    return -(-elements * self.bits // 8)

  @property
  def is_packed(self) -> bool:
    """True for numbers of quantized weights, which memory holds in whole bytes."""
    return self in _PACKED

  @property
  def is_four(self) -> bool:
    """True for ONNX's integers of 4 bits: custom operators are given their bytes."""
    return self in (DType.U4, DType.I4)

  @property
  def in_memory(self) -> DType:
    """What a tensor of this type is for those who only know bytes: of integers, several may be in one."""
    if not (self.is_packed or self.is_four):
      return self
    return _IN_MEMORY.get(self, DType.U8)

  @property
  def integers(self) -> tuple[int, int]:
    """The least and the largest value of a packed type, or of integers of 8 bits."""
    if self is DType.U8:
      return 0, 255
    if self.is_float8:
      most = int(ml_dtypes.finfo(self.numpy).max)
      return -most, most
    half = 1 << (self.bits - 1)
    return -half, half - 1

  @property
  def is_float8(self) -> bool:
    """True for a packed type whose numbers are floats."""
    return self in (DType.P4M3, DType.P5M2)

  @property
  def is_float(self) -> bool:
    return self in (DType.F16, DType.BF16, DType.F32, DType.F64)

  @property
  def is_byte(self) -> bool:
    """True for integers of 8 bits, which kernels read as inputs only, and widen there."""
    return self in (DType.I8, DType.U8)

  @property
  def is_computed(self) -> bool:
    """Whether programs compute with it.

    Floats, truth values as the numbers 0 and 1, and integers until they are cast to a float.
    """
    return self.is_float or self.is_packed or self in (DType.BOOL, DType.I32, DType.I64)

  @property
  def is_half(self) -> bool:
    """True for the 16-bit types that tensor cores take."""
    return self in (DType.F16, DType.BF16)

  @property
  def numpy(self) -> np.dtype:
    return _NUMPY[self]


_SIZE = {
  DType.F16: 2, DType.BF16: 2, DType.F32: 4, DType.F64: 8,
  DType.I32: 4, DType.I64: 8, DType.BOOL: 1, DType.U8: 1, DType.I8: 1, DType.U4: 1, DType.I4: 1,
  DType.Q8: 1, DType.S8: 1, DType.E4M3: 1, DType.E5M2: 1, DType.P4M3: 1, DType.P5M2: 1,
}  # fmt: skip
_PACKED = frozenset({DType.Q2, DType.Q4, DType.Q8, DType.S4, DType.S8, DType.P4M3, DType.P5M2})
#: Packed types -> those of the tensors of a model that are theirs; of others bytes.
_IN_MEMORY = {DType.S8: DType.I8, DType.P4M3: DType.E4M3, DType.P5M2: DType.E5M2}
_SIGNED = frozenset({DType.S4, DType.S8})
_FOURS = (np.dtype(ml_dtypes.uint4), np.dtype(ml_dtypes.int4))
#: Of types that share a byte.
_BITS = {DType.Q2: 2, DType.Q4: 4, DType.S4: 4, DType.U4: 4, DType.I4: 4}
_NUMPY = {
  DType.F16: np.dtype(np.float16),
  DType.BF16: np.dtype(ml_dtypes.bfloat16),
  DType.F32: np.dtype(np.float32),
  DType.F64: np.dtype(np.float64),
  DType.I32: np.dtype(np.int32),
  DType.I64: np.dtype(np.int64),
  DType.BOOL: np.dtype(np.bool_),
  DType.U8: np.dtype(np.uint8),
  DType.I8: np.dtype(np.int8),
  DType.U4: np.dtype(ml_dtypes.uint4),
  DType.I4: np.dtype(ml_dtypes.int4),
  DType.Q2: np.dtype(np.int8),
  DType.Q4: np.dtype(np.int8),
  DType.Q8: np.dtype(np.int8),
  DType.S4: np.dtype(np.int8),
  DType.S8: np.dtype(np.int8),
  DType.E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
  DType.E5M2: np.dtype(ml_dtypes.float8_e5m2),
  DType.P4M3: np.dtype(ml_dtypes.float8_e4m3fn),
  DType.P5M2: np.dtype(ml_dtypes.float8_e5m2),
}


def as_input(x: np.ndarray, dtype: DType) -> np.ndarray:
  """Random numbers of either sign as values of an input: a boolean is their sign.

  Small ones fill the range of a packed type, whatever their scale is; bytes are any.
  """
  if dtype is DType.BOOL:
    return (x > 0) * 1.0
  if dtype.is_packed or dtype.is_byte:
    low, high = dtype.integers
    size = np.sqrt(np.mean(np.square(x))) if x.size else 0.0
    if dtype.is_float8:
      return np.clip(x / (size or 1.0), low, high).astype(dtype.numpy).astype(np.float64)
    middle, spread = (low + high + 1) / 2, (high - low) / 4
    return np.clip(np.rint(x / (size or 1.0) * spread + middle), low, high)
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


#: Bytes that are unpacked at a time.
_UNPACKED = 1 << 17


def unpacked(data: np.ndarray, dtype: DType) -> np.ndarray:
  """The values of a packed type in their order, from the bytes of memory (any shape).

  Of an array with an element in a byte: these, less what the type has for zero.
  """
  if data.dtype in _FOURS:
    less = 0 if dtype in _SIGNED else dtype.integers[0]
    return (data.reshape(-1).astype(np.int8) + np.int8(less)).astype(np.int8)
  if dtype.is_float8:
    return data.reshape(-1).view(dtype.numpy).astype(np.float32)
  flat = data.reshape(-1).view(np.uint8) if data.dtype.itemsize == 1 else data.reshape(-1).astype(np.uint8)
  zero, places = np.uint8(-dtype.integers[0]), range(0, 8, dtype.bits)
  mask = np.uint8((1 << dtype.bits) - 1)
  found = np.empty((flat.size, len(places)), np.uint8)
  for start in range(0, flat.size, _UNPACKED):  # what a core's cache holds: three times as fast
    some, own = flat[start : start + _UNPACKED], found[start : start + _UNPACKED]
    for n, at in enumerate(places):
      own[:, n] = some >> np.uint8(at) & mask
    if dtype in _SIGNED:
      own ^= zero
    own -= zero  # modulo 256 the bytes are right before and behind the subtraction
  return found.reshape(-1).view(np.int8)


def in_memory(data: np.ndarray) -> np.ndarray:
  """What memory holds of an array: the bytes of one of 4-bit integers, two in each, any other as it is."""
  if data.dtype not in _FOURS:
    return data
  fours = data.reshape(-1).astype(np.int8).view(np.uint8) & np.uint8(15)
  return np.ascontiguousarray(fours[::2] | fours[1::2] << np.uint8(4))


def packed(values: np.ndarray, dtype: DType) -> np.ndarray:
  """The bytes of memory that hold these values of a packed type: the inverse of ``unpacked``.

  The last dimension fills whole bytes.
  """
  if dtype.is_float8:
    return values.astype(dtype.numpy).view(np.uint8)
  stored = (values.astype(np.int16) - dtype.integers[0]).astype(np.uint8)
  if dtype in _SIGNED:
    stored ^= np.uint8(-dtype.integers[0])
  shared = stored.reshape(*stored.shape[:-1], -1, 8 // dtype.bits)
  return np.bitwise_or.reduce(shared << np.arange(0, 8, dtype.bits, dtype=np.uint8), axis=-1)
