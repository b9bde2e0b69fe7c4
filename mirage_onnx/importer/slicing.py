"""Operators that take parts of tensors, or put tensors beside each other."""

from itertools import pairwise

import numpy as np

from mirage_onnx.importer.causal import LARGEST, MOST_NEW, places
from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.reductions import normalized
from mirage_onnx.ir import DType
from mirage_onnx.ir.program import Dim, Tensor

#: An end of a slice that exporters write where they mean the last element.
TO_THE_END = (1 << 31) - 1


def slice_(c: Context) -> None:
  """The constant ranges of the dimensions in ``axes``; strides are reshapes and slices.

  Before opset 10 all are attributes.
  """
  x, is_old = c.tensor(0), c.opset < 10
  rank = len(shape_of(x))
  if is_old:
    starts, ends = tuple(c.attribute("starts")), tuple(c.attribute("ends"))
    given = tuple(c.attribute("axes", range(len(starts))))
  else:
    starts, ends = c.integers(1, "the starts"), c.integers(2, "the ends")
    given = c.integers(3, "the axes") if c.has(3) else tuple(range(len(starts)))
  steps = c.integers(4, "the steps") if c.has(4) and not is_old else (1,) * len(starts)
  if not len(starts) == len(ends) == len(given) == len(steps):
    raise c.reject("starts, ends, axes and steps are not as many")
  for axis, *bounds in zip(given, starts, ends, steps, strict=True):
    (axis,) = normalized(c, (axis,), rank)
    n = shape_of(x)[axis]
    if c.symbols.is_symbolic(n):
      if bounds[0] == 0 and bounds[2] == 1 and bounds[1] >= TO_THE_END:
        continue
      raise c.reject(f"takes a part of {c.symbols.text(n)} elements", "DYNAMIC_DIM")
    x = taken(c, x, axis, range(n)[slice(*bounds)])
  c.finish(x)


def taken(c: Context, x: Tensor, axis: int, places: range) -> Tensor:
  """The elements of one static dimension at ``places``."""
  shape = shape_of(x)
  n, count, step = shape[axis], len(places), places.step
  if count == n and step == 1:
    return x
  if not count or not all(0 <= p < n for p in (places[0], places[-1])):
    raise c.reject(f"takes {places.start}:{places.stop} of {n} elements")
  if count == 1 or step == 1:
    return c.slice(x, axis, places.start, places.start + count)
  if step < 0 or n % step:
    raise c.reject(f"takes every {step}th of {n} elements")
  before, after = shape[:axis], shape[axis + 1 :]
  row, place = divmod(places.start, step)
  y = c.reshape(x, (*before, n // step, step, *after))
  y = c.slice(taken(c, y, axis, range(row, row + count)), axis + 1, place, place + 1)
  return c.reshape(y, (*before, count, *after))


def split(c: Context) -> None:
  """Parts of the sizes of the outputs: of an input, before opset 13 of an attribute, or equal ones."""
  x = c.tensor(0)
  (axis,) = normalized(c, (c.attribute("axis", 0),), len(shape_of(x)))
  n, count = shape_of(x)[axis], len(c.node.output)
  if c.symbols.is_symbolic(n):
    raise c.reject(f"splits {c.symbols.text(n)} elements", "DYNAMIC_DIM")
  given = c.attribute("split") if c.opset < 13 else c.integers(1, "the sizes") if c.has(1) else None
  sizes = tuple(given or (-(-n // count),) * count)
  start = 0
  for position, size in enumerate(sizes[:count]):
    stop = min(start + size, n)
    if c.node.output[position]:
      if start >= stop:
        raise c.reject(f"{c.node.output[position]!r} holds no elements", "ZERO_SIZE")
      c.finish(taken(c, x, axis, range(start, stop)), position)
    start = stop
  if start != n or len(sizes) != count:
    raise c.reject(f"splits {n} elements into {list(sizes)}")


def concat(c: Context) -> None:
  parts = [c.tensor(i) for i in range(len(c.node.input))]
  (axis,) = normalized(c, (c.attribute("axis"),), len(shape_of(parts[0])))
  c.finish(beside(c, parts, axis))


def scatter_nd(c: Context) -> None:
  """Rows that lie one behind the other are replaced: a concatenation with what is left around them."""
  x, updates = c.tensor(0), c.tensor(2)
  n, indices = shape_of(x)[0], c.array(1, "the indices")
  reduction = c.attribute("reduction", "none")
  if reduction != "none":
    raise c.reject(f"reduction {reduction!r}")
  if indices.ndim != 2 or indices.shape[1] != 1:
    raise c.reject(f"indices of shape {list(indices.shape)} do not name rows")
  if c.symbols.is_symbolic(n):
    raise c.reject("what it replaces shows only a run", "DYNAMIC_DIM")
  rows = equal_steps(c, indices, n)
  if rows.step != 1:
    raise c.reject(f"replaces every {rows.step}th row")
  around = [range(rows.start), range(rows.stop, n)]
  before, after = ([taken(c, x, 0, r)] if r else [] for r in around)
  c.finish(beside(c, [*before, updates, *after], 0))


def tensor_scatter(c: Context) -> None:
  """A cache, of which a run says for each of the batch where new rows begin (in the old one's memory)."""
  x, new, shape = c.tensor(0), c.tensor(1), shape_of(c.tensor(0))
  (axis,) = normalized(c, (c.attribute("axis", -2),), len(shape))
  batch, room, count = shape[0], shape[axis], shape_of(c.tensor(1))[axis]
  if not axis:
    raise c.reject("writes along the batch")
  if any(map(c.symbols.is_symbolic, (room, count))):
    raise c.reject("of a cache or of rows that only a run counts", "DYNAMIC_DIM")
  if not c.has(2) and count <= room:
    rest = [taken(c, x, axis, range(count, room))] if count < room else []
    c.finish(beside(c, [new, *rest], axis))
    return
  if c.has(2) and c.attribute("mode", "linear") == "circular":
    raise c.reject("a run may name a place behind the end, which is one around it")
  if not c.has(2) or shape_of(c.tensor(2)) != (batch,) or room > LARGEST or count > min(MOST_NEW, room):
    raise c.reject(f"{count} rows of {room}: it takes up to {MOST_NEW}, with a place for each of the batch")
  ones = (1,) * (len(shape) - 1)
  place = c.reshape(c.implied(places(room)), (*ones[:axis], room, *ones[axis:]))
  first = c.reshape(c.tensor(2), (batch, *ones))
  if count == 1:
    there = c.elementwise("equal", place, first, dtype=DType.BOOL)
    c.finish(c.elementwise("select", there, new, x, dtype=x.dtype))
    return
  ahead = c.elementwise("sub", *(c.cast(i, DType.F32) for i in (place, first)))
  c.finish(with_rows(c, x, new, axis, ahead))


def with_rows(c: Context, x: Tensor, new: Tensor, axis: int, ahead: Tensor) -> Tensor:
  """A cache with new rows in their places; ``ahead``: how far each of its rows is behind the first of them.

  One condition says whether a row is new at all: what is not stays where it is (``lower/in_place.py``).
  """
  count = shape_of(new)[axis]
  row = c.slice(new, axis, count - 1, count)
  for i in reversed(range(count - 1)):
    there = c.elementwise("equal", ahead, const(i), dtype=DType.BOOL)
    row = c.elementwise("select", there, c.slice(new, axis, i, i + 1), row, dtype=x.dtype)
  ends = (c.elementwise("less_equal", const(0), ahead, dtype=DType.BOOL),
          c.elementwise("less", ahead, const(count), dtype=DType.BOOL))  # fmt: skip
  return c.elementwise("select", c.elementwise("mul", *ends, dtype=DType.BOOL), row, x, dtype=x.dtype)


def beside(c: Context, parts: list[Tensor], axis: int) -> Tensor:
  """The parts one after the other along a dimension of which no run counts any part."""
  if any(c.symbols.is_symbolic(shape_of(p)[axis]) for p in parts):
    reason = f"dimension {axis}, along which it concatenates, is known only at run time"
    raise c.reject(reason, "DYNAMIC_DIM")
  return c.concat(parts, axis) if len(parts) > 1 else parts[0]


def gather(c: Context) -> None:
  """A slice, where the indices are constant and ascend in equal steps; rows that a run picks."""
  x, shape = c.tensor(0), shape_of(c.tensor(0))
  (axis,) = normalized(c, (c.attribute("axis", 0),), len(shape))
  if c.known(1) is None:
    if axis:
      raise c.reject("picks other parts than rows where a run says")
    rows_of_run(c, c.tensor(1).shape)
    return
  if c.symbols.is_symbolic(shape[axis]):
    raise c.reject("what it picks shows only a run", "DYNAMIC_DIM")
  indices = c.array(1, "the indices")
  y = taken(c, x, axis, equal_steps(c, indices, shape[axis]))
  c.finish(c.reshape(y, (*shape[:axis], *indices.shape, *shape[axis + 1 :])))


def rows_of_run(c: Context, by: tuple[Dim, ...] | None) -> None:
  """Rows of a table of fixed size, which its first dimension names, in dimensions ``by``."""
  x, rows = shape_of(c.tensor(0)), c.tensor(1)
  if by is None:
    raise c.reject("how many rows it picks is not known", "RANK_UNKNOWN")
  if len(x) < 2:
    raise c.reject("picks other parts than rows where a run says")
  if c.symbols.is_symbolic(x[0]) or not x[0] or rows.dtype not in (DType.I32, DType.I64):
    raise c.reject("the rows that it picks of are not known", "DYNAMIC_DIM")
  counts = tuple(n for n in by if isinstance(n, int))
  if len(counts) < len(by) or 0 in by:
    raise c.reject("how many rows it picks is not known", "DYNAMIC_DIM")
  y, shape = c.gather(c.tensor(0), rows), (*counts, *x[1:])
  c.finish(y if shape_of(y) == shape else c.reshape(y, shape))


def equal_steps(c: Context, indices: np.ndarray, n: int) -> range:
  """Constant indices of ``n`` elements, in order, as a range."""
  places = np.where(indices < 0, indices + n, indices).reshape(-1).tolist()
  step = places[1] - places[0] if len(places) > 1 else 1
  if not places or any(not 0 <= p < n for p in places):
    raise c.reject("picks elements that are not there")
  if step < 1 or any(b - a != step for a, b in pairwise(places)):
    raise c.reject("picks elements that do not ascend in equal steps")
  return range(places[0], places[-1] + 1, step)
