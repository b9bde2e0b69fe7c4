"""Numbers with wgmma for kernels of several products: what one leaves in registers, the next takes.

Rows of a block are those of all its products: 64 to a warpgroup, so a row is held by one warp, and what is
reduced over columns stays in it. Where rows make too few blocks, several share the columns of their loop.
Columns of the last product that the grid has are one block's, or as many as its registers can sum: blocks
that differ in them compute what is in front of it each.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor
from mirage_onnx.superopt.warpgroup_numbers import LEAST_ROWS, in_turn, lowered_fastest
from mirage_onnx.target import Target

#: Rows, columns and stages of blocks whose warps all copy.
_OWN = tuple(product((64, 128, 192), (64, 128), (2, 3)))
#: Rows, columns and stages of blocks for which a warpgroup of its own copies (``lower/ring_feed.py``).
_FED = ((128, 64, 3), (128, 128, 2), (128, 128, 3), (128, 128, 4), (192, 64, 4), (192, 128, 2))
#: Besides, where blocks share a loop, for there are few rows.
_FED_FEW = ((64, 64, 3), (64, 128, 2))
#: Columns of a block, where the grid has them: a lane holds half as many sums as there are.
_COLUMNS = (256, 128, 64)
#: Blocks of a cluster that share a loop.
_RANKS = (2, 4, 8)
#: What fed ones take of what is predicted, beside those whose warps all copy. Of 11 cases on an H200
#: (bench/results/h200/fed_queries.json) the first point took 1.05 times as long as the fastest, the best of
#: the first four 1.01 times (geometric means); without fed ones the first 1.10 times.
_FED_TIME = 0.92


def rows_of(kernel: Kernel, extents: Mapping[str, int]) -> str | None:
  """The axis of the grid that is in one operand and the result of every product; None if there is none."""
  found: set[str] = set(kernel.grid)
  for op in kernel.ops:
    if op.op == "matmul":
      first, second = (set(kernel.ops[a].axes) for a in op.args)
      found &= (first ^ second) & set(op.axes)
  long = [a for a in kernel.grid if a in found and extents[a] >= LEAST_ROWS]
  return long[0] if len(long) == 1 else None


def chained_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first; () for a single product.

  Those whose warps all copy, those of them with clusters, and those for which a warpgroup of its own copies
  in turn, for how they compare is predicted roughly.
  """
  products = [op for op in kernel.ops if op.op == "matmul"]
  rows = rows_of(kernel, extents)
  half = all(kernel.ops[a].dtype in WGMMA.operands for op in products for a in op.args)
  if not WGMMA.is_on(target) or len(products) < 2 or rows is None or not half:
    return ()
  if kernel.loop is None or rows == kernel.loop:
    return ()
  if any(prod(extents[a] for a in op.axes if a != rows) < WGMMA.columns[0] for op in products):
    return ()  # a vector of activations beside weights: memory says what that takes
  fed = _FED if kernel.loop not in kernel.grid else _FED + _FED_FEW
  few = tuple(n for n in _RANKS if n <= target.max_cluster)
  kinds = (
    ((us if not teams else _FED_TIME * us, p) for us, p in lowered_fastest(
      kernel, tensors, extents, target, _points(kernel, extents, target, rows, numbers, ranks, teams), keep
    ))
    for numbers, ranks, teams in ((_OWN, (1,), 0), (_OWN, few, 0), (fed, (1,), 1))
  )  # fmt: skip
  return in_turn(*kinds)[:keep]


def _points(
  kernel: Kernel, extents: Mapping[str, int], target: Target, rows: str,
  numbers: Iterable[tuple[int, int, int]], ranks: tuple[int, ...], teams: int,
) -> Iterator[KernelParams]:  # fmt: skip
  for (own, loop_tile, stages), wide in product(numbers, _wide(kernel, extents, rows)):
    if own <= extents[rows] and loop_tile < 2 * extents[kernel.loop or ""]:
      tiles = {**wide, rows: own}
      blocks = prod(-(-extents[a] // tiles.get(a, 1)) for a in kernel.grid if a != kernel.loop)
      for length, n in _shares(kernel, extents, target.multiprocessors // blocks, loop_tile, ranks):
        tile = tuple(length if a == kernel.loop else tiles.get(a, 1) for a in kernel.grid)
        yield KernelParams(tile, n, loop_tile, own // 16, stages, WGMMA.name, teams=teams)


def _wide(kernel: Kernel, extents: Mapping[str, int], rows: str) -> Iterator[dict[str, int]]:
  """Elements of a block along the columns that the grid has: axes of a product's operand that has no rows.

  What only the rows' operand has (heads of a group) is rows, too, and one a block.
  """
  found = set[str]()
  for op in kernel.ops:
    if op.op == "matmul":
      first, second = (set(kernel.ops[a].axes) for a in op.args)
      own, others = (first, second) if rows in second else (second, first)
      found |= (own - others) & set(op.axes) & set(kernel.grid) - {rows, kernel.loop}
  found = {a for a in found if extents[a] > 1}
  if not found:
    yield {}
  elif len(found) == 1:
    (axis,) = found
    yield from ({axis: n} for n in _COLUMNS if extents[axis] % n == 0)


def _shares(
  kernel: Kernel, extents: Mapping[str, int], many: int, loop_tile: int, ranks: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
  """(Elements of the loop's axis that a cluster has, its blocks): (0, 1) where all are one block's.

  ``many``: blocks for each that there would be, so that every multiprocessor has one; half of them pays, too.
  """
  ranks = ranks if kernel.cluster == kernel.loop else tuple(n for n in ranks if n == 1)
  if kernel.loop not in kernel.grid:
    yield from ((0, n) for n in ranks if n <= max(1, 2 * many))
    return
  steps = -(-extents[kernel.loop] // loop_tile)
  found = {(steps // n // r, r) for n in (many // 2, many) if n > 1 for r in ranks}
  yield from sorted((each * r * loop_tile, r) for each, r in found if each > 1 and each * r < steps)
