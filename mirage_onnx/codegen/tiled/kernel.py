"""A tiled kernel as a whole: thread graph, shared memory, prologue, loop, epilogue."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf, prod

from mirage_onnx.codegen.header import header
from mirage_onnx.codegen.loads import parameters, runtime_axes
from mirage_onnx.codegen.read_ahead import is_overtaken
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.codegen.tiled.ahead import AheadWriter, Issued
from mirage_onnx.codegen.tiled.memory_text import issue
from mirage_onnx.codegen.tiled.spot import digits
from mirage_onnx.codegen.tiled.text import begin_state, write_step
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.codegen.tiled.warpgroup_text import (
  PinningWriter,
  begin_late,
  issue_late,
  settle_late,
  widened_text,
)
from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import INSTRUCTIONS, WGMMA, instruction_of
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, UGraph
from mirage_onnx.lower.arrange import arranged
from mirage_onnx.lower.assign import Assignment
from mirage_onnx.lower.forms import Form, Warps
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.live import most_live
from mirage_onnx.lower.lowering import Lowering
from mirage_onnx.lower.pieces import Pieces
from mirage_onnx.lower.share import ways
from mirage_onnx.lower.sizes import MOST_AT_RUNTIME
from mirage_onnx.lower.smem_plan import MemoryPlan, plan_memory
from mirage_onnx.lower.standing import standing_blocks
from mirage_onnx.lower.steps import Advance, Copy, GatherRanks, Held, ThreadGraph, ThreadStep
from mirage_onnx.lower.warpgroup import TILE_ALIGNMENT, fitting_products, oriented
from mirage_onnx.lower.widened import Widened, check_widened, widened_first, with_widened
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
  """What a tiled kernel is before it is text; ``live``: elements that a lane holds at once."""

  pieces: Pieces
  forms: Mapping[int, Form]
  warps: Warps
  lowering: Lowering
  memory: MemoryPlan
  issued: Issued
  live: int

  @property
  def steps(self) -> ThreadGraph:
    return self.memory.graph

  @property
  def smem_bytes(self) -> int:
    return self.memory.size


def needed_values(kernel: Kernel) -> frozenset[int]:
  """The values that saves are computed from."""
  found: set[int] = set()
  todo = [s.arg for s in kernel.saves]
  while todo:
    index = todo.pop()
    if index not in found:
      found.add(index)
      todo += kernel.ops[index].args
  return frozenset(found)


def plan_tiled(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> TiledPlan:
  """Forms, split of the warps and steps of a kernel.

  Raises:
      RejectionError: LAYOUT or EMIT_UNSUPPORTED.
  """
  for load in kernel.loads:
    stored = graph.tensor(load.tensor).dtype
    if load.dtype is not stored:
      raise RejectionError("EMIT_UNSUPPORTED", f"{load.tensor} is {stored} and loaded as {load.dtype}")
  if kernel.loop is not None and params.loop_tile < 1:
    raise RejectionError("LAYOUT", f"a loop in steps of {params.loop_tile} elements")
  tensors = {t.name: t for t in graph.tensors}
  instruction = instruction_of(params.instruction, target)
  widened: Mapping[int, Widened] = {}
  if instruction is WGMMA:
    kernel, widened = with_widened(graph, kernel)
    kernel = widened_first(oriented(kernel, tensors), widened)
  grid = Grid.of(kernel, params, extents, target)
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
      make = partial(_plan, framed, forms, warps, extents, tensors, params, target, own, widened)
      plan = _best_held(make, 32 * warps.total)
    except RejectionError as error:
      refused = refused or error
      continue
    least = least or cost
    if best is None or plan.live < best.live:
      best = plan
    if best.live <= _MOST_LIVE:
      return best
  if best is None:
    assert refused is not None
    raise refused
  return best


def _best_held(make: Callable[[int, float], TiledPlan], threads: int) -> TiledPlan:
  """The plan with most computed values in registers that has room for them."""
  for held in HELD[:-1]:
    with suppress(RejectionError):
      return make(held, min(_MOST_LIVE, _BLOCK_HOLDS // threads))
  return make(HELD[-1], inf)


def _plan(
  assignment: Assignment,
  forms: dict[int, Form],
  warps: Warps,
  extents: Mapping[str, int],
  tensors: Mapping[str, KTensor],
  params: KernelParams,
  target: Target,
  warpgroup: frozenset[int],
  widened: Mapping[int, Widened],
  held: int,
  most_held: float,
) -> TiledPlan:
  smem_bytes = 0
  # As many stages as fit, of those that are wanted.
  for stages in range(max(1, min(params.stages, assignment.pieces.most_steps)), 0, -1):
    lowering = Lowering(
      assignment, forms, warps, extents, tensors, held,
      stages=stages, ranks=params.cluster, warpgroup=warpgroup, widened=widened,
    )  # fmt: skip
    graph = lowering.lower()
    for index, form in forms.items():
      most = _MOST_IN_PLACE if lowering.in_place(index, form) else _MOST_REGISTERS
      if warps.registers(form) > most:
        reason = f"%{index} takes {warps.registers(form)} registers of every thread"
        raise RejectionError("LAYOUT", reason)
    live, pieces = most_live(lowering), assignment.pieces
    if live > most_held:  # however many stages; said before the steps are put in order
      raise RejectionError("LAYOUT", f"a lane holds {live} elements at once")
    memory = plan_memory(
      arranged(lowering, graph, _MOST_LIVE - live),
      {name: _placed_bytes(tile.size_bytes, warpgroup) for name, tile in lowering.tiles.items()},
      frozenset(lowering.homes[i] for i in lowering.ring),
      partial(_resident, _blocks(pieces.grid), 32 * warps.total, target),
    )  # fmt: skip
    smem_bytes = memory.size
    if smem_bytes <= target.smem_bytes:
      issued = Issued.of(lowering, memory.graph, _MOST_ISSUING - live)
      return TiledPlan(pieces, forms, warps, lowering, memory, issued, live)
  raise RejectionError("SMEM", f"{smem_bytes} bytes of shared memory, {target.name} has {target.smem_bytes}")


def _blocks(grid: Grid) -> int:
  """Blocks of a launch; where only a launch counts them, as many as there may be."""
  return MOST_AT_RUNTIME if grid.tiles else prod(grid.launch)


def _placed_bytes(size: int, warpgroup: frozenset[int]) -> int:
  """What a tile takes, so that the next one is aligned, too."""
  return -(-size // TILE_ALIGNMENT) * TILE_ALIGNMENT if warpgroup else size


def _resident(blocks: int, threads: int, target: Target, size: int) -> int:
  """How many of these blocks a multiprocessor holds if each takes ``size`` bytes."""
  there = -(-blocks // target.multiprocessors)
  fit = target.smem_per_sm_bytes // (size + target.reserved_smem_bytes) if size <= target.smem_bytes else 0
  return min(there, target.sm_threads // threads, fit)


def thread_graph(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> ThreadGraph:
  """The steps of a kernel's threads.

  Raises:
      RejectionError: LAYOUT or EMIT_UNSUPPORTED.
  """
  return plan_tiled(graph, kernel, params, extents, target).steps


def emit_tiled(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> KernelSource:
  """The CUDA text of a tiled kernel.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or SMEM.
  """
  plan = plan_tiled(graph, kernel, params, extents, target)
  pieces, lowering = plan.pieces, plan.lowering
  args, given = parameters(graph, kernel, extents)
  writer = Writer()
  blocks = standing_blocks(graph, extents, target, lowering, plan.memory, plan.live)
  emitter = _Emitter(graph, plan, ValueWriter(graph, lowering, pieces, writer), writer, blocks)
  with writer.kernel(
    kernel.name, 32 * params.warps, params.cluster,
    given,
  ):  # fmt: skip
    if target.has_pdl:
      writer.trigger(behind_wait=is_overtaken(graph, kernel, extents))
      writer.wait()
    emitter.prologue()
    emitter.run()
  headers = INSTRUCTIONS[params.instruction].headers
  top = header(graph, kernel, params, extents, kernel.name, headers)
  return KernelSource(
    kernel.name, f"{top}\n{writer.text}", (blocks, 1, 1) if blocks else pieces.grid.launch, 32 * params.warps,
    params.cluster, plan.smem_bytes, args, target.has_pdl,
    runtime_axes(graph, kernel, extents), pieces.grid.tiles,
  )  # fmt: skip


@dataclass(slots=True)
class _Emitter:
  """``blocks``: those that do the work of several (``standing_blocks``)."""

  graph: UGraph
  plan: TiledPlan
  values: ValueWriter
  writer: Writer
  blocks: int

  def prologue(self) -> None:
    """Lanes, warps, pieces and shared tiles."""
    lowering, pieces = self.plan.lowering, self.plan.pieces
    writer = PinningWriter(self.writer) if lowering.warpgroup else self.writer
    writer.line("const int g = ptx::lane() / 4;")
    writer.line("const int t = ptx::lane() % 4;")
    digits(writer, self.plan.warps)
    if not self.blocks:
      pieces.declare(writer)
      pieces.declare_ends(writer, self.graph)
    pieces.grid.declare_rows(writer, self.graph, pieces.kernel, pieces.extents)
    ringed = {lowering.homes[i] for i in lowering.ring}
    for tile in lowering.tiles.values():
      at = self.plan.memory.places[tile.name] // tile.unit_bytes
      base = f"ptx::smem<{tile.storage}>()" + (f" + {at}" if at else "")
      name = f"{tile.name}_ring" if tile.name in ringed else tile.name
      writer.line(f"{tile.storage}* {name} = {base};")

  def run(self) -> None:
    """The three runs."""
    writer, plan, steps = self.writer, self.plan, self.plan.steps
    ahead = AheadWriter(self.values, plan.lowering, plan.pieces, plan.memory)
    loop = plan.pieces.kernel.loop is not None and bool(steps.body)
    if loop:
      writer.line(f"const int steps = {plan.pieces.steps};")
    self._all(steps.before, ahead)
    if self.blocks:
      self._tiles(ahead)
      return
    if loop:
      ahead.begin()
    self._loop(ahead, loop)
    self._all(steps.after, ahead)
    if any(isinstance(s, GatherRanks) for s in steps.before + steps.body + steps.after):
      writer.comment("Shared memory stays until every block of the cluster has read it.")
      writer.line("ptx::cluster_sync();")

  def _loop(self, ahead: AheadWriter, loop: bool) -> None:
    """All iterations, with what begins in front of them and what they leave under way."""
    writer, plan = self.writer, self.plan
    issue(self.values, plan.issued.after)
    for index in plan.lowering.states:
      begin_state(self.values, index)
    for index in plan.lowering.widened:
      widened_text(self.values, index).begin(writer)
    if loop:
      begin_late(self.values)
      writer.line("#pragma unroll 1")
      with writer.block("for (int step = 0; step < steps; ++step)"):
        plan.pieces.declare_step(writer, "step")
        issue(self.values, plan.issued.body)
        self._all(plan.steps.body, ahead)
        if products := plan.lowering.under_way:
          writer.line(f"ptx::wgmma_wait<{len(products)}>();")
      self._complete()

  def _tiles(self, ahead: AheadWriter) -> None:
    """One tile after the other; the first copies of the next are under way while one is finished."""
    writer, plan = self.writer, self.plan
    total = prod(plan.pieces.grid.launch)

    def begin(tile: str) -> None:
      with writer.block():
        writer.line(f"const int next = {tile};")
        with writer.block(f"if (next < {total})"):
          plan.pieces.declare(writer, "next")
          ahead.begin()

    begin("ptx::block_x()")
    writer.line("#pragma unroll 1")
    with writer.block(f"for (int tile = ptx::block_x(); tile < {total}; tile += {self.blocks})"):
      plan.pieces.declare(PinningWriter(writer), "tile")
      self._loop(ahead, loop=True)
      writer.line("ptx::sync_block();")
      begin(f"tile + {self.blocks}")
      self._all(plan.steps.after, ahead)

  def _complete(self) -> None:
    """What the loop has left under way."""
    lowering, names = self.plan.lowering, self.values
    if lowering.late is not None:
      issue_late(names, f"(steps - 1) % {lowering.stages}")
      settle_late(names)
    if not lowering.under_way:
      return
    self.writer.line("ptx::wgmma_wait<0>();")
    for product in sorted(lowering.under_way):
      into = lowering.fused[product]
      held = Held(into, lowering.forms[into])
      unit = "".join("[0]" for _ in held.form.rest)
      self.writer.line(f"ptx::wgmma_hold({names.name(held)}{unit});")

  def _all(self, steps: tuple[ThreadStep, ...], ahead: AheadWriter) -> None:
    for step in steps:
      if isinstance(step, Advance):
        ahead.advance()
      elif not (isinstance(step, Copy) and step.tile in self.plan.memory.early):
        write_step(self.values, step)  # those copies began before the loop
