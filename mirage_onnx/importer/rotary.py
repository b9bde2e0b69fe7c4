"""Rotary position embeddings (arXiv 2104.09864): pairs of elements turned by an angle."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mirage_onnx.importer.context import Context, shape_of
from mirage_onnx.importer.slicing import taken
from mirage_onnx.ir import DType, Tensor


def rotary(positions: int, cosines: int, sines: int) -> Callable[[Context], None]:
  """(x1 cos - x2 sin, x1 sin + x2 cos, the rest of x), with these inputs beside input 0.

  x1 and x2 are the halves of what is turned, or its even and odd elements. Inputs of four
  dimensions have the heads before the sequence, those of three within the last dimension.
  """

  def lower(c: Context) -> None:
    if c.attribute("scale", 1.0) != 1 or c.attribute("is_packed_batching", 0):
      raise c.reject("scale and is_packed_batching are not supported")
    x = c.tensor(0)
    shape = shape_of(x)
    heads_last = len(shape) == 3
    half = shape_of(c.tensor(cosines))[-1]
    count = c.attribute("rotary_embedding_dim", 0) or 2 * half
    if heads_last:
      heads = c.attribute("num_heads", 0) or shape[-1] // count
      x = c.reshape(x, (*shape[:2], heads, shape[-1] // heads))
    size = shape_of(x)[-1]
    if len(shape_of(x)) != 4 or count != 2 * half or count > size:
      raise c.reject(f"turns {count} of {size} elements by {half} angles")
    length = shape[1 if heads_last else 2]
    cos, sin = (_angles(c, i, positions, length, heads_last) for i in (cosines, sines))
    y = turned(c, x, cos, sin, c.switch("interleaved"))
    c.finish(c.reshape(y, shape) if heads_last else y)

  return lower


def _angles(c: Context, table: int, positions: int, length: int, heads_last: bool) -> Tensor:
  """Cosines or sines that broadcast over the heads."""
  x = c.tensor(table)
  if c.has(positions):
    known = c.known(positions) is not None
    x = taken(c, x, 0, _places(c, positions, length)) if known else _rows(c, x, positions, length)
  *batch, n, half = shape_of(x)
  return c.widen(c.reshape(x, (*batch, n, 1, half) if heads_last else (*batch, 1, n, half)))


def _rows(c: Context, table: Tensor, positions: int, length: int) -> Tensor:
  """The rows that a run names, by (batch, length, half): one for each row of x, or one for all."""
  rows, batch = c.tensor(positions), shape_of(c.tensor(0))[0]
  own = shape_of(rows) if rows.shape is not None else ()
  if own != (batch, length) and (own, length) != ((1,), 1):
    raise c.reject(f"a run names {c.symbols.show(own)} positions, not one for each of the sequence")
  if rows.dtype not in (DType.I32, DType.I64) or c.symbols.is_symbolic(shape_of(table)[0]):
    raise c.reject("the rows that a run picks of are not known")
  return c.reshape(c.gather(table, rows), (*(own if len(own) > 1 else (1, 1)), shape_of(table)[1]))


def _places(c: Context, positions: int, length: int) -> range:
  """The rows of the tables, the same ones in order for all of the batch."""
  given = c.array(positions, "the positions")
  if c.symbols.is_symbolic(length):
    raise c.reject("how many positions there are shows only a run", "DYNAMIC_DIM")
  rows = given + np.arange(length) if given.ndim == 1 else given
  first = int(rows.flat[0])
  if (rows != rows.reshape(-1, length)[0]).any() or any(
    b - a != 1 for a, b in pairwise(rows.reshape(-1, length)[0].tolist())
  ):
    raise c.reject("the positions are not the same ones, in order, for all of the batch")
  return range(first, first + length)


def turned(c: Context, x: Tensor, cos: Tensor, sin: Tensor, pairs: bool) -> Tensor:
  """The first elements of each head, as many as there are angles for; ``pairs``: neighbours are turned."""
  size, n = shape_of(x)[3], 2 * shape_of(cos)[-1]
  y = _turned(c, taken(c, x, 3, range(n)), cos, sin, pairs)
  return c.concat([y, taken(c, x, 3, range(n, size))], 3) if n < size else y


def _turned(c: Context, x: Tensor, cos: Tensor, sin: Tensor, pairs: bool) -> Tensor:
  *rest, n = shape_of(x)
  halves = (range(0, n, 2), range(1, n, 2)) if pairs else (range(n // 2), range(n // 2, n))
  a, b = (c.widen(taken(c, x, 3, own)) for own in halves)
  both = [
    c.elementwise(op, c.elementwise("mul", a, left), c.elementwise("mul", b, right))
    for op, left, right in (("sub", cos, sin), ("add", sin, cos))
  ]
  assert x.dtype is not None
  parts = [c.cast(y, x.dtype) for y in both]
  if not pairs:
    return c.concat(parts, 3)
  parts = [c.reshape(y, (*rest, n // 2, 1)) for y in parts]
  return c.reshape(c.concat(parts, 4), (*rest, n))
