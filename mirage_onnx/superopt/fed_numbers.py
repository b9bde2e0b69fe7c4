"""Numbers with which a warp of its own copies for teams of warps that multiply (``lower/feed.py``).

As in ``warpgroup_numbers.py``, rows of a block's part are 64 to a warpgroup. With one team a
multiprocessor has one part of the output, as large as registers allow; with two, each has its own,
and one's results are written while the other multiplies. Blocks may share the operand that has most
rows. Where there are fewer parts than multiprocessors, ranks of a cluster share out the depth.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor
from mirage_onnx.lower.feed import barrier_bytes
from mirage_onnx.superopt.warpgroup_numbers import Shape, in_turn, lowered_fastest, warpgroup_points
from mirage_onnx.target import Target

#: Rows and columns of a team's part, its warps, teams; some warpgroups share out columns.
_TEAMS = (
  (128, 256, 8, 1), (128, 192, 8, 1), (128, 128, 8, 1), (192, 128, 12, 1), (192, 192, 12, 1),
  (256, 128, 16, 1),
  (64, 256, 4, 1), (64, 128, 4, 1), (64, 64, 4, 1), (64, 256, 8, 1), (128, 64, 8, 1), (64, 128, 8, 1),
  (64, 256, 4, 2), (64, 192, 4, 2), (64, 128, 4, 2), (128, 128, 8, 2), (128, 64, 8, 2), (64, 64, 4, 2),
)  # fmt: skip
_STEPS, _MOST_STAGES = (64, 128), 8
#: Blocks that share an operand; ranks that share out the depth.
SHARING, RANKS = (1,), (1,)
#: Elements of a part up to which a step may be longer.
_SMALL = 64 * 128
#: Of so many points one has blocks that share; of so many some are variants, of these kinds: "lag" (out of
#: step), "late" (stored late), "ranks" (that share out the depth). They are right in the emulator and never
#: ran on a GPU, so no search asks for any, as tests see to; bench/warpgroup_products.py times them.
_LEAST_WITH_SHARED, _LEAST_WITH_VARIANTS = 4, 8
VARIANTS: tuple[str, ...] = ()
#: Ranks that are tried for whoever times them, and how many points have them.
_TRIED_RANKS, _RANKED = (2, 4), 2
#: By warpgroups: results of a lane beside which half as many registers are free, and what computing takes.
_MOST_LATE = {2: 128, 3: 74}


def product_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int,
  *, counted: bool = False, kinds: Sequence[str] = VARIANTS,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The best of these and of ``warpgroup_points`` in turn: how they compare the formula does not know.

  On an H200 its first of these took 1.006 times as long as their fastest (24 products, geometric mean,
  bench/results/h200/fed_products.json). The last is one whose blocks share an operand: best where rows do not
  begin at lines of L2, by 4 to 10 % (bench/results/h200/ranked_products.json). Of many, which somebody times,
  the last are ``variants`` of the best, of these ``kinds``. ``counted``: a run counts sizes, and there are
  none of these.
  """
  others = warpgroup_points(kernel, tensors, extents, target, keep)
  if counted:
    return others
  fed = fed_points(kernel, tensors, extents, target, keep)
  found = in_turn(fed, others)
  if len(found) < keep or keep < _LEAST_WITH_SHARED:
    return found[:keep]
  more = fed_points(kernel, tensors, extents, target, 1, sharing=(2,))
  if keep >= _LEAST_WITH_VARIANTS and kinds:
    more += tuple(variants(kernel, extents, target, fed, kinds))
    ranked = (
      fed_points(kernel, tensors, extents, target, keep, ranks=_TRIED_RANKS) if "ranks" in kinds else ()
    )
    more += tuple(f for f in ranked if f[1].cluster > 1)[:_RANKED]
  return (*found[: keep - len(more)], *more)


def variants(
  kernel: Kernel, extents: Mapping[str, int], target: Target, fed: Sequence[tuple[float, KernelParams]],
  kinds: Sequence[str],
) -> Iterator[tuple[float, KernelParams]]:  # fmt: skip
  """Of ``fed`` with several parts a block: the first out of step, the first that can be stored late so, both.

  They are predicted to take what those take that they are variants of.
  """
  several = [
    (us, p, lag)
    for us, p in fed
    if p.teams == 1 and p.cluster == 1 and (lag := _lag(kernel, extents, p))
    and prod(-(-extents[a] // n) for a, n in zip(kernel.grid, p.tile, strict=True)) > target.multiprocessors
  ]  # fmt: skip
  for us, p, lag in several[:1] if "lag" in kinds else ():
    yield us, replace(p, lag=lag)
  late = [f for f in several if prod(f[1].tile) // (32 * f[1].warps) <= _MOST_LATE.get(f[1].warps // 4, 0)]
  for us, p, lag in late[:1] if "late" in kinds else ():
    yield us, replace(p, late=1)
    if "lag" in kinds:
      yield us, replace(p, late=1, lag=lag)


def _lag(kernel: Kernel, extents: Mapping[str, int], p: KernelParams) -> int:
  """Steps between its warpgroups: the last is half a ring behind the first (bench/out_of_step.py says why).

  0: there are not two of them, or too few steps.
  """
  groups, steps = p.warps // WGMMA.warps, ceil(extents[kernel.loop or ""] / p.loop_tile)
  return min(max(1, p.stages // 2 // (groups - 1)), steps - 1) if groups > 1 else 0


def fed_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int,
  sharing: Sequence[int] = SHARING, ranks: Sequence[int] = RANKS,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  ranks = ranks if kernel.cluster == kernel.loop and target.has_clusters else (1,)
  points = _points(kernel, shape, extents, target, sharing, ranks)
  return lowered_fastest(kernel, tensors, extents, target, points, keep)


def _points(
  kernel: Kernel,
  shape: Shape,
  extents: Mapping[str, int],
  target: Target,
  every: Sequence[int],
  clusters: Sequence[int],
) -> Iterator[KernelParams]:
  for rows, columns, warps, teams in _TEAMS:
    if rows > extents[shape.rows] or columns > extents[shape.columns]:
      continue
    tile = {shape.rows: rows, shape.columns: columns}
    blocks = {a: -(-extents[a] // tile.get(a, 1)) for a in kernel.grid}
    steps = _STEPS if rows * columns <= _SMALL else _STEPS[:1]
    for sharing, step, ranks in product(every, steps, clusters):
      each = (rows * shape.row_bytes + columns * shape.column_bytes) * step
      stages = min(_MOST_STAGES, (target.smem_bytes - barrier_bytes(_MOST_STAGES)) // each)
      # Blocks differ in the rows of the operand with fewer.
      apart = shape.rows if columns >= rows else shape.columns
      depth = extents[kernel.loop or ""]
      whole = blocks[apart] % sharing == 0
      if ranks > 1:
        few = (
          prod(blocks.values()) * ranks <= target.multiprocessors and ranks * sharing <= target.max_cluster
        )
        whole &= few and teams == 1 and depth % (ranks * step) == 0
        stages = min(stages, depth // (ranks * step))
      if whole and 2 < stages < ceil(depth / (ranks * step)) + 2:
        tiles = tuple(tile.get(a, 1) for a in kernel.grid)
        yield KernelParams(tiles, ranks, step, warps, stages, WGMMA.name, teams=teams, sharing=sharing)
