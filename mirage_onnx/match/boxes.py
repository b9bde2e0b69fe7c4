"""Boxes: what slices take of a tensor and what concatenations put side by side, as factors.

A dimension is a product of factors, slowest first, each with bounds: those of a *box* are where it
begins and ends, those of a *partition* also where parts of a concatenation meet. The first 64 of
each 128 columns of 6144 are ``48(0, 48) 128(0, 64)``, every other one of them ``3072(0, 3072)
2(0, 1)``. Dimensions are tidy: no two factors that could be one.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.factors import cut_points, groups


class Factor(NamedTuple):
  """Elements ``bounds[0] <= i < bounds[-1]`` of ``full``, with the bounds between them."""

  full: int
  bounds: tuple[int, ...]

  @property
  def size(self) -> int:
    return self.bounds[-1] - self.bounds[0]


Dim = tuple[Factor, ...]
Box = tuple[Dim, ...]


def whole(full: int) -> Dim:
  return (Factor(full, (0, full)),)


def extent(dim: Dim) -> int:
  """The elements of a dimension that are in the box."""
  return prod(f.size for f in dim)


def is_whole(dim: Dim) -> bool:
  return len(dim) == 1 and dim[0].size == dim[0].full


def tidy(factors: Iterable[Factor]) -> Dim:
  """The same elements and bounds in as few factors as can be."""
  found: list[Factor] = []
  for f in factors:
    if f.full == 1:
      continue
    if found and (last := found[-1]).size == 1:
      first = last.bounds[0] * f.full
      found[-1] = Factor(last.full * f.full, tuple(first + b for b in f.bounds))
    elif found and f.bounds == (0, f.full):
      last = found[-1]
      found[-1] = Factor(last.full * f.full, tuple(b * f.full for b in last.bounds))
    else:
      found.append(f)
  return tuple(found) or whole(1)


def _split(factors: Sequence[Factor], points: Iterable[int]) -> list[Factor]:
  """The same with a factor that ends at each of ``points``, products of the fastest sizes.

  Raises:
      RejectionError: AXES_CONFLICT where that is no product of ranges.
  """
  found: list[Factor] = []
  wanted = sorted(points, reverse=True)
  low = prod(f.full for f in factors)
  for f in factors:
    low //= f.full
    for p in wanted:
      if not low < p < low * f.full:
        continue
      inner, rest = divmod(p, low)
      row = f.bounds[0] // inner
      if rest or f.full % inner:
        raise _conflict("splits dimensions in ways that do not nest")
      if not any(b % inner for b in f.bounds):
        found.append(Factor(f.full // inner, tuple(b // inner for b in f.bounds)))
        f = Factor(inner, (0, inner))
      elif f.bounds[-1] <= (row + 1) * inner:
        found.append(Factor(f.full // inner, (row, row + 1)))
        f = Factor(inner, tuple(b - row * inner for b in f.bounds))
      else:
        raise _conflict("splits a dimension across a part that is sliced or concatenated")
    found.append(f)
  return found


def regrouped(dims: Sequence[Dim], sizes: Sequence[int]) -> list[Dim]:
  """The same elements as dimensions of these sizes.

  Raises:
      RejectionError: AXES_CONFLICT.
  """
  rest = iter(_split([f for d in dims for f in d if f.full > 1], cut_points(sizes)))
  found = []
  for n in sizes:
    own: list[Factor] = []
    while prod(f.full for f in own) < n:
      own.append(next(rest))
    found.append(tidy(own))
  return found


def moved(dim: Dim, full: int, by: int) -> Dim | None:
  """The same elements, ``by`` places later in a dimension of ``full``; None: no such box."""
  inner = prod(f.full for f in dim[1:])
  if full % inner or by % inner:
    return None
  bounds = tuple(b + by // inner for b in dim[0].bounds)
  return tidy((Factor(full // inner, bounds), *dim[1:]))


def clipped(dim: Dim, start: int, stop: int) -> Dim:
  """The partition of elements ``start <= i < stop`` of a partition.

  Raises:
      RejectionError: AXES_CONFLICT.
  """
  inner = prod(f.full for f in dim[1:])
  if len(dim) > 1 and start // inner == (stop - 1) // inner:
    return clipped(dim[1:], start % inner, (stop - 1) % inner + 1)
  if start % inner or stop % inner:
    raise _conflict("slices a dimension across parts of a concatenation")
  first, last = start // inner, stop // inner
  kept = (b - first for b in dim[0].bounds if first < b < last)
  return tidy((Factor(last - first, (0, *kept, last - first)), *dim[1:]))


def beside(parts: Sequence[Dim]) -> Dim:
  """The partition of a concatenation of dimensions with these partitions.

  Raises:
      RejectionError: AXES_CONFLICT.
  """
  inner = max(prod(f.full for f in p[1:]) for p in parts)
  if any(prod(f.full for f in p) % inner for p in parts):
    raise _conflict("concatenates dimensions that are split in ways that do not nest")
  bounds, offset, rest = [0], 0, whole(inner)
  for p in parts:
    own = [Factor(1, (0, 1)), *p] if prod(f.full for f in p) == inner else _split(p, (inner,))
    head, *tail = own
    bounds += [offset + b for b in head.bounds[1:]]
    rest = refined(rest, tidy(tail))
    offset += head.full
  return tidy((Factor(offset, tuple(bounds)), *rest))


def refined(a: Dim, b: Dim) -> Dim:
  """The coarsest partition that has the bounds of both.

  Raises:
      RejectionError: AXES_CONFLICT.
  """
  if a == b or b == whole(b[0].full):
    return a
  left = _split(a, cut_points([f.full for f in b]))
  right = _split(b, cut_points([f.full for f in left]))
  return tidy(Factor(f.full, tuple(sorted({*f.bounds, *g.bounds}))) for f, g in zip(left, right, strict=True))


def cells(partition: Sequence[Dim]) -> list[Box]:
  """The boxes of a partition, in order."""
  found = [
    [
      tidy(Factor(f.full, own) for f, own in zip(dim, bounds, strict=True))
      for bounds in product(*(pairwise(f.bounds) for f in dim))
    ]
    for dim in partition
  ]
  return [tuple(box) for box in product(*found)]


def whole_box(shape: Sequence[int]) -> Box:
  return tuple(map(whole, shape))


def extents(box: Box) -> tuple[int, ...]:
  """The shape of a box, a number per dimension."""
  return tuple(map(extent, box))


def put(box: Box, axis: int, dim: Dim) -> Box:
  """``box`` with another dimension ``axis``."""
  return (*box[:axis], dim, *box[axis + 1 :])


def reshaped(box: Box, before: Sequence[int], after: Sequence[int]) -> Box:
  """The box of a tensor of shape ``before`` where that is reshaped to ``after``.

  Raises:
      RejectionError: AXES_CONFLICT.
  """
  found = [whole(1)] * len(after)
  for left, right in groups(before, after):
    dims = regrouped([box[i] for i in left], [after[j] for j in right])
    for j, d in zip(right, dims, strict=True):
      found[j] = d
  return tuple(found)


def _conflict(reason: str) -> RejectionError:
  return RejectionError("AXES_CONFLICT", f"a step {reason}")
