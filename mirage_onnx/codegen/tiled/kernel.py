"""A tiled kernel as a whole: thread graph, shared memory, prologue, loop, epilogue."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod

from mirage_onnx.codegen.grid_text import declare_rows
from mirage_onnx.codegen.loads import storage
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.codegen.tiled.ahead import AheadWriter
from mirage_onnx.codegen.tiled.alike import OneLaunch
from mirage_onnx.codegen.tiled.feed_text import FeedText
from mirage_onnx.codegen.tiled.late_loads_text import late_loads
from mirage_onnx.codegen.tiled.late_stores_text import BESIDE, late_stores
from mirage_onnx.codegen.tiled.memory_text import issue
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.codegen.tiled.quads_text import issue_quads, parts_of_ranks
from mirage_onnx.codegen.tiled.ring_feed_text import RingFeedText
from mirage_onnx.codegen.tiled.savers_text import first_of_savers, savers
from mirage_onnx.codegen.tiled.shared_ring import SharedRing
from mirage_onnx.codegen.tiled.spot import digits
from mirage_onnx.codegen.tiled.text import begin_state, write_step
from mirage_onnx.codegen.tiled.turns_text import TurnsText
from mirage_onnx.codegen.tiled.update_text import UpdateText
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.codegen.tiled.warpgroup_text import (
  PinningWriter,
  begin_late,
  issue_late,
  settle_late,
  widened_text,
)
from mirage_onnx.codegen.whole_text import whole_kernel
from mirage_onnx.instructions import INSTRUCTIONS
from mirage_onnx.ir.ugraph import Kernel
from mirage_onnx.lower.feed import Feed
from mirage_onnx.lower.issued import in_pairs
from mirage_onnx.lower.steps import Advance, Copy, Fetch, GatherRanks, Held, ThreadBarrier, ThreadStep
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.tiled_graph import TiledPlan
from mirage_onnx.target import Target


def emit_tiled(
  threads: ThreadGraph, plan: TiledPlan, target: Target, kernel: Kernel, beside: Sequence[Kernel] = ()
) -> KernelSource:
  """The CUDA text of a tiled kernel, and of those that are ``alike`` and share its launch.

  Raises:
      RejectionError: LAYOUT, they are not alike.
  """
  graph, params, extents = threads.graph, threads.params, threads.extents
  update, pieces = plan.lowering.assignment.update, PiecesText(plan.pieces, threads.grid)
  if plan.lowering.warps.in_rows:
    (pieces.rows,) = plan.lowering.assignment.frames[0].g or (None,)
  if plan.unseen and plan.unseen.band.most is not None:
    pieces.backwards = plan.unseen.band.rows  # blocks with most to do first
  one = OneLaunch(graph, kernel, beside, extents, prod(threads.grid.launch) // threads.sharing,
                  update.tensors if update else frozenset())  # fmt: skip
  writer = Writer()
  values = ValueWriter(graph, plan.lowering, pieces, writer)
  values.apart = parts_of_ranks(values, threads)
  values.late = late_stores(values, threads)
  emitter = _Emitter(
    threads, plan, pieces, values, writer, one, waits=target.has_pdl and plan.lowering.warps.in_rows
  )
  feed: FeedText | RingFeedText | None = None
  given = one.given
  if isinstance(threads.feed, Feed):
    feed = FeedText(values, threads, threads.feed, one)
    given = [*one.given, *feed.parameters]
  elif threads.feed:
    feed = RingFeedText(values, plan.memory, threads.feed, asks=plan.unseen is not None)
  values.feed = feed if isinstance(feed, RingFeedText) else None

  def body() -> None:
    if feed:
      feed.barriers()
    if target.has_pdl and not emitter.waits:
      writer.wait()
    emitter.prologue()
    if isinstance(feed, RingFeedText):
      emitter.run_ring_fed(feed)
    elif feed:
      emitter.run_fed(feed)
    else:
      emitter.run()

  return whole_kernel(
    threads, target, writer, (one.args, given), body, kernel=kernel, beside=beside,
    headers=INSTRUCTIONS[params.instruction].headers, alone=isinstance(feed, RingFeedText),
    maps=feed.maps if isinstance(feed, FeedText) else (),
  )  # fmt: skip


@dataclass(slots=True)
class _Emitter:
  """``waits``: for the kernels before, when weights are on their way."""

  threads: ThreadGraph
  plan: TiledPlan
  pieces: PiecesText
  values: ValueWriter
  writer: Writer
  one: OneLaunch
  waits: bool

  def prologue(self) -> None:
    """Lanes, warps, pieces and shared tiles."""
    lowering, pieces = self.plan.lowering, self.pieces
    writer = PinningWriter(self.writer) if lowering.warpgroup else self.writer
    if not lowering.warps.in_rows:
      writer.line("const int g = ptx::lane() / 4;")
      writer.line("const int t = ptx::lane() % 4;")
      digits(writer, self.plan.warps, self.threads.feed.teams if self.threads.feed else 1)
    if not self.threads.standing:
      first = self.one.choose(writer, "ptx::block_x()") if self.one.count > 1 else ""
      if self.plan.lowering.warps.in_rows:  # which take all of a tensor
        pieces.declare(writer, first)
        lanes = lowering.assignment.frames[0].lanes.lanes
        if pieces.rows:
          writer.line(f"const int lane = ptx::thread() % {lanes};")
        if self.plan.turns == 1:
          pieces.declare_row(writer, lanes)
      else:
        pieces.declare_all(writer, self.threads.graph, first)
    rows = pieces.cut.grid, writer, self.threads.graph, pieces.cut.kernel, pieces.extents
    if self.threads.ahead:
      declare_rows(*rows)
    for step in self._first():
      write_step(self.values, step)
    if self.waits:
      writer.wait()
    if not self.threads.ahead:
      declare_rows(*rows)
    ringed = {lowering.homes[i] for i in lowering.ring}
    for tile in lowering.tiles.values():
      at = self.plan.memory.places[tile.name] // tile.unit_bytes
      base = f"ptx::smem<{storage(tile.dtype)}>()" + (f" + {at}" if at else "")
      name = f"{tile.name}_ring" if tile.name in ringed else tile.name
      writer.line(f"{storage(tile.dtype)}* {name} = {base};")

  def _first(self) -> list[ThreadStep]:
    """Loads of what no kernel before writes: weights, or all that there is."""
    steps, values, update = self.threads.steps, self.values, self.update
    loads = (s for s in (steps.before if update else steps.after) if isinstance(s, Fetch))
    weights = (s for s in loads if self.threads.ahead or not values.view(values.ops[s.index].tensor).coherent)
    return [s for s in weights if not (update and update.is_of_rows(s))] if self.waits else []

  @property
  def update(self) -> UpdateText | None:
    """Of outputs in the memory of inputs."""
    update, ahead = self.plan.lowering.assignment.update, AheadWriter(self.values, self.plan.memory)
    return (
      UpdateText(self.values, update, self.plan.turns, partial(self._all, ahead=ahead)) if update else None
    )

  def run(self) -> None:
    """The three runs."""
    writer, threads, steps = self.writer, self.threads, self.threads.steps
    ahead = AheadWriter(self.values, self.plan.memory)
    first = self._first()
    if update := self.update:
      update.run([s for s in steps.before if s not in first], steps)
      return
    loop = threads.kernel.loop is not None and bool(steps.body)
    turns = TurnsText(self.values, self.plan.unseen) if self.plan.unseen else None
    if loop:
      self._declare_steps(turns)
    self._all(steps.before, ahead)
    if self.threads.standing:
      self._tiles(ahead)
      return
    if turns:
      self._begin_states()
      with turns.around():
        ahead.begin()
        self._iterate(ahead, turns)
    else:
      if loop:
        ahead.begin()
      self._loop(ahead, loop)
    after = tuple(s for s in steps.after if s not in first)
    alone = first_of_savers(self.values, after)
    self._all(after[:alone], ahead)
    if after[alone:]:
      with writer.where(savers(self.values)):
        self._all(after[alone:], ahead)
    if any(isinstance(s, GatherRanks) for s in steps.before + steps.body + steps.after):
      writer.comment("Shared memory stays until every block of the cluster has read it.")
      writer.line("ptx::cluster_sync();")

  def _declare_steps(self, turns: TurnsText | None) -> None:
    if not turns:
      self.writer.line(f"const int steps = {self.pieces.steps};")
      return
    turns.declare()
    self.values.first = "first"

  def run_ring_fed(self, feed: RingFeedText) -> None:
    """As ``run``, where warps of their own copy."""
    steps, plan = self.threads.steps, self.plan
    turns = TurnsText(self.values, plan.unseen, feed) if plan.unseen else None
    self._declare_steps(turns)
    with feed.feeding(), turns.around(asks=False) if turns else nullcontext():
      feed.feed()
    with feed.computing():
      self._all(steps.before, feed)
      self._begin_states()
      with turns.around() if turns else nullcontext():
        self._iterate(feed, turns)
      feed.done()
      self._all(steps.after, feed)

  def run_fed(self, feed: FeedText) -> None:
    """As ``run``, where a warp of its own copies."""
    self.writer.line(f"const int steps = {self.pieces.steps};")

    def tile() -> None:
      self._loop(feed, loop=True)
      self._all(self.threads.steps.after, feed)

    feed.blocks(tile)

  def _loop(self, ahead: SharedRing, loop: bool) -> None:
    """All iterations, with what begins in front of them and what they leave under way."""
    self._begin_states()
    if loop:
      self._iterate(ahead)

  def _begin_states(self) -> None:
    issue(self.values, self.plan.issued.after)
    for index in self.plan.lowering.states:
      begin_state(self.values, index)
    for index in self.plan.lowering.widened:
      widened_text(self.values, index).begin(self.writer)

  def _iterate(self, ahead: SharedRing, turns: TurnsText | None = None) -> None:
    begin_late(self.values)
    names = self.values
    kept = dict(names.names), set(names.issued), set(names.zeroed)
    for n, (first, end, whole) in enumerate(self._loops(turns)):
      names.whole = whole
      names.names, names.issued, names.zeroed = dict(kept[0]), set(kept[1]), set(kept[2])
      names.beside = names.late is not None and n == 0
      self._steps(ahead, first, end)
    names.whole = names.beside = False
    if self.plan.lowering.under_way:
      issue(names, self._shared_by_rows())
      self._issue_tiles()
    self._complete()
    ahead.end()

  def _loops(self, turns: TurnsText | None) -> Sequence[tuple[str, str, bool]]:
    """The first step, the end, and whether masks hide nothing, of the loops one after the other."""
    names = self.values
    if turns:
      return turns.loops
    if names.late:
      some = names.late.first_steps
      between = (names.first, str(some), False)
      return (between, (str(some), "steps", False)) if some < names.late.steps else (between,)
    if isinstance(self.threads.feed, Feed) and names.first == "0":
      return (("0", "1", False), ("1", "steps", False))
    return ((names.first, "steps", False),)

  def _shared_by_rows(self) -> list[Held]:
    """Loads behind the loop that have a lane's columns only: under way while its last products run."""
    lowering, issued = self.plan.lowering, self.values.issued
    held = (s.to for s in self.threads.steps.after if isinstance(s, Fetch) and s.to not in issued)
    several = (h for h in held if not h.form.g and lowering.warps.registers(h.form) > 1)
    return [h for h in several if in_pairs(lowering, h)]

  def _issue_tiles(self) -> None:
    """Loads behind the loop that are tiles, if a lane has registers for one beside what it sums."""
    feed, names = self.threads.feed, self.values
    found = list(late_loads(names, self.threads))
    if not isinstance(feed, Feed) or names.late or len(found) != 1:
      return
    results, most = self.plan.lowering.warps.registers(found[0][0].form), (feed.registers or (0, 240))[1]
    if BESIDE + results + results // 2 >= most:
      return
    ((held, view),) = found
    self.writer.comment(f"%{held.index}: {view.tensor.name} is under way.")
    issue_quads(names, held, view, names.own(held.index))

  def _steps(self, ahead: SharedRing, first: str, end: str) -> None:
    writer = self.writer
    writer.line("#pragma unroll" if self.values.beside else "#pragma unroll 1")
    with writer.block(f"for (int step = {first}; step < {end}; ++step)"):
      self.pieces.declare_step(writer, "step")
      issue(self.values, self.plan.issued.body)
      self._all(self.threads.steps.body, ahead)
      if products := self.plan.lowering.under_way:
        writer.line(f"ptx::wgmma_wait<{len(products)}>();")
      ahead.behind()

  def _tiles(self, ahead: AheadWriter) -> None:
    """One tile after the other; the first copies of the next are under way while one is finished."""
    writer, threads = self.writer, self.threads
    total = threads.tiles

    def begin(tile: str) -> None:
      with writer.block():
        writer.line(f"const int next = {tile};")
        with writer.block(f"if (next < {total})"):
          self.pieces.declare(writer, self.one.choose(writer, "next"))
          ahead.begin()

    begin("ptx::block_x()")
    writer.line("#pragma unroll 1")
    with writer.block(f"for (int tile = ptx::block_x(); tile < {total}; tile += {self.threads.standing})"):
      self.pieces.declare(PinningWriter(writer), self.one.choose(writer, "tile"))
      self._loop(ahead, loop=True)
      writer.line("ptx::sync_block();")
      begin(f"tile + {self.threads.standing}")
      self._all(threads.steps.after, ahead)

  def _complete(self) -> None:
    """What the loop has left under way."""
    lowering, names = self.plan.lowering, self.values
    if lowering.late is not None:
      last = f"(used + {lowering.stages - 1}) % {lowering.stages}"
      issue_late(names, last if names.feed else f"(steps - 1) % {lowering.stages}")
      settle_late(names)
    if not lowering.under_way:
      return
    self.writer.line("ptx::wgmma_wait<0>();")
    for product in sorted(lowering.under_way):
      into = lowering.fused[product]
      held = Held(into, lowering.forms[into])
      unit = "".join("[0]" for _ in held.form.rest)
      self.writer.line(f"ptx::wgmma_hold({names.name(held)}{unit});")

  def _all(self, steps: tuple[ThreadStep, ...], ahead: SharedRing) -> None:
    for step in steps:
      if isinstance(step, Advance):
        ahead.advance()
      elif isinstance(step, ThreadBarrier):
        ahead.meet(step)
      elif not (isinstance(step, Copy) and (self.values.feed or step.tile in self.plan.memory.early)):
        write_step(self.values, step)  # those copies began before the loop
