"""Numbers with which a warp of its own copies for teams of warps that multiply (``lower/feed.py``).

As in ``warpgroup_numbers.py``, rows of a block's part are 64 to a warpgroup. With one team a multiprocessor has one
part of the output, as large as registers allow; with two, each has its own, and one's results are written while the
other multiplies. Two blocks, or four, share the operand that has most rows.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor
from mirage_onnx.lower.feed import barrier_bytes
from mirage_onnx.superopt.warpgroup_numbers import Shape
from mirage_onnx.target import Target

#: Rows and columns of a team's part, its warps, teams: 64 rows a warpgroup, or warpgroups that share out columns.
_TEAMS = (
  (128, 256, 8, 1), (128, 192, 8, 1), (128, 128, 8, 1), (192, 128, 12, 1), (192, 192, 12, 1), (256, 128, 16, 1),
  (64, 256, 4, 1), (64, 128, 4, 1), (64, 64, 4, 1), (64, 256, 8, 1), (128, 64, 8, 1), (64, 128, 8, 1),
  (192, 256, 12, 1), (64, 256, 4, 2), (64, 192, 4, 2), (64, 128, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2),
)  # fmt: skip
_SHARING, _STEPS, _MOST_STAGES = (1, 2, 4), (64, 128), 8
#: Elements of a part up to which a step may be longer.
_SMALL = 64 * 128


def fed_numbers(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target
) -> Iterator[KernelParams]:
  """All that such a kernel may have."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return
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
