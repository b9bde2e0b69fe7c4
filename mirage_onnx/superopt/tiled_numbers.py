"""Numbers of tiled kernels: for concrete extents, the best few parameter points by ``cost/tiled.py``.

The candidates are enumerated by what an axis is to the kernel, with powers of two and the whole
axis, and evaluated together. Where there would be too many, every second tile size of the axis with
the most of them is left out, until there are not.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import repeat
from math import prod
from typing import Any, cast

import numpy as np

from mirage_onnx.cost.model import PARTS_ASSUMED, Cost
from mirage_onnx.cost.tiled import MAX_REGISTERS, fits_nowhere, resources, tiled_costs
from mirage_onnx.cost.tiled_block import cluster_piece, loop_piece
from mirage_onnx.cost.tiled_sizes import ONE, Array, Points, TileSizes
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.ir.block_ops import REDUCTIONS
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Layout
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.tiled_layouts import spread_axis
from mirage_onnx.target import Target

#: Points before warps and stages are chosen: so many are evaluated in some milliseconds.
MAX_TILES = 8192
WARPS, STAGES, CLUSTERS = (1, 2, 4, 8), (1, 2, 3, 4), (1, 2, 4, 8, 16)
#: What the most threads of a block have in registers.
REGISTER_BYTES = 4 * 32 * max(WARPS) * MAX_REGISTERS
LARGEST_TILE, LARGEST_BATCH, LARGEST_SPREAD = 256, 8, 4096
#: Of what a block loads: it does not matter how that is copied.
LITTLE = 0.1


def solve_tiled(
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  extents: Mapping[str, int],
  target: Target,
  *,
  keep: int = 8,
  pruned: Counter[str] | None = None,
  allow: Callable[[KernelParams], bool] | None = None,
  work: TiledWork | None = None,
) -> tuple[tuple[Cost, KernelParams], ...]:
  """The ``keep`` cheapest parameter points of a kernel with tiled layouts, cheapest first.

  Ties go to the point that was enumerated first: smaller tiles, clusters, warps, stages.
  ``extents`` may lack part axes. ``pruned`` counts the points that do not fit, by reason.
  ``allow`` is asked in this order, until it has allowed ``keep`` points. ``work``: of the kernel,
  if it is known.
  """
  work = work or TiledWork.of(kernel, tensors)
  choices = _choices(work, extents, target)
  reason = fits_nowhere(work, extents, choices.least, target)
  if reason is not None:
    if pruned is not None:
      pruned[reason] += choices.count
    return ()
  points = _fitting(work, extents, _points(work, extents, choices), target, pruned)
  if not points.cluster.size:
    return ()
  costs, refused = tiled_costs(work, extents, points, target)
  shape = np.broadcast_shapes(costs.time_us.shape, points.warps.shape, points.stages.shape)
  fits = np.ones(shape, dtype=bool)
  for reason, where in refused.items():
    if pruned is not None:
      pruned[reason] += int(np.count_nonzero(fits & where))
    fits &= ~where
  # What fits, as a list: often far less than half.
  found = np.flatnonzero(fits)
  time_us = np.broadcast_to(costs.time_us, shape).ravel()[found]
  seen: set[KernelParams] = set()
  allowed: list[tuple[Cost, KernelParams]] = []
  by = work.instruction(target).name
  for some in _cheapest_first(time_us, 2 * keep):
    places = np.unravel_index(found[some], shape)
    for cost, params in zip(_costs(costs, places), _params(kernel, points, places, by), strict=True):
      # Both splits of the warps may be among the best: they are one point.
      if params not in seen and len(allowed) < keep:
        seen.add(params)
        if allow is None or allow(params):
          allowed.append((cost, params))
    if len(allowed) >= keep:
      break
  return tuple(allowed)


def _cheapest_first(time_us: Array, first: int) -> Iterator[Array]:
  """The indices of the elements by size, ties by index; the first few without a sort."""
  left = np.arange(time_us.size)
  while left.size:
    own = time_us[left]
    near = own <= np.partition(own, min(first, left.size) - 1)[min(first, left.size) - 1]
    some = left[near]
    yield some[np.argsort(time_us[some], kind="stable")]
    left, first = left[~near], 8 * first


def tiled_cost(
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  extents: Mapping[str, int],
  params: KernelParams,
  target: Target,
) -> Cost | None:
  """The cost of one parameter point, warps split the better way; None: it does not fit."""
  work = TiledWork.of(kernel, tensors)
  points = Points.one(params)
  costs, refused = tiled_costs(work, extents, points, target)
  out = np.logical_or.reduce(np.broadcast_arrays(*refused.values()))
  time_us = np.where(out, np.inf, costs.time_us)
  at = np.unravel_index([int(np.argmin(time_us))], time_us.shape)
  return next(_costs(costs, at)) if np.isfinite(time_us[at]) else None


@dataclass(frozen=True, slots=True)
class _Choices:
  """Ascending: tiles of the axes of the grid, ranks, tiles of the loop; depths of the ring."""

  tiles: list[list[int]]
  clusters: list[int]
  loop_tiles: list[int]
  stages: tuple[int, ...]

  @property
  def tile_count(self) -> int:
    return prod(map(len, self.tiles)) * len(self.clusters) * len(self.loop_tiles)

  @property
  def count(self) -> int:
    """Points, with both splits of the warps."""
    return self.tile_count * (2 * len(WARPS) - 1) * len(self.stages)

  @property
  def least(self) -> Points:
    """The smallest tiles with the most ranks and warps."""
    tile = tuple(t[0] for t in self.tiles)
    return Points(tile, self.clusters[-1], self.loop_tiles[0], WARPS[-1], by_depth=False, stages=1)


def _choices(work: TiledWork, extents: Mapping[str, int], target: Target) -> _Choices:
  kernel = work.kernel
  tiles = [_tiles(work, a, extents.get(a, PARTS_ASSUMED)) for a in kernel.grid]
  clusters = [1]
  if kernel.cluster is not None and target.has_clusters:
    clusters = [c for c in CLUSTERS if c <= target.max_cluster]
  loop_tiles = [0]
  if kernel.loop is not None:
    extent = extents.get(kernel.loop, PARTS_ASSUMED)
    largest = LARGEST_TILE if work.products else LARGEST_SPREAD
    loop_tiles = _powers(16, min(extent, largest))
    loop_tiles += [extent] if extent <= largest and extent not in loop_tiles else []
  found = _Choices(tiles, clusters, loop_tiles, STAGES if kernel.loop is not None else STAGES[:1])
  while found.tile_count > MAX_TILES:
    longest = max(tiles, key=len, default=loop_tiles)
    if len(longest) < 3:
      break
    del longest[-2::-2]
  return found


def _points(work: TiledWork, extents: Mapping[str, int], choices: _Choices) -> Points:
  kernel, loop_tiles, stages = work.kernel, choices.loop_tiles, choices.stages
  tiles, clusters = choices.tiles, choices.clusters
  axes = np.meshgrid(*tiles, clusters, loop_tiles, indexing="ij")
  *tile, cluster, loop_tile = (a.reshape(-1, 1, 1).astype(float) for a in axes)
  points = Points.grid(tuple(tile), cluster, loop_tile, WARPS, stages)
  possible = np.ones(cluster.shape, dtype=bool)
  sizes = TileSizes(work, extents, points)
  if kernel.loop is not None:
    piece = loop_piece(work, sizes)
    # A tile that is twice too long is the same as one that is not, in more memory.
    possible &= (loop_tile < 2 * piece) | (loop_tile == loop_tiles[0])
  if kernel.cluster is not None:
    whole = cluster_piece(work, sizes)
    possible &= np.ceil(whole / cluster) * (cluster - 1) < whole
    possible &= np.broadcast_to(_between_chunks(work, sizes, whole, cluster), cluster.shape)
  kept = np.broadcast_to(possible, cluster.shape).ravel()
  return Points.grid(tuple(t[kept] for t in tile), cluster[kept], loop_tile[kept], WARPS, stages)


def _between_chunks(work: TiledWork, sizes: TileSizes, whole: Array, cluster: Array) -> Array:
  """Whether ranks' shares begin between the chunks of 16 bytes of the operands.

  Where one begins inside a chunk, every element is copied by itself (products over 3000 keys, an H100:
  346 us by 8 ranks of 375, 69 without a cluster). What has no whole chunks at all has them nowhere, and of
  little, as a mask of one row, that matters little.
  """
  axis, share = work.kernel.cluster, np.ceil(whole / cluster)
  fits = np.ones(cluster.shape, dtype=bool)
  if axis is not None and axis == work.kernel.loop and is_runtime(sizes.extents, axis):
    return fits  # whole steps: ``lower/pieces.py``
  loads = [(v.op, sizes.of(v.extent.axes)) for v in work.values if v.op.op == "load"]
  most = sum(size for _, size in loads)
  for op, size in loads:
    if op.layout is Layout.SHARED and op.cmap == axis == work.tensors[op.tensor].inner:
      chunk = 128 // op.dtype.bits
      fits &= (cluster == 1) | (share % chunk == 0) | (whole % chunk != 0) | (size < LITTLE * most)
  return fits


def _fitting(
  work: TiledWork,
  extents: Mapping[str, int],
  points: Points,
  target: Target,
  pruned: Counter[str] | None,
) -> Points:
  """The points that fit with one stage, as a list: most do not, and a cost takes longer."""
  count = points.stages.size
  once = replace(points, stages=ONE)
  warps, _, _, refused = resources(work, TileSizes(work, extents, once), once, target)
  shape = (points.cluster.shape[0], points.warps.shape[1], 1)
  fits = np.ones(shape, dtype=bool)
  for reason, where in refused.items():
    if pruned is not None:
      pruned[reason] += count * int(np.count_nonzero(fits & where))
    fits &= ~where
  # No warps are left beyond the rows: both splits are one point.
  fits &= ~(points.by_depth & (warps.rows == points.warps))

  def kept(values: Array) -> Array:
    return np.broadcast_to(values, shape)[fits].reshape(-1, 1, 1)

  return Points(
    tuple(kept(t) for t in points.tile),
    kept(points.cluster),
    kept(points.loop_tile),
    kept(points.warps),
    kept(points.by_depth),
    points.stages,
  )


def _powers(first: int, last: int) -> list[int]:
  """Powers of two from ``first`` to ``last``, at least one number."""
  return [n for n in (1 << i for i in range(21)) if first <= n <= last] or [last]


def _tiles(work: TiledWork, axis: str, extent: int) -> list[int]:
  """Tile sizes of a grid axis."""
  summed = {a for v in work.values if v.op.op in REDUCTIONS for a in v.op.reduced}
  summed |= {a for p in work.products for a, _ in p.depth}
  sides = [tuple(a for a, _ in side) for p in work.products for side in (p.rows, p.columns)]
  first, last = 1, LARGEST_BATCH
  if axis in summed or axis == work.kernel.loop:
    first, last = 32, extent
  elif not work.products:
    spread = axis == spread_axis(work.kernel, work.tensors)
    first, last = (32, LARGEST_SPREAD) if spread else (1, LARGEST_TILE)
  elif any(axis in side for side in sides):
    # One of several axes of a side has small tiles too: the side is their product.
    alone = all(side == (axis,) for side in sides if axis in side)
    first, last = (8 if alone else 1), LARGEST_TILE
  found = _powers(first, min(last, extent))
  if axis == work.kernel.loop:
    # Of powers of two alone, some lengths leave a third of the multiprocessors without a piece.
    # Where those divide the axis and these do not, every load would have to look for its end
    # (GQA decode over 8192 keys on an H200: 117 us in pieces of 384, 26 in pieces of 512).
    thirds = [(n, 3 * n // 2) for n in found if n >= 64]
    found += [m for n, m in thirds if m < extent and (extent % m == 0 or extent % n)]
    found.sort()
  if extent <= last and extent not in found:
    found.append(extent)
  return found


def _at(values: Array, where: tuple[Array, ...]) -> list[Any]:
  """The elements of an array that broadcasts."""
  found = values[tuple(i if n > 1 else 0 * i for i, n in zip(where, values.shape, strict=True))]
  return cast(list[Any], found.tolist())


def _params(
  kernel: Kernel, points: Points, where: tuple[Array, ...], instruction: str
) -> Iterator[KernelParams]:
  tiles = zip(*(map(int, _at(t, where)) for t in points.tile), strict=True) if points.tile else repeat(())
  numbers = (points.cluster, points.loop_tile, points.warps, points.stages)
  looped = kernel.loop is not None
  for tile, row in zip(tiles, zip(*(_at(n, where) for n in numbers), strict=True), strict=False):
    cluster, loop_tile, warps, stages = map(int, row)
    yield KernelParams(tile, cluster, loop_tile if looped else 0, warps, stages, instruction)


def _costs(costs: Cost, where: tuple[Array, ...]) -> Iterator[Cost]:
  time_us, *counts = (_at(getattr(costs, f.name), where) for f in fields(Cost))
  for us, *row in zip(time_us, *counts, strict=True):
    yield Cost(us, *map(int, row))
