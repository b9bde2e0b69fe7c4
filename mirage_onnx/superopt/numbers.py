"""Numbers: for concrete extents, the best few integer parameters of a kernel by the cost model.

The space is small (tiles, cluster size, warps, stages), so it is enumerated; capacity limits
(registers, shared memory, cluster size, alignment of the cluster's split) drop points, by reason.
All points of a streaming kernel are ranked in one pass (``cost.model.estimate``).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_onnx.cost.model import (
  ROUNDING,
  Cost,
  Features,
  elements_per_thread,
  estimate,
  features,
  kernel_cost,
)
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Layout
from mirage_onnx.target import Target

Array = NDArray[Any]

#: Registers per thread beyond which a compiled kernel risks spills.
MAX_REGISTERS = 160
#: The same with packed weights, whose kernels leave what is not of their ring to the compiler.
MAX_PACKED_REGISTERS = 200
#: Columns of a block of a streaming kernel.
MOST_COLUMNS = 128
#: Elements of the spread axis that one thread of a row kernel may hold.
MAX_PER_THREAD = 64
#: So few that more warps for a row are no faster: of 19 regions of row kernels that an H200 timed the first
#: numbers took 1.05 of the fastest; 1.16 (2.3 at worst) with one warp first, whatever the row
#: (bench/results/h200/row_warps.json).
FEW_PER_THREAD = 8
#: Longest row of which a block may have several.
MAX_PACKED = 256


def solve(
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  extents: Mapping[str, int],
  target: Target,
  *,
  keep: int = 8,
  pruned: Counter[str] | None = None,
  allow: Callable[[KernelParams], bool] | None = None,
) -> tuple[tuple[Cost, KernelParams], ...]:
  """The ``keep`` cheapest parameter points, cheapest first (ties: canonical order).

  ``allow`` is asked about the cheapest ones that fit, until it has allowed ``keep`` points.
  """
  dropped = pruned if pruned is not None else Counter()
  read = features(kernel, tensors, extents)
  found: Iterable[tuple[Cost, KernelParams]]
  if kernel.loop is None:
    found = _row_points(read, tensors, target, dropped)
  else:
    found = _streaming_points(read, extents, target, keep, dropped)
  return tuple(islice((f for f in found if allow is None or allow(f[1])), keep))


def _in_order(found: list[tuple[Cost, KernelParams]]) -> list[tuple[Cost, KernelParams]]:
  return sorted(found, key=lambda f: (f[0].time_us, f[1].to_text()))


def _row_points(
  read: Features, tensors: Mapping[str, KTensor], target: Target, dropped: Counter[str]
) -> list[tuple[Cost, KernelParams]]:
  """All points of a row kernel that fit, cheapest first.

  What the cost does not tell apart, as how many warps share a row: first where a thread has few elements.
  """
  found: list[tuple[Cost, KernelParams]] = []
  for params in row_numbers(read, tensors):
    cost = kernel_cost(read, params, target)
    if cost.registers > MAX_REGISTERS:
      dropped["registers"] += 1
    elif cost.smem_bytes > target.smem_bytes:
      dropped["shared memory"] += 1
    elif elements_per_thread(read, params) > MAX_PER_THREAD:
      dropped["row too long for the registers of a block"] += 1
    else:
      found.append((cost, params))
  return sorted(found, key=lambda f: (f[0].time_us, _crowded(read, f[1]), f[1].warps, f[1].to_text()))


def _crowded(read: Features, params: KernelParams) -> int:
  """Elements of a thread beyond ``FEW_PER_THREAD``."""
  return max(0, elements_per_thread(read, params) - FEW_PER_THREAD)


def row_numbers(read: Features, tensors: Mapping[str, KTensor]) -> Iterator[KernelParams]:
  """A row for each block; where rows are short, some for each warp too.

  Those lie along the innermost grid axis of the first result, so that their results adjoin.
  """
  kernel, extents = read.kernel, read.extents
  alone = tuple(1 for _ in kernel.grid)
  for warps in (1, 2, 4, 8, 16):
    yield KernelParams(alone, warps=warps)
  row, axes = read.row, tensors[kernel.saves[0].tensor].axes
  axis = next((a for a in reversed(axes) if a in kernel.grid), None)
  if axis is None or row > MAX_PACKED:
    return
  at = kernel.grid.index(axis)
  for warps, lanes in product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
    rows = 32 * warps // lanes
    if 1 < rows <= extents[axis] and lanes <= row <= 16 * lanes:
      yield KernelParams((*alone[:at], rows, *alone[at + 1 :]), warps=warps)


def _streaming_points(
  read: Features, extents: Mapping[str, int], target: Target, first: int, dropped: Counter[str]
) -> Iterator[tuple[Cost, KernelParams]]:
  """All points of a streaming kernel that fit, cheapest first; ``first`` are likely wanted."""
  step = read.step
  tile, cluster, warps, stages = _enumerate(read.kernel, extents, target, step)
  times = estimate(read, tile, cluster, warps, stages, target)
  spills = times.registers > (MAX_REGISTERS if read.lane_depth == 8 else MAX_PACKED_REGISTERS)
  spills = spills | (times.registers * 32 * warps > target.registers_per_sm)
  too_large = ~spills & (times.smem_bytes > target.smem_bytes)
  for reason, where in (("registers", spills), ("shared memory", too_large)):
    if where.any():
      dropped[reason] += int(np.count_nonzero(where))

  def cost(i: int) -> tuple[Cost, KernelParams]:
    numbers = int(cluster[i]), step * int(warps[i]), int(warps[i]), int(stages[i])
    params = KernelParams(tuple(int(t[i]) for t in tile), *numbers)
    return kernel_cost(read, params, target), params

  left = np.flatnonzero(~(spills | too_large))
  while left.size:
    time_us = times.time_us[left]
    count = min(first, left.size)
    # Times that rounding alone may part are put in order by the exact ones.
    limit = np.partition(time_us, count - 1)[count - 1] * (1 + ROUNDING)
    while np.any((time_us > limit) & (time_us <= limit * (1 + ROUNDING))):
      limit *= 1 + ROUNDING
    near = time_us <= limit
    yield from _in_order([cost(int(i)) for i in left[near]])
    left = left[~near]


def _enumerate(
  kernel: Kernel, extents: Mapping[str, int], target: Target, step: int
) -> tuple[tuple[Array, ...], Array, Array, Array]:
  """Tiles by grid axis, cluster sizes, warps and stages of all points; ``step``: depth of a warp's step."""
  assert kernel.loop is not None
  choices, clusters = tile_choices(kernel, extents, target)
  axes = np.meshgrid(*choices, clusters, _warps(kernel), (1, 2, 4, 8), indexing="ij")
  *tile, cluster, warps, stages = (a.ravel() for a in axes)
  steps = -(-extents[kernel.loop] // (step * cluster))
  useful = (warps <= np.maximum(2, steps)) & (stages <= np.maximum(1, -(-steps // warps)))
  return tuple(t[useful] for t in tile), cluster[useful], warps[useful], stages[useful]


def _warps(kernel: Kernel) -> tuple[int, ...]:
  """Numbers of warps. Of packed weights more: what hides their widening is warps, not bytes under way."""
  return (2, 4, 8, 16) if kernel.lane_depth > 8 else (2, 4, 8)


def _column_tiles(kernel: Kernel, extent: int, target: Target) -> list[int]:
  """Tiles of a column axis; of packed weights also those that leave every multiprocessor as many blocks.

  Widening takes time, and so does a multiprocessor that has a block more than others.
  """
  found = {16, 32, 64}
  if kernel.lane_depth > 8:
    tiles = -(-extent // 16)
    found |= {16 * -(-tiles // (target.multiprocessors * blocks)) for blocks in (1, 2)}
  return sorted(t for t in found if t <= MOST_COLUMNS)


def tile_choices(
  kernel: Kernel, extents: Mapping[str, int], target: Target
) -> tuple[list[list[int]], list[int]]:
  """Of a streaming kernel: tiles of every grid axis, and sizes of clusters."""
  assert kernel.loop is not None
  row_axes = {a for o in kernel.ops if o.layout is Layout.B_FRAG for a in o.axes if a != kernel.loop}
  choices = []
  for axis in kernel.grid:
    extent = extents[axis]
    if axis in row_axes:
      choices.append([t for t in (8, 16, 32) if t < 2 * max(extent, 8)])
    else:
      choices.append([t for t in _column_tiles(kernel, extent, target) if t == 16 or t <= extent])
  depth = extents[kernel.loop]
  clusters = [1]
  if kernel.cluster and target.has_clusters:
    step = 4 * kernel.lane_depth
    clusters += [c for c in (2, 4) if depth % (step * c) == 0 and depth // c >= 256]
  return choices, clusters
