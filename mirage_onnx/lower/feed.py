"""Blocks whose copies are made by a warp of their own, for teams of warps that multiply.

The warp has the copy engine fill a ring of tiles in shared memory: it waits until a tile is free, and
barriers in memory say when it is full. A team takes the tiles of a part of the output. With several
teams, each has every so many-th part: while one writes its results, the tensor cores have those of
another. Blocks that share have the same part of one operand; each copies a piece of it for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.tensor_map import BOX_COLUMNS, TensorMap
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.pieces import GRID, STEP, Piece, Pieces
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.smem_plan import MemoryPlan
from mirage_onnx.lower.steps import ThreadBarrier
from mirage_onnx.lower.tensor_view import TensorView
from mirage_onnx.target import Target

#: By warpgroups that multiply: registers of a thread that are left for the one that copies, and what
#: they have then. They are a multiple of 8, and all together those of a launch: 168, 128 or 96 each.
REGISTERS = {2: (24, 240), 3: (32, 160), 4: (24, 112)}
#: A box has at most so many rows, and pieces of a tile whole groups of swizzled rows.
_MOST_ROWS, _GROUP, _MOST_TEAMS = 256, 8, 3


@dataclass(frozen=True, slots=True)
class FedTile:
  """An operand: load ``index``, its ``map``, whether the blocks of a cluster share it.

  ``rows``: grid axis -> how many rows of the map lead from one of it to the next.
  """

  index: int
  map: TensorMap
  shared: bool
  rows: tuple[tuple[Piece, int], ...]


@dataclass(frozen=True, slots=True)
class Feed:
  """``warps``: of a team. ``axis``: of the grid, that blocks that share differ in.

  ``barriers``: the byte of shared memory with which the ring's begin.
  """

  teams: int
  warps: int
  sharing: int
  axis: str
  tiles: tuple[FedTile, ...]
  barriers: int

  @property
  def threads(self) -> int:
    """Of a block: the teams', and a warpgroup of which one thread copies."""
    return 32 * (self.teams * self.warps + WGMMA.warps)

  @property
  def registers(self) -> tuple[int, int] | None:
    """Of a thread of the warpgroup that copies, and of the teams, if these are given some of its."""
    return REGISTERS.get(self.teams * self.warps // WGMMA.warps)

  @property
  def arrivals(self) -> int:
    """Of those that free a tile of the ring, in every block that a copy goes to."""
    return self.warps * self.sharing


def feed_of(
  graph: UGraph, params: KernelParams, lowering: Lowered, pieces: Pieces, memory: MemoryPlan
) -> Feed:
  """How such a block is fed.

  Raises:
      RejectionError: LAYOUT, not what tiles alone, in rows along the depth, are copied for.
  """
  kernel, grid = pieces.kernel, pieces.grid

  def refuse(why: str) -> RejectionError:
    return RejectionError("LAYOUT", f"{kernel.name} is not fed by a warp of its own: {why}")

  ring = {lowering.homes[i] for i in lowering.ring}
  steps = memory.graph
  meets = any(isinstance(s, ThreadBarrier) for s in steps.after)
  if not lowering.under_way or set(lowering.tiles) != ring or steps.before or meets:
    raise refuse("more than a ring of operands is in shared memory")
  if grid.tiles or lowering.ranks > 1 or params.warps % WGMMA.warps or not 1 <= params.teams <= _MOST_TEAMS:
    raise refuse(f"blocks that a launch counts, ranks, parts of warpgroups, or not 1 to {_MOST_TEAMS} teams")
  heights = {i: _height(lowering, i) for i in lowering.ring}
  axis, shared = "", -1
  if params.sharing > 1:
    # What is shared is the operand with most rows, B of equal ones; blocks differ in those of the other.
    seconds = {lowering.ops[p].args[1] for p in lowering.assignment.products}
    shared = max(heights, key=lambda i: (heights[i], i in seconds))
    own = {p.axis for p in pieces.of_value[shared].values() if p.length > 1}
    others = [a for a in grid.axes if a.split and a.axis not in own]
    free = [a for a in others if any(a.axis in pieces.of_value[i] for i in lowering.ring if i != shared)]
    if len(free) != 1 or free[0].blocks % params.sharing:
      raise refuse(f"its blocks are not shared out by {params.sharing}")
    axis = free[0].axis
  tiles = tuple(
    _tile(graph, lowering, pieces, i, params.sharing if i == shared else 1, refuse) for i in lowering.ring
  )
  return Feed(params.teams, params.warps, params.sharing, axis, tiles, memory.size)


def blocks_of(feed: Feed, tiles: int, target: Target) -> int:
  """Blocks of a launch: one a multiprocessor, in clusters of those that share."""
  most = target.multiprocessors
  if feed.sharing > 2:  # clusters lie in groups of 16 or 18 multiprocessors
    most -= most % 16
  return max(1, min(tiles, most) // feed.sharing) * feed.sharing


def barrier_bytes(stages: int) -> int:
  """Of a ring's barriers, which say full and free for every tile, and one for what is no ring."""
  return 16 * (stages + 1)


def _height(lowering: Lowered, index: int) -> int:
  return lowering.tiles[lowering.homes[index]].rows


def _tile(
  graph: UGraph, lowering: Lowered, pieces: Pieces, index: int, sharing: int,
  refuse: Callable[[str], RejectionError],
) -> FedTile:  # fmt: skip
  op = lowering.ops[index]
  tile = lowering.tiles[lowering.homes[index]]
  tensor = graph.tensor(op.tensor)
  own: Mapping[str, Piece] = pieces.of_value[index]
  if (
    not tile.swizzled or any(is_runtime(pieces.extents, a) for a in tensor.axes) or index in lowering.widened
  ):
    raise refuse(f"{op.tensor} is no tile of whole rows")
  view = TensorView.of(tensor, pieces.extents)
  last = tensor.axes[-1]
  if (
    view.picked
    or view.stride(last) != 1
    or not own[last].levels.endswith(STEP)
    or own[last].length % BOX_COLUMNS
  ):
    raise refuse(f"{op.tensor} does not lie in rows along the depth")
  others = [(own[a], view.stride(a), pieces.extents[a]) for a in tensor.axes[:-1] if pieces.extents[a] > 1]
  tall = [(s, n) for p, s, n in others if p.length > 1]
  first = sum(n * s for n, s in view.starts if isinstance(s, int))
  pitch = tall[0][0] if len(tall) == 1 else 0
  if not isinstance(pitch, int) or not pitch or pitch % 8 or first % 8 or pieces.extents[last] % 8:
    raise refuse(f"rows of {op.tensor} do not begin at multiples of 16 bytes")
  if any(not isinstance(s, int) or s % pitch or p.levels != GRID for p, s, _ in others):
    raise refuse(f"{op.tensor} has rows that are not evenly apart")
  height = tile.rows // sharing
  if tile.rows % (sharing * _GROUP) or height > _MOST_ROWS:
    raise refuse(f"{tile.rows} rows are not copied in {sharing} pieces")
  apart = tuple((p, s // pitch) for p, s, _ in others if isinstance(s, int))
  rows = 1 + sum((n - 1) * (s // pitch) for _, s, n in others if isinstance(s, int))
  at = TensorMap(op.tensor, rows, pieces.extents[last], pitch, height, first)
  return FedTile(index, at, sharing > 1, apart)
