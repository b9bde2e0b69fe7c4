"""Products with weights of few bits: a weight is scale x (integer - zero point).

The integers are packed types of the IR, whose values are the stored ones less half their number
(``DType.Q4``), which is the zero point that operators have unless they are told another.
"""

from math import prod

from mirage_onnx.importer.context import Context, Value, const, shape_of
from mirage_onnx.ir import DType, Tensor

#: Bits of a weight -> its type.
PACKED = {2: DType.Q2, 4: DType.Q4, 8: DType.Q8}
BLOCKS = (16, 32, 64, 128, 256)
#: Attributes and what they are where they are left out; schemas ask for the first three.
_SIZES = {"K": 0, "N": 0, "block_size": 0, "bits": 4}


def matmul_nbits(c: Context) -> None:
  """com.microsoft: A [.., K] times the transpose of [N, K] weights, K in blocks with a scale each.

  inputs A, B [N, K / block, block * bits / 8] of bytes, scales [N, K / block] (or flat), zero points?
  (packed bytes, every row its own; of 2 and 4 bits or of the type of A), g_idx?, bias? [N].
  """
  if not (c.has(1) and c.has(2)):
    raise c.reject("there are no weights or no scales")
  a, scales = c.tensor(0), c.tensor(2)
  k, n, block, dtype = _sizes(c, a)
  blocks = k // block
  if scales.dtype is not a.dtype:
    raise c.reject(f"scales are {scales.dtype}, the activations {a.dtype}", "DTYPE")
  if a.dtype is None or not (a.dtype.is_half or a.dtype is DType.F32):
    raise c.reject(f"activations are {a.dtype}", "DTYPE")
  _check_elements(c, scales, n * blocks, "scales")
  _check_elements(c, c.tensor(1), n * k * dtype.bits // 8, "weights")
  if c.tensor(1).dtype is not DType.U8:
    raise c.reject(f"weights are {c.tensor(1).dtype}, not bytes", "DTYPE")
  _check_groups(c, k, block)
  q: Tensor = c.cast(c.stored(c.tensor(1), (n, k), (n, k), (1, 1), dtype), a.dtype)
  if c.has(3):
    q = _less_zero(c, q, (n, k), block, dtype)
  scale = c.stored(scales, (n, k), (n, blocks), (1, block), a.dtype)
  weight = c.cast(c.elementwise("mul", q, scale if q.dtype is a.dtype else c.widen(scale)), a.dtype)
  y = c.matmul(a, c.transpose(weight, (1, 0)), dtype=DType.F32 if c.has(5) else None)
  c.finish(_biased(c, y, n, 5))


def matmul_float8(c: Context) -> None:
  """com.microsoft's MatMulBlockQuantizedFp8Weight: A [.., K] times the transpose of floats of 8 bits [N, K].

  inputs A, B, scales [N, K / block] in fp32, a scale of the activations?, bias? [N]. One scale for a row of B
  (as onnxruntime-genai's builder has them) is multiplied behind the product.
  """
  if not (c.has(1) and c.has(2)):
    raise c.reject("there are no weights or no scales")
  if c.has(3):
    raise c.reject("rounds activations to floats of 8 bits: a kernel's further digits would decide otherwise")
  a, b, scales, block = c.tensor(0), c.tensor(1), c.tensor(2), c.attribute("block_size", 0)
  if a.dtype is None or not a.dtype.is_half:
    raise c.reject(f"activations are {a.dtype}", "DTYPE")
  if b.dtype is not DType.E4M3 or scales.dtype is not DType.F32:
    raise c.reject(f"weights are {b.dtype}, scales {scales.dtype}", "DTYPE")
  if not b.is_static or len(shape_of(b)) != 2 or not shape_of(a) or shape_of(a)[-1] != shape_of(b)[1]:
    raise c.reject(
      f"weights of {c.symbols.show(shape_of(b))} for activations of {c.symbols.show(shape_of(a))}"
    )
  n, k = shape_of(b)
  if not isinstance(block, int) or block < 1 or k % block:
    raise c.reject(f"blocks of {block!r} of {k} weights")
  blocks = k // block
  _check_elements(c, scales, n * blocks, "scales")
  q = c.cast(c.stored(b, (n, k), (n, k), (1, 1), DType.P4M3), a.dtype)
  if blocks > 1:
    scale = c.stored(scales, (n, k), (n, blocks), (1, block), DType.F32)
    q = c.cast(c.elementwise("mul", c.widen(q), scale), a.dtype)
  y = c.matmul(a, c.transpose(q, (1, 0)), dtype=DType.F32)
  if blocks == 1:
    y = c.elementwise("mul", y, c.reshape(scales, (n,)))
  c.finish(_biased(c, y, n, 4))


def matmul_float4(c: Context) -> None:
  """com.microsoft's MatMulBlockQuantizedFp4Weight."""
  raise c.reject("weights are floats of 4 bits, which no packed type here has")


def _biased(c: Context, y: Tensor, n: int, position: int) -> Tensor:
  if not c.has(position):
    return y
  bias: Value = c.widened(position)
  if isinstance(bias, Tensor) and shape_of(bias) != (n,):
    raise c.reject(f"the bias has shape {list(shape_of(bias))}, not [{n}]")
  return c.elementwise("add", y, bias)


def _sizes(c: Context, a: Tensor) -> tuple[int, int, int, DType]:
  """K, N, the size of a block and the type of the integers."""
  k, n, block, bits = (c.attribute(name, default) for name, default in _SIZES.items())
  if not all(isinstance(x, int) for x in (k, n, block, bits)):
    raise c.reject(f"{', '.join(_SIZES)} are {k!r}, {n!r}, {block!r}, {bits!r}")
  if bits not in PACKED:
    raise c.reject(f"weights of {bits} bits, not of {', '.join(map(str, PACKED))}")
  if c.attribute("weight_prepacked", 0):
    raise c.reject("weights are in an order that only one kernel knows (weight_prepacked)")
  if block not in BLOCKS:
    raise c.reject(f"blocks of {block}, not of {', '.join(map(str, BLOCKS))}")
  if n < 1 or k < 1 or not shape_of(a) or shape_of(a)[-1] != k:
    raise c.reject(f"weights of {k} x {n} for activations of {c.symbols.show(shape_of(a))}")
  if k % block:
    raise c.reject(f"the last block of {k} weights has {k % block} of {block}")
  return k, n, block, PACKED[bits]


def _check_elements(c: Context, x: Tensor, count: int, what: str) -> None:
  if not x.is_static:
    raise c.reject(f"the shape of the {what} is not known", "RANK_UNKNOWN")
  have = prod(shape_of(x))
  if have != count:
    raise c.reject(f"{have} elements of {what}, not {count}")


def _check_groups(c: Context, k: int, block: int) -> None:
  """The order of the columns (g_idx) is the one that they have without it."""
  if not c.has(4):
    return
  groups = c.known(4)
  if groups is None or groups.reshape(-1)[:k].tolist() != [i // block for i in range(k)]:
    raise c.reject("columns are in an order of their own (g_idx)")


def _less_zero(c: Context, q: Tensor, shape: tuple[int, int], block: int, dtype: DType) -> Tensor:
  """``q`` less its zero points, exactly where these are packed: whole numbers up to 255.

  Zero points of the activations' type are what the stored integers have for zero, whole numbers or not.
  """
  zero, (n, k) = c.tensor(3), shape
  blocks = k // block
  if zero.dtype is not None and zero.dtype is q.dtype and dtype.bits < 8:
    _check_elements(c, zero, n * blocks, "zero points")
    own = c.stored(zero, shape, (n, blocks), (1, block), zero.dtype)
    whole = c.elementwise("sub", c.widen(q), const(dtype.integers[0]))
    return c.elementwise("sub", whole, c.widen(own))
  if zero.dtype is not DType.U8:
    raise c.reject(f"zero points are {zero.dtype}, not packed as the weights are", "DTYPE")
  in_byte = 8 // dtype.bits
  held = -(-blocks // in_byte) * in_byte
  _check_elements(c, zero, n * held // in_byte, "zero points")
  z = c.cast(c.stored(zero, shape, (n, held), (1, block), dtype), q.dtype or DType.F16)
  return c.elementwise("sub", q, z)
