"""Numbers with which a warp of its own copies for teams of warps that multiply (``lower/feed.py``).

As in ``warpgroup_numbers.py``, rows of a block's part are 64 to a warpgroup. With one team a
multiprocessor has one part of the output, as large as registers allow; with two, each has its own,
and one's results are written while the other multiplies. Two blocks, or four, share the operand that
has most rows.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil, prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor
from mirage_onnx.lower.feed import barrier_bytes
from mirage_onnx.superopt.warpgroup_numbers import Shape, fastest, whole_us
from mirage_onnx.target import Target

#: Rows and columns of a team's part, its warps, teams; some warpgroups share out columns.
_TEAMS = (
  (128, 256, 8, 1), (128, 192, 8, 1), (128, 128, 8, 1), (192, 128, 12, 1), (192, 192, 12, 1),
  (256, 128, 16, 1),
  (64, 256, 4, 1), (64, 128, 4, 1), (64, 64, 4, 1), (64, 256, 8, 1), (128, 64, 8, 1), (64, 128, 8, 1),
  (64, 256, 4, 2), (64, 192, 4, 2), (64, 128, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2),
)  # fmt: skip
_SHARING, _STEPS, _MOST_STAGES = (1, 2, 4), (64, 128), 8
#: Elements of a part up to which a step may be longer.
_SMALL = 64 * 128
#: A multiprocessor's shared memory, bytes a us; all reads from L2.
SMEM_BYTES_PER_US, L2_TBPS = 2.2e5, 8.0
#: What a step takes besides; until the first products; from the last ones to the end of 32768 elements.
STEP_US, BEGIN_US, END_US = 0.02, 2.5, 3.0


def fed_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  points = fed_numbers(kernel, shape, extents, target)
  return fastest(lambda p: _time_us(kernel, tensors, extents, shape, p, target), points, keep)


def fed_numbers(
  kernel: Kernel, shape: Shape, extents: Mapping[str, int], target: Target
) -> Iterator[KernelParams]:
  """All that such a kernel may have."""
  for rows, columns, warps, teams in _TEAMS:
    if rows > extents[shape.rows] or columns > extents[shape.columns]:
      continue
    tile = {shape.rows: rows, shape.columns: columns}
    blocks = {a: -(-extents[a] // t) for a, t in tile.items()}
    for sharing, step in product(_SHARING, _STEPS if rows * columns <= _SMALL else _STEPS[:1]):
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
  groups = params.warps // WGMMA.warps
  rate = target.mma_tflops * WGMMA.share * 1e6 / target.multiprocessors
  mma_us = 2 * rows * columns * WGMMA.step / rate
  parts = max(1, params.warps * 16 // rows)
  most, least = max(rows, columns), min(rows, columns)
  bytes_ = WGMMA.swizzle_bytes
  read = (WGMMA.rows + columns // parts) * groups
  moved_us = (read + rows + columns) * bytes_ / SMEM_BYTES_PER_US
  busy = min(tiles, target.multiprocessors)
  loaded_us = (least + most / params.sharing) * bytes_ * busy / (L2_TBPS * 1e6)
  step_us = max(mma_us, moved_us, loaded_us) + STEP_US * WGMMA.step / params.loop_tile
  blocks = target.multiprocessors - (target.multiprocessors % 16 if params.sharing > 2 else 0)
  rounds = ceil(tiles / blocks)
  end_us = END_US * rows * columns / 2**15
  ends = rounds if params.teams == 1 else 1
  compute_us = BEGIN_US + rounds * steps * step_us + ends * end_us
  return whole_us(kernel, tensors, extents, compute_us, rows * columns, rounds, params, target)
