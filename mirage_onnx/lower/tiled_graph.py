"""The thread graph of a tiled kernel: the best way to lay it out that has room, with its steps in order."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import MMA, WGMMA, instruction_of
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.arrange import arranged
from mirage_onnx.lower.assign import Assignment
from mirage_onnx.lower.dataflow import needed_values
from mirage_onnx.lower.feed import Feed, barrier_bytes, blocks_of, feed_of
from mirage_onnx.lower.forms import Warps
from mirage_onnx.lower.grid import Grid, check_types
from mirage_onnx.lower.in_place import turns_of
from mirage_onnx.lower.issued import Issued
from mirage_onnx.lower.live import most_live
from mirage_onnx.lower.lowered import MOST_FETCHED, MOST_FETCHED_FED, Lowered
from mirage_onnx.lower.lowering import Lowering
from mirage_onnx.lower.near import with_near
from mirage_onnx.lower.pieces import Pieces
from mirage_onnx.lower.read_ahead import reads_ahead
from mirage_onnx.lower.ring_feed import RingFeed, ring_barrier_bytes, ring_feed
from mirage_onnx.lower.share import ways
from mirage_onnx.lower.sizes import MOST_AT_RUNTIME, is_runtime
from mirage_onnx.lower.smem_plan import MemoryPlan, plan_memory
from mirage_onnx.lower.standing import standing_blocks
from mirage_onnx.lower.steps import Copy
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.unseen import Unseen, computed_masks, unseen
from mirage_onnx.lower.warpgroup import TILE_ALIGNMENT, fitting_products, oriented
from mirage_onnx.lower.widened import Widened, check_widened, widened_first, with_widened
from mirage_onnx.lower.zeros_behind import with_zeros_behind
from mirage_onnx.target import Target

#: A lane holds at most this many elements of one value, and computes so many of one in place.
_MOST_REGISTERS, _MOST_IN_PLACE = 256, 2048
#: Elements of values that a lane holds at once for which ptxas mostly has registers enough, and the
#: ways to share a kernel out that are tried where the best do not fit.
_MOST_LIVE, _MOST_WAYS = 232, 12
#: The same, loads included that are issued before they are needed.
_MOST_ISSUING = 160
#: How much more one that fits may cost by the objective.
_WORTH = 2
#: Computed values stay in registers, however many of one a lane has, where it holds no more than
#: that at once and a block no more than this; else those of more than a few are made where they are
#: used. (All in registers, QKNorm's first kernel takes 20.6 us instead of 24.8 on an H200 and MLA
#: with its linear layers 94.8 instead of 108.9; norms of long rows spill: bench/ablation.py.)
HELD, _BLOCK_HOLDS = (1 << 30, 8), 32768


@dataclass(frozen=True, slots=True)
class TiledPlan:
  """Where the values of a tiled kernel are.

  ``pieces``: what a block, a rank and an iteration have of each value; ``lowering``: how values lie in
  registers, what is in shared tiles, in the ring, on tensor cores; ``memory``: the steps in order, with
  barriers, and the places of the tiles; ``issued``: loads that begin early. ``unseen``: what of the loop need
  not be done, mostly. ``turns``: how many tiles of its rows a block of an update looks at.
  """

  pieces: Pieces
  warps: Warps
  lowering: Lowered
  memory: MemoryPlan
  issued: Issued
  unseen: Unseen | None = None
  turns: int = 1


def tiled_graph(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target,
  kernels: int = 1,
) -> ThreadGraph:  # fmt: skip
  """How a kernel with these numbers is done, and ``kernels`` that are alike in one launch.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or SMEM.
  """
  plan, live = _laid_out(graph, kernel, params, extents, target)
  grid = plan.pieces.grid
  if kernels > 1 and (params.cluster > 1 or grid.tiles or plan.lowering.assignment.update):
    raise RejectionError("LAYOUT", f"{kernel.name} has ranks, or blocks that a launch counts, beside others")
  tiles = kernels * prod(grid.launch)
  feed: Feed | RingFeed | None = None
  assignment = plan.lowering.assignment
  if assignment.update and (rows := assignment.frames[0].g):
    plan = replace(plan, turns=turns_of(grid, rows[0].axis, extents, target))
    grid = grid.in_turns(rows[0].axis, plan.turns)
  size, blocks = plan.memory.size, 0
  if params.teams:
    size += _barriers(plan.lowering)
  if params.teams and plan.lowering.under_way:
    feed = feed_of(graph, params, plan.lowering, plan.pieces, plan.memory)
    blocks = blocks_of(feed, tiles, target)
  elif params.teams:
    feed = ring_feed(graph, params, plan.lowering, plan.memory, target)
  else:
    blocks = standing_blocks(graph, extents, target, plan.lowering, plan.memory, live, tiles)
  if not blocks and kernels == 1 and (seen := _unseen(graph, plan)):
    if None in (seen.band.least, seen.band.most):  # blocks with most to do are the first of all
      grid = grid.with_slowest(seen.band.rows)
    plan = replace(plan, unseen=seen, pieces=replace(plan.pieces, grid=grid))
  return ThreadGraph(
    graph, plan.pieces.kernel, params, extents, grid, plan, plan.memory.graph, size,
    plan.pieces.most_steps, plan.lowering.stages, live, standing=blocks, kernels=kernels, feed=feed,
    ahead=plan.warps.in_rows and reads_ahead(graph, kernel, extents),
  )  # fmt: skip


def _unseen(graph: UGraph, plan: TiledPlan) -> Unseen | None:
  """Iterations that change nothing, where the loop can do without: of a block for itself, by a ring."""
  lowering, pieces = plan.lowering, plan.pieces
  plain = not (lowering.under_way or lowering.widened) and lowering.ranks == 1
  behind = any(isinstance(s, Copy) and s.tile in plan.memory.early for s in plan.memory.graph.after)
  ring = bool(lowering.ring) and 1 < lowering.stages < pieces.most_steps
  if not (plain and ring) or behind:
    return None
  found = unseen(pieces.kernel, {t.name: t for t in graph.tensors})
  if found is None or any(i not in lowering.forms for i in found.running):
    return None
  both = (found.band.rows, found.band.columns)
  static = not any(is_runtime(pieces.extents, a) for a in both)
  return found if static and pieces.grid.tile(found.band.rows, pieces.extents).dim is not None else None


def _laid_out(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> tuple[TiledPlan, int]:
  """The first way that has registers enough, or the one that needs fewest, and elements that a lane holds."""
  check_types(graph, kernel)
  if kernel.loop is not None and params.loop_tile < 1:
    raise RejectionError("LAYOUT", f"a loop in steps of {params.loop_tile} elements")
  tensors = {t.name: t for t in graph.tensors}
  instruction = instruction_of(params.instruction, target)
  widened: Mapping[int, Widened] = {}
  if instruction is WGMMA:
    kernel, widened = with_widened(graph, kernel)
    kernel = with_near(widened_first(oriented(kernel, tensors), widened), tensors)
  grid = Grid.of(kernel, params, extents, target)
  if instruction is not WGMMA:  # whose blocks may stand, and look for no ends
    kernel = with_zeros_behind(kernel, tensors, {a.axis for a in grid.axes if a.tile == 1})
  pieces = Pieces.of(kernel, params, extents, grid)
  assignment = Assignment.of(kernel, pieces, needed_values(kernel))
  # What a way takes of registers and shared memory shows when it is made.
  best, least, refused = None, 0, None
  found = ways(assignment, params.warps, tensors)
  if instruction is WGMMA:
    found = [way for way in found if fitting_products(way[1], way[3], tensors)]
    if not found:
      raise RejectionError("LAYOUT", f"no contraction of {kernel.name} is one for warpgroups")
  for cost, framed, forms, warps in found[:_MOST_WAYS]:
    if best is not None and cost > _WORTH * least:
      break
    try:
      own = fitting_products(framed, warps, tensors) if instruction is WGMMA else frozenset[int]()
      check_widened(kernel, pieces, framed.products, widened, own, warps)
      lower = partial(
        Lowering, framed, forms, warps, extents, tensors, ranks=params.cluster,
        instruction=instruction if instruction.warps == 1 else MMA, warpgroup=own, widened=widened,
        computed=computed_masks(kernel, tensors, extents) if own else {},
        most_fetched=MOST_FETCHED_FED if params.teams else MOST_FETCHED,
      )  # fmt: skip
      plan = _best_held(partial(_plan, lower, pieces, params, target), 32 * warps.total, warps.in_rows)
    except RejectionError as error:
      refused = refused or error
      continue
    least = least or cost
    if best is None or plan[1] < best[1]:
      best = plan
    if best[1] <= _MOST_LIVE:
      return best
  if best is None:
    assert refused is not None
    raise refused
  return best


def _best_held(
  make: Callable[[int, float], tuple[TiledPlan, int]], threads: int, in_rows: bool
) -> tuple[TiledPlan, int]:
  """The plan with most computed values in registers that has room for them."""
  if in_rows:  # which are short
    return make(HELD[0], inf)
  for held in HELD[:-1]:
    with suppress(RejectionError):
      return make(held, min(_MOST_LIVE, _BLOCK_HOLDS // threads))
  return make(HELD[-1], inf)


def _plan(
  lower: Callable[..., Lowering], pieces: Pieces, params: KernelParams, target: Target, held: int,
  most_held: float,
) -> tuple[TiledPlan, int]:  # fmt: skip
  """With computed values of up to ``held`` registers in them, and as many stages as fit of those wanted."""
  smem_bytes = 0
  for stages in range(max(1, min(params.stages, pieces.most_steps)), 0, -1):
    lowering = lower(held, stages=stages)
    forms, warps = lowering.forms, lowering.warps
    graph = lowering.lower()
    for index, form in forms.items():
      most = _MOST_IN_PLACE if lowering.in_place(index, form) else _MOST_REGISTERS
      if warps.registers(form) > most:
        reason = f"%{index} takes {warps.registers(form)} registers of every thread"
        raise RejectionError("LAYOUT", reason)
    live = most_live(lowering)
    if live > most_held:  # however many stages; said before the steps are put in order
      raise RejectionError("LAYOUT", f"a lane holds {live} elements at once")
    memory = plan_memory(
      arranged(lowering, graph, _MOST_LIVE - live),
      {name: _placed_bytes(tile.size_bytes, lowering.warpgroup) for name, tile in lowering.tiles.items()},
      frozenset(lowering.homes[i] for i in lowering.ring),
      partial(_resident, 1 if params.teams else _blocks(pieces.grid), 32 * warps.total, target),
    )  # fmt: skip
    smem_bytes = memory.size + (_barriers(lowering) if params.teams else 0)
    if smem_bytes <= target.smem_bytes:
      issued = Issued.of(lowering, memory.graph, _MOST_ISSUING - live)
      return TiledPlan(pieces, warps, lowering, memory, issued), live
  raise RejectionError("SMEM", f"{smem_bytes} bytes of shared memory, {target.name} has {target.smem_bytes}")


def _barriers(lowering: Lowered) -> int:
  """Bytes of a block that is fed by warps of its own."""
  return barrier_bytes(lowering.stages) if lowering.under_way else ring_barrier_bytes(lowering.stages)


def _blocks(grid: Grid) -> int:
  """Blocks of a launch; where only a launch counts them, as many as there may be."""
  return MOST_AT_RUNTIME if grid.tiles else prod(grid.launch)


def _placed_bytes(size: int, warpgroup: frozenset[int]) -> int:
  """What a tile takes, so that the next one is aligned, too."""
  return -(-size // TILE_ALIGNMENT) * TILE_ALIGNMENT if warpgroup else size


def _resident(blocks: int, threads: int, target: Target, size: int) -> int:
  """How many of these blocks a multiprocessor holds if each takes ``size`` bytes."""
  there = -(-blocks // target.multiprocessors)
  return min(there, target.resident(threads, size)) if size <= target.smem_bytes else 0
