"""Sizes of the tiles of a kernel at many parameter points, and how its warps share them out.

Arrays have the shape (tiles, loop tile and cluster; warps and their split; stages), 1 where they do
not depend on it.

The warps share out the rows of the last contraction first. Those that are left share out either its
columns, and then a chained operand and every statistic over columns go through shared memory, or
its depth, and then each has accumulators of its own that are added up once, behind the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_onnx.cost.chip import ARRAYS, Arithmetic
from mirage_onnx.cost.model import PARTS_ASSUMED, element_bytes
from mirage_onnx.cost.tiled_work import BlockValue, CutAxes, Extent, Share, TiledWork
from mirage_onnx.ir.ugraph import KernelParams, Layout, is_part_axis
from mirage_onnx.lower.pieces import GRID, RANK, STEP

Array = NDArray[Any]
ONE: Array = np.ones((1, 1, 1))


@dataclass(frozen=True, slots=True)
class Points:
  """Parameter points as arrays that broadcast: (n, 1, 1), (1, w, 1) and (1, 1, s); or one, as numbers.

  ``by_depth``: whether the warps beyond the rows share out the depth, not the columns.
  """

  tile: tuple[Any, ...]
  cluster: Any
  loop_tile: Any
  warps: Any
  by_depth: Any
  stages: Any

  @classmethod
  def grid(
    cls,
    tile: tuple[Array, ...],
    cluster: Array,
    loop_tile: Array,
    warps: Sequence[int],
    stages: Sequence[int],
  ) -> Points:
    """Points with both splits of the warps that the rows leave over."""
    splits = [(w, deep) for w in warps for deep in (False, True) if w > 1 or not deep]
    return cls(
      tile,
      cluster,
      loop_tile,
      np.array([w for w, _ in splits], dtype=float).reshape(1, -1, 1),
      np.array([deep for _, deep in splits]).reshape(1, -1, 1),
      np.array(stages, dtype=float).reshape(1, 1, -1),
    )

  @classmethod
  def one(cls, params: KernelParams) -> Points:
    """These numbers alone, with both splits of the warps."""
    tile = tuple(column([t]) for t in params.tile)
    loop_tile = column([params.loop_tile])
    return cls.grid(tile, column([params.cluster]), loop_tile, (params.warps,), (params.stages,))


def column(values: Sequence[int]) -> Array:
  """Along the first dimension."""
  return np.array(values, dtype=float).reshape(-1, 1, 1)


def up(size: Any, to: int, n: Arithmetic = ARRAYS) -> Any:
  """``size`` rounded up to a multiple."""
  return size if to == 1 else n.ceil(size * (1 / to)) * to


def power_of_two(n: Array) -> Array:
  """The largest power of two that is not above ``n`` (at least 1)."""
  return 2.0 ** np.floor(np.log2(np.maximum(n, 1)))


@dataclass(slots=True)
class TileSizes:
  """Sizes of tiles at all points, each computed once; ``n``: of arrays, or of one point's numbers."""

  work: TiledWork
  extents: Mapping[str, int]
  points: Points
  n: Arithmetic = ARRAYS
  known: dict[CutAxes, Any] = field(default_factory=dict)
  slots: dict[tuple[Extent, tuple[int, int], int], Any] = field(default_factory=dict)

  @property
  def _one(self) -> Any:
    return ONE if self.n is ARRAYS else 1

  def axis(self, name: str, cut: str) -> Any:
    """Elements that a tile has of an axis which these levels cut."""
    if name not in self.extents and is_part_axis(name):
      return self._one * PARTS_ASSUMED
    size = self._one * self.extents[name]
    if GRID in cut:
      size = self.n.least(size, self.points.tile[self.work.kernel.grid.index(name)])
    if RANK in cut:
      size = self.n.ceil(size / self.points.cluster)
    if STEP in cut:
      size = self.n.least(size, self.points.loop_tile)
    return size

  def of(self, axes: CutAxes) -> Any:
    """Elements of a tile over ``axes``."""
    if axes not in self.known:
      self.known[axes] = prod((self.axis(name, cut) for name, cut in axes), start=self._one)
    return self.known[axes]

  def bytes(self, v: BlockValue) -> Any:
    """Of the tile of a value, as it lies in shared memory."""
    return self.of(v.extent.axes) * v.op.dtype.size_bytes

  def padded(self, v: BlockValue) -> Any:
    """Lane slots of a value: its elements, padded to fragments, copies counted."""
    key = (v.extent, v.pad, v.copies)
    if key not in self.slots:
      rows, columns = v.pad
      g, t = up(self.of(v.extent.g), rows, self.n), up(self.of(v.extent.t), columns, self.n)
      self.slots[key] = g * t * self.of(v.extent.rest) * v.copies
    return self.slots[key]

  def tensor(self, name: str) -> Array:
    """Bytes of a whole tensor."""
    tensor, parts = self.work.tensors[name], self.work.parted(name)
    n: Array = np.full((1, 1, 1), float(element_bytes(tensor)))
    for axis in tensor.axes:
      if axis in parts:
        n = n * self.parts(parts[axis])
      elif axis in self.extents:
        n = n * self.extents[axis]
      else:
        n = n * PARTS_ASSUMED
    return n

  def parts(self, axis: str) -> Array:
    """Tiles along an axis of the grid."""
    n: Array = np.ceil(self.extents[axis] / self.points.tile[self.work.kernel.grid.index(axis)])
    return n


@dataclass(frozen=True, slots=True)
class WarpCounts:
  """How many warps have other rows, other columns, other depth."""

  rows: Array
  columns: Array
  depth: Array
  _divided: dict[int, Array] = field(default_factory=dict)

  @classmethod
  def of(cls, work: TiledWork, sizes: TileSizes, points: Points) -> tuple[WarpCounts, Array]:
    """The split, and where it leaves warps idle."""
    last = work.last
    if last is None:
      widest = ONE
      for v in work.values:
        if v.op.layout is Layout.VECTOR:
          widest = np.maximum(widest, sizes.of(v.extent.axes))
      return cls(points.warps, ONE, ONE), (widest < 32 * points.warps) & (points.warps > 1)
    rows = np.ceil(sizes.of(last.rows) / 16) * sizes.of(last.batch)
    by_rows = np.minimum(points.warps, power_of_two(rows))
    rest = points.warps / by_rows
    split = cls(by_rows, np.where(points.by_depth, 1, rest), np.where(points.by_depth, rest, 1))
    columns, depth = np.ceil(sizes.of(last.columns) / 8), sizes.of(last.depth) / 16
    idle = (np.where(points.by_depth, depth, columns) < rest) & (rest > 1)
    return split, idle

  def dividing(self, share: int) -> Array:
    """Into how many pieces the warps of these sides divide a value."""
    if share in self._divided:
      return self._divided[share]
    n: Array = ONE
    for part, warps in (
      (Share.ROWS, self.rows),
      (Share.COLUMNS, self.columns),
      (Share.DEPTH, self.depth),
    ):
      if part & share:
        n = n * warps
    self._divided[share] = n
    return n

  def having(self, share: int) -> Array:
    """WarpCounts that have a copy of what is divided so."""
    return self.rows * self.columns * self.depth / self.dividing(share)
