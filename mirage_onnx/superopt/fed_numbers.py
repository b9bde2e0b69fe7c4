"""Numbers with which a warp of its own copies for teams of warps that multiply (``lower/feed.py``).

As in ``warpgroup_numbers.py``, rows of a block's part are 64 to a warpgroup. With one team a
multiprocessor has one part of the output, as large as registers allow; with two, each has its own,
and one's results are written while the other multiplies. Blocks may share the operand that has most
rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor
from mirage_onnx.lower.feed import REGISTERS, barrier_bytes
from mirage_onnx.superopt.warpgroup_numbers import (
  OTHER_REGISTERS,
  Shape,
  in_turn,
  lowered_fastest,
  warpgroup_points,
)
from mirage_onnx.target import Target

#: Rows and columns of a team's part, its warps, teams; some warpgroups share out columns.
_TEAMS = (
  (128, 256, 8, 1), (128, 224, 8, 1), (128, 192, 8, 1), (128, 160, 8, 1), (128, 128, 8, 1), (128, 96, 8, 1),
  (192, 128, 12, 1), (192, 192, 12, 1), (256, 128, 16, 1),
  (64, 256, 4, 1), (64, 128, 4, 1), (64, 64, 4, 1), (64, 256, 8, 1), (128, 64, 8, 1), (64, 128, 8, 1),
  (64, 256, 4, 2), (64, 192, 4, 2), (64, 128, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2),
)  # fmt: skip
_STEPS, _MOST_STAGES = (64, 128), 8
#: Blocks that share an operand.
SHARING = (1,)
#: Elements of a part up to which a step may be longer.
_SMALL = 64 * 128
#: Of so many points one has blocks that share.
_LEAST_WITH_SHARED = 4
#: Of a part of two warpgroups with at least so many results that is stored late where a block has several:
#: what that takes of the time (on an H100 .91 to .99 in twelve cases, and with functions beside the next
#: part's products, too, .93 to .99 in four: bench/results/h100/step_apart.json).
_LATE_WARPS, _LATE_PART, _LATE_TIME, _BESIDE_TIME = 8, 128 * 128, 0.96, 0.96

#: Registers of a lane of one warpgroup, which is given none of those of the one that copies.
_FEW_WARPS_HAVE = 255


def product_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int,
  *, counted: bool = False,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The best of these and of ``warpgroup_points`` in turn: how they compare the formula does not know.

  On an H200 its first of these took 1.006 times as long as their fastest (24 products, geometric mean,
  bench/results/h200/fed_products.json). The last is one whose blocks share an operand: best where rows do not
  begin at lines of L2, by 4 to 10 % (bench/results/h200/ranked_products.json). ``counted``: a run counts
  sizes, and there are none of these. Where one is asked for and parts fill the chip, it is of these (of 16
  such products they were ahead by 1 to 11 % in eleven, behind by .3 to 5 % in five): to rank the others,
  three times as many, is most of what it costs.
  """
  if counted:
    return warpgroup_points(kernel, tensors, extents, target, keep)
  fed = fed_points(kernel, tensors, extents, target, keep)
  if keep == 1 and fed and _fill(kernel, tensors, extents, target):
    return fed
  found = in_turn(fed, warpgroup_points(kernel, tensors, extents, target, keep))
  if len(found) < keep or keep < _LEAST_WITH_SHARED:
    return found[:keep]
  more = fed_points(kernel, tensors, extents, target, 1, sharing=(2,))
  return (*found[: keep - len(more)], *more)


def _fill(kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target) -> bool:
  """Whether each multiprocessor has a part of a usual size, with no ranks that share its depth."""
  shape = Shape.of(kernel, tensors, extents)
  if shape is None:
    return False
  tile = {shape.rows: 128, shape.columns: 128}
  return prod(-(-extents[a] // tile.get(a, 1)) for a in kernel.grid) >= target.multiprocessors


def fed_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int,
  sharing: Sequence[int] = SHARING,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  points = _points(kernel, shape, extents, target, sharing)
  found = lowered_fastest(kernel, tensors, extents, target, points, keep)
  late = [f for us, p in found for f in _late(kernel, tensors, extents, target, us, p)]
  return tuple(sorted((*found, *late), key=lambda f: f[0]))[:keep]


def _late(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, us: float,
  p: KernelParams,
) -> Iterator[tuple[float, KernelParams]]:  # fmt: skip
  """The same with what a block has of a part stored, or finished, beside the products of its next one."""
  parts = prod(-(-extents[a] // n) for a, n in zip(kernel.grid, p.tile, strict=True))
  several = parts > target.multiprocessors and p.teams == 1 and p.warps == _LATE_WARPS
  if not several or len(kernel.saves) != 1 or not tensors[kernel.saves[0].tensor].dtype.is_half:
    return
  if prod(p.tile) >= _LATE_PART and p.sharing <= 2:
    yield _LATE_TIME * us, replace(p, late=1)
  results = kernel.ops[kernel.saves[0].arg].axes
  functions = (ELEMENTWISE[op.op] for op in kernel.ops if op.axes == results and op.op in ELEMENTWISE)
  if p.sharing == 1 and any(f.steady and f.price is not Price.LANE for f in functions):
    yield _BESIDE_TIME * us, replace(p, late=2)


def _points(
  kernel: Kernel,
  shape: Shape,
  extents: Mapping[str, int],
  target: Target,
  every: Sequence[int],
) -> Iterator[KernelParams]:
  for rows, columns, warps, teams in _TEAMS:
    if rows > extents[shape.rows] or columns > extents[shape.columns]:
      continue
    if shape.products > 1 and not _has_registers(
      shape.products * rows * columns // (32 * warps), warps * teams
    ):
      continue
    tile = {shape.rows: rows, shape.columns: columns}
    blocks = {a: -(-extents[a] // tile.get(a, 1)) for a in kernel.grid}
    steps = _STEPS if rows * columns <= _SMALL else _STEPS[:1]
    for sharing, step in product(every, steps):
      each = (rows * shape.row_bytes + columns * shape.column_bytes) * step
      stages = min(_MOST_STAGES, (target.smem_bytes - barrier_bytes(_MOST_STAGES)) // each)
      # Blocks differ in the rows of the operand with fewer.
      apart = shape.rows if columns >= rows else shape.columns
      if blocks[apart] % sharing == 0 and 2 < stages < ceil(extents[kernel.loop or ""] / step) + 2:
        tiles = tuple(tile.get(a, 1) for a in kernel.grid)
        yield KernelParams(tiles, 1, step, warps, stages, WGMMA.name, teams=teams, sharing=sharing)


def _has_registers(sums: int, warps: int) -> bool:
  """Whether a lane has registers for so many sums of several products, and for what is computed of them.

  Gate and up of a LLaMA layer by 224 columns (224 sums), predicted to be fastest, spilled 2,048 bytes.
  """
  _, own = REGISTERS.get(warps // WGMMA.warps, (0, _FEW_WARPS_HAVE))
  return sums + OTHER_REGISTERS <= own
