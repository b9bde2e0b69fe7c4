"""Arrays whose dimensions are named axes, and the operations that interpreters do on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from mirage_onnx.verify.domain import Domain


@dataclass(frozen=True, slots=True)
class NamedArray:
  """``data`` is [run, *axes]."""

  data: np.ndarray
  axes: tuple[str, ...]

  def __post_init__(self) -> None:
    if self.data.ndim != 1 + len(self.axes) or len(set(self.axes)) != len(self.axes):
      raise ValueError(f"array of shape {self.data.shape} for axes {self.axes}")

  def aligned(self, axes: Sequence[str]) -> np.ndarray:
    """[run, *axes], with extent 1 where the value does not vary over an axis."""
    if tuple(axes) == self.axes:
      return self.data
    order = [1 + self.axes.index(a) for a in axes if a in self.axes]
    if len(order) != len(self.axes):
      raise ValueError(f"a value over {self.axes} does not fit into {tuple(axes)}")
    slot = tuple(slice(None) if a in self.axes else None for a in axes)
    return self.data.transpose(0, *order)[(slice(None), *slot)]


def sizes(values: Iterable[NamedArray]) -> dict[str, int]:
  """Axis -> extent.

  Raises:
      ValueError: two values disagree.
  """
  found: dict[str, int] = {}
  for v in values:
    for axis, n in zip(v.axes, v.data.shape[1:], strict=True):
      if found.setdefault(axis, n) != n:
        raise ValueError(f"axis {axis} has {found[axis]} elements here and {n} there")
  return found


def elementwise(domain: Domain, op: str, *args: NamedArray) -> NamedArray:
  """``op`` over the union of the arguments' axes."""
  axes = tuple(sorted(sizes(args)))
  return NamedArray(domain.elementwise(op, *(a.aligned(axes) for a in args)), axes)


def where(domain: Domain, mask: NamedArray, x: NamedArray, y: NamedArray) -> NamedArray:
  """``x`` where ``mask`` holds, else ``y``, over the union of their axes."""
  axes = tuple(sorted(sizes((mask, x, y))))
  return NamedArray(domain.xp.where(*(v.aligned(axes) for v in (mask, x, y))), axes)


def expand(domain: Domain, x: NamedArray, extents: Mapping[str, int]) -> NamedArray:
  """``x`` over further axes, along which it is constant."""
  new = {a: n for a, n in extents.items() if a not in x.axes}
  if not new:
    return x
  axes = (*new, *x.axes)
  shape = (x.data.shape[0], *new.values(), *x.data.shape[1:])
  return NamedArray(domain.xp.broadcast_to(x.aligned(axes), shape), axes)


def take(x: NamedArray, axis: str, index: np.ndarray, block_axes: Sequence[str]) -> NamedArray:
  """Elements ``index`` [*block_axes, element] of ``axis``: one tile per block and rank."""
  at = x.axes.index(axis)
  data = x.data.take(index, axis=1 + at)
  return NamedArray(data, (*x.axes[:at], *block_axes, *x.axes[at:]))


def fold(domain: Domain, op: str, args: Sequence[NamedArray]) -> NamedArray:
  """``op(op(a, b), c) ...``."""
  result = args[0]
  for a in args[1:]:
    result = elementwise(domain, op, result, a)
  return result


def power(domain: Domain, x: NamedArray, e: Fraction) -> NamedArray:
  return NamedArray(domain.power(x.data, e), x.axes)


def reduce_(domain: Domain, op: str, axes: Iterable[str], x: NamedArray) -> NamedArray:
  """``sum`` or ``rmax`` over ``axes``, all of which x must have."""
  gone = tuple(axes)
  if not set(gone) <= set(x.axes):
    raise ValueError(f"{op} over {gone} of a value over {x.axes}")
  positions = tuple(1 + x.axes.index(a) for a in gone)
  fn = domain.total if op == "sum" else domain.highest
  return NamedArray(fn(x.data, positions), tuple(a for a in x.axes if a not in gone))


def matmul(domain: Domain, x: NamedArray, y: NamedArray, axis: str) -> NamedArray:
  """Sum over ``axis`` of x * y; other axes that both have are batch axes."""
  if axis not in x.axes or axis not in y.axes:
    raise ValueError(f"matmul over {axis} of values over {x.axes} and {y.axes}")
  extent = sizes((x, y))
  batch = [a for a in x.axes if a in y.axes and a != axis]
  rows = [a for a in x.axes if a not in y.axes]
  columns = [a for a in y.axes if a not in x.axes]
  b, m, n = (prod(extent[a] for a in group) for group in (batch, rows, columns))
  k = extent[axis]
  left = x.aligned([*batch, *rows, axis]).reshape(x.data.shape[0], b, m, k)
  right = y.aligned([*batch, axis, *columns]).reshape(y.data.shape[0], b, k, n)
  axes = (*batch, *rows, *columns)
  product = domain.matmul(left, right)
  return NamedArray(product.reshape(product.shape[0], *(extent[a] for a in axes)), axes)
