"""Numbers with which a warp of its own copies for teams of warps that multiply (``lower/feed.py``).

As in ``warpgroup_numbers.py``, rows of a block's part are 64 to a warpgroup. With one team a
multiprocessor has one part of the output, as large as registers allow; with two, each has its own,
and one's results are written while the other multiplies. Two blocks, or four, share the operand that
has most rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product, zip_longest
from math import ceil, prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor
from mirage_onnx.lower.feed import barrier_bytes
from mirage_onnx.superopt.warpgroup_numbers import Shape, fastest, warpgroup_points, whole_us
from mirage_onnx.target import Target

#: Rows and columns of a team's part, its warps, teams; some warpgroups share out columns.
_TEAMS = (
  (128, 256, 8, 1), (128, 192, 8, 1), (128, 128, 8, 1), (192, 128, 12, 1), (192, 192, 12, 1),
  (256, 128, 16, 1),
  (64, 256, 4, 1), (64, 128, 4, 1), (64, 64, 4, 1), (64, 256, 8, 1), (128, 64, 8, 1), (64, 128, 8, 1),
  (64, 256, 4, 2), (64, 192, 4, 2), (64, 128, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2),
)  # fmt: skip
_STEPS, _MOST_STAGES = (64, 128), 8
#: Blocks that share an operand.
SHARING = (1,)
#: Elements of a part up to which a step may be longer.
_SMALL = 64 * 128
#: Fitted to 571 times of 24 products on an H200 without sharing (bench/results/h200/fed_*.json), off by
#: a factor of 1.16 (root mean square); the first point took 1.013 times as long as the fastest
#: (geometric mean), which was among the first three. A multiprocessor's shared memory, bytes a us; all
#: reads from L2; products.
SMEM_BYTES_PER_US, L2_TBPS, _PRODUCTS = 2.8e5, 10.9, 0.94
#: A trip to L2; what a step takes besides; until the first products; from the last ones to the end of 32768
#: elements, and a function of special units for each of them.
TRIP_US, STEP_US, BEGIN_US, END_US, SPECIAL_US = 0.8, 0.006, 4.4, 2.1, 2.1


def product_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int,
  *, counted: bool = False,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The best of these and of ``warpgroup_points`` in turn, for how they compare is predicted roughly.

  ``counted``: a run counts sizes, and there are none of these.
  """
  fed = () if counted else fed_points(kernel, tensors, extents, target, keep)
  others = warpgroup_points(kernel, tensors, extents, target, keep)
  pairs = [sorted(filter(None, pair), key=lambda f: f[0]) for pair in zip_longest(fed, others)]
  return tuple(found for pair in pairs for found in pair)[:keep]


def fed_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int,
  sharing: Sequence[int] = SHARING,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  points = _points(kernel, shape, extents, target, sharing)
  return fastest(lambda p: _time_us(kernel, tensors, extents, shape, p, target), points, keep)


def _points(
  kernel: Kernel, shape: Shape, extents: Mapping[str, int], target: Target, every: Sequence[int]
) -> Iterator[KernelParams]:
  for rows, columns, warps, teams in _TEAMS:
    if rows > extents[shape.rows] or columns > extents[shape.columns]:
      continue
    tile = {shape.rows: rows, shape.columns: columns}
    blocks = {a: -(-extents[a] // t) for a, t in tile.items()}
    for sharing, step in product(every, _STEPS if rows * columns <= _SMALL else _STEPS[:1]):
      each = (rows * shape.row_bytes + columns * shape.column_bytes) * step
      stages = min(_MOST_STAGES, (target.smem_bytes - barrier_bytes(_MOST_STAGES)) // each)
      # Blocks differ in the rows of the operand with fewer.
      apart = shape.rows if columns >= rows else shape.columns
      if blocks[apart] % sharing == 0 and 2 < stages < ceil(extents[kernel.loop or ""] / step) + 2:
        tiles = tuple(tile.get(a, 1) for a in kernel.grid)
        yield KernelParams(tiles, 1, step, warps, stages, WGMMA.name, teams=teams, sharing=sharing)


def _time_us(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], shape: Shape,
  params: KernelParams, target: Target,
) -> float:  # fmt: skip
  tile = dict(zip(kernel.grid, params.tile, strict=True))
  rows, columns = tile[shape.rows], tile[shape.columns]
  tiles = prod(ceil(extents[a] / t) for a, t in tile.items())
  steps = ceil(extents[kernel.loop or ""] / WGMMA.step)
  rate = target.mma_tflops * WGMMA.share * 1e6 / target.multiprocessors
  mma_us = _PRODUCTS * 2 * rows * columns * WGMMA.step * shape.products / rate
  # A warpgroup reads its rows and the columns that it has; blocks that share copy a piece for all.
  parts = max(1, params.warps * 16 // rows)
  read = (WGMMA.rows + columns // parts) * (params.warps // WGMMA.warps) * shape.products
  sides = rows * shape.row_bytes // 2, columns * shape.column_bytes // 2
  moved_us = (read + sum(sides)) * WGMMA.swizzle_bytes / SMEM_BYTES_PER_US
  busy = min(tiles, target.multiprocessors)
  copied = min(sides) + max(sides) / params.sharing
  loaded_us = copied * WGMMA.swizzle_bytes * busy / (L2_TBPS * 1e6)
  longer = params.loop_tile // WGMMA.step
  trip_us = TRIP_US / ((params.stages - 1) * longer)
  part_us = steps * (max(mma_us, moved_us, loaded_us, trip_us) + STEP_US / longer)
  blocks = target.multiprocessors - (target.multiprocessors % 16 if params.sharing > 2 else 0)
  rounds = ceil(tiles / blocks)
  end_us = (END_US + SPECIAL_US * _specials(kernel, shape)) * rows * columns / 2**15
  if params.teams == 1:
    compute_us = rounds * (part_us + end_us)
  else:
    compute_us = max(rounds * part_us + end_us, ceil(rounds / params.teams) * (part_us + end_us))
  return whole_us(kernel, tensors, extents, BEGIN_US + compute_us, rows * columns, rounds, params, target)


def _specials(kernel: Kernel, shape: Shape) -> int:
  """Functions of all results for which there are few units."""
  found = [op for op in kernel.ops if op.op in ELEMENTWISE and {shape.rows, shape.columns} <= {*op.axes}]
  return sum(ELEMENTWISE[op.op].price is not Price.LANE for op in found)
