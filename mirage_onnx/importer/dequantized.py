"""Weights of few bits that the model widens itself: DequantizeLinear of an initializer.

A weight is scale x (integer - zero point); products that read it take the packed one (``quantized.py``).
"""

from math import prod

import numpy as np

from mirage_onnx.importer.context import Context, Value, const, shape_of
from mirage_onnx.ir import DType, Tensor

#: The types of what is stored -> those of the numbers, and the zero point where there is none.
PACKED = {
  DType.U8: (DType.Q8, -128), DType.I8: (DType.S8, 0), DType.U4: (DType.Q4, -8), DType.I4: (DType.S4, 0),
  DType.E4M3: (DType.P4M3, 0), DType.E5M2: (DType.P5M2, 0),
}  # fmt: skip


def dequantize_linear(c: Context) -> None:
  """ONNX: (x - zero point) x scale, of a tensor, of an axis, or of blocks of one axis.

  inputs x, scale, zero point?; the scale is one number, one for each index of ``axis``, or (block_size)
  as x with fewer along ``axis``. The result has the scale's type: a product rounded once.
  """
  x, scale = c.tensor(0), c.tensor(1)
  if not c.is_known(0):
    _widened_activations(c, x)
    return
  if x.dtype is DType.I32:
    _widened_bias(c, x)
    return
  if x.dtype not in PACKED:
    raise c.reject(f"{x.name!r} is {x.dtype or 'of a type that is not supported'}", "DTYPE")
  if not x.is_static or not shape_of(x) or not scale.is_static:
    raise c.reject(f"the shape of {x.name!r} is not one of weights")
  _whole_bytes(c, x)
  if scale.dtype is None or not scale.dtype.is_float:
    raise c.reject(f"scales are {scale.dtype}", "DTYPE")
  if c.output().dtype is not scale.dtype:
    raise c.reject(f"the result is {c.output().dtype}, scales are {scale.dtype}", "DTYPE")
  dtype, nothing = PACKED[x.dtype]
  shape = shape_of(x)
  q: Tensor = c.cast(c.stored(x, shape, shape, (1,) * len(shape), dtype), scale.dtype)
  zero = _zero_point(c, dtype, nothing)
  if zero is not None:
    q = c.elementwise("sub", q, zero)
  c.finish(c.elementwise("mul", q, _scale(c, 1, None)))


def _widened_activations(c: Context, x: Tensor) -> None:
  """Integers of 8 bits that a run brings, less one zero point, times a scale: of the tensor, or an axis."""
  if x.dtype is None or not x.dtype.is_byte:
    raise c.reject(f"{x.name!r}, which it widens, is no weight, but {x.dtype}")
  if c.attribute("block_size", 0) or c.tensor(1).dtype is not c.output().dtype:
    raise c.reject(f"{x.name!r}, which it widens, is no weight, and has a scale of its own for every block")
  if c.has(2) and c.tensor(2).dtype is not x.dtype:
    raise c.reject(f"zero points are {c.tensor(2).dtype}, what is widened {x.dtype}", "DTYPE")
  y = c.cast(x, DType.F32)
  if c.has(2):
    zero = c.known(2)
    if zero is None or not zero.size or (zero != zero.reshape(-1)[0]).any():
      raise c.reject(f"zero points of {x.name!r} are not one number that no run changes")
    if zero.any():
      y = c.elementwise("sub", y, const(int(zero.reshape(-1)[0])))
  scale = _scale(c, 1, None)
  c.finish(c.elementwise("mul", y, c.widen(scale) if isinstance(scale, Tensor) else scale))


def _widened_bias(c: Context, x: Tensor) -> None:
  """A bias of 32 bits, of the tensor or of its one axis; its zero point is 0, as ONNX has it. In fp32."""
  scale, known = c.tensor(1), c.known(2) if c.has(2) else None
  if c.has(2) and (known is None or known.any()):
    raise c.reject(f"zero points of {x.name!r}, integers of 32 bits, are not 0")
  if len(shape_of(x)) != 1 or not scale.is_static or shape_of(scale) not in ((), (1,), shape_of(x)):
    raise c.reject(f"{x.name!r} is {x.dtype} of {list(shape_of(x))}, no bias with a scale for it", "DTYPE")
  if scale.dtype is None or c.output().dtype is not scale.dtype or c.attribute("block_size", 0):
    raise c.reject(f"scales are {scale.dtype}", "DTYPE")
  c.finish(c.elementwise("mul", c.cast(x, DType.F32), c.widened(1)))


def _whole_bytes(c: Context, x: Tensor) -> None:
  if x.dtype is not None and x.dtype.is_four and prod(shape_of(x)) % 2:
    raise c.reject(f"{x.name!r} has an odd number of elements of 4 bits")


def _zero_point(c: Context, dtype: DType, nothing: int) -> Value | None:
  """What integers have for zero; None where it is nothing."""
  if not c.has(2):
    return const(nothing) if nothing else None
  zero = c.tensor(2)
  if zero.dtype is not c.tensor(0).dtype:
    raise c.reject(f"zero points are {zero.dtype}, what is widened {c.tensor(0).dtype}", "DTYPE")
  values = c.known(2)
  if values is None:
    raise c.reject(f"zero points {zero.name!r} are not constant")
  if dtype.is_float8:
    if np.asarray(values, np.float32).any():
      raise c.reject(f"zero points of {c.tensor(0).name!r}, floats of 8 bits, are not 0", "DTYPE")
    return None
  if values.size and (values == values.reshape(-1)[0]).all() and _fits(c, 2):
    number = int(values.reshape(-1)[0]) + nothing
    return const(number) if number else None
  return _scale(c, 2, dtype)


def _fits(c: Context, position: int) -> bool:
  """Whether a scale or zero point has the shape that the node says; it raises the reason if not."""
  _scale(c, position, None, emit=False)
  return True


def _scale(c: Context, position: int, dtype: DType | None, *, emit: bool = True) -> Value:
  """A scale or zero point (``dtype``: stored as it) as numbers beside the integers."""
  x, s = c.tensor(0), c.tensor(position)
  what = "scales" if position == 1 else "zero points"
  if dtype is not None:
    _whole_bytes(c, s)
  shape, own = shape_of(x), shape_of(s)
  axis, block = c.attribute("axis", 1), c.attribute("block_size", 0)
  if not isinstance(axis, int) or not isinstance(block, int) or block < 0:
    raise c.reject(f"axis and block_size are {axis!r} and {block!r}")
  if not block and own in ((), (1,)):
    return c.operand(position) if dtype is None or not emit else c.cast(_packed(c, s, dtype), _type(c))
  if not -len(shape) <= axis < len(shape):
    raise c.reject(f"axis {axis} of {len(shape)} dimensions")
  axis %= len(shape)
  if not block:
    if own != (shape[axis],):
      raise c.reject(f"{what} of shape {list(own)} for {shape[axis]} along axis {axis}")
    if not emit:
      return s
    if dtype is not None:
      return _along(c, s, dtype, shape, axis)
    return c.reshape(s, tuple(n if d == axis else 1 for d, n in enumerate(shape)))
  blocks = tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
  if own != blocks:
    raise c.reject(f"{what} of shape {list(own)} for blocks of {block}, not {list(blocks)}")
  if shape[axis] % block:
    raise c.reject(f"the last block of {shape[axis]} weights has {shape[axis] % block} of {block}")
  if not emit:
    return s
  repeats = tuple(block if d == axis else 1 for d in range(len(shape)))
  found = c.stored(s, shape, own, repeats, dtype or _type(c))
  return c.cast(found, _type(c))


def _along(c: Context, s: Tensor, dtype: DType, shape: tuple[int, ...], axis: int) -> Tensor:
  """Zero points of an axis, which memory holds once for all of the others: as blocks that are whole rows."""
  others = tuple(d for d in range(len(shape)) if d != axis)
  order = (axis, *others)
  rest = tuple(shape[d] for d in others)
  found = c.stored(s, tuple(shape[d] for d in order), (shape[axis], *(1,) * len(rest)), (1, *rest), dtype)
  return c.cast(c.transpose(found, tuple(order.index(d) for d in range(len(shape)))), _type(c))


def _packed(c: Context, x: Tensor, dtype: DType) -> Tensor:
  own = shape_of(x)
  return c.stored(x, own, own, (1,) * len(own), dtype)


def _type(c: Context) -> DType:
  dtype = c.tensor(1).dtype
  assert dtype is not None
  return dtype


def quantize_linear(c: Context) -> None:
  """QuantizeLinear, DynamicQuantizeLinear: activations to integers.

  Kernels keep more digits than the nodes that they stand for, and where those are next to a half the
  integers would be others: a whole step apart, which no bound of rounding allows.
  """
  raise c.reject("rounds activations to integers: a kernel's further digits would decide of them otherwise")


def gather_block_quantized(c: Context) -> None:
  """com.microsoft: rows of a packed table, widened. A run reads few of them, so there is nothing to save."""
  raise c.reject(
    "widens the rows of a packed table that a run picks: as many bytes as they have, and no more"
  )
