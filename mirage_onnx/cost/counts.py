"""What one block of a kernel does and holds, counted over the steps of its thread graph.

The counts are of the steps that the text is written from, so they are what a kernel does, not what it would
have to do: padded tiles, copies in several warps, moves through shared memory. ``bench/kernel_times.py``
records them beside measured times.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import ceil, prod

from mirage_onnx.ir.block_ops import ACCUMULATORS
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import BlockOp
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.forms import Form, Side
from mirage_onnx.lower.row_graph import RowPlan
from mirage_onnx.lower.stream_graph import StreamedPlan
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.tiled_graph import TiledPlan


@dataclass(frozen=True, slots=True)
class BlockCounts:
  """Of a block.

  ``loaded_bytes``: from memory; ``shared_bytes``: to and from shared memory; ``mma``: instructions of
  16 x 8 x 16 of all warps; ``lanes``, ``special``: operations of all threads; barriers that it passes.
  ``iterations``: of its loop, ``stages``: of its ring; ``held``: elements that a lane holds at once, 0
  where nobody counts them.
  """

  blocks: int
  warps: int
  iterations: int = 1
  stages: int = 1
  smem_bytes: int = 0
  held: int = 0
  loaded_bytes: float = 0
  shared_bytes: float = 0
  mma: float = 0
  lanes: float = 0
  special: float = 0
  barriers: float = 0
  cluster_barriers: float = 0

  @classmethod
  def names(cls) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


@dataclass(slots=True)
class _Sums:
  loaded_bytes: float = 0
  shared_bytes: float = 0
  mma: float = 0
  lanes: float = 0
  special: float = 0
  barriers: float = 0
  cluster_barriers: float = 0

  def run(self, ops: Iterable[BlockOp], elements: float) -> None:
    """Elementwise operations on so many elements of all threads."""
    for op in ops:
      if op.op in ELEMENTWISE and ELEMENTWISE[op.op].price is not Price.LANE:
        self.special += elements
      else:
        self.lanes += elements

  def barrier(self, step: do.ThreadStep, times: int) -> None:
    if isinstance(step, do.ThreadBarrier) and step.cluster:
      self.cluster_barriers += times
    elif isinstance(step, (do.ThreadBarrier, do.Advance)):
      self.barriers += times

  def counts(self, **more: int) -> BlockCounts:
    return BlockCounts(**more, **{f.name: getattr(self, f.name) for f in fields(self)})


def counts_of(threads: ThreadGraph) -> BlockCounts:
  """The counts of a block with the sizes that the kernel was lowered for."""
  match threads.plan:
    case StreamedPlan():
      return _streaming(threads, threads.plan)
    case RowPlan():
      return _row(threads, threads.plan)
  return _Tiled(threads, threads.plan).counts()


def _row(threads: ThreadGraph, plan: RowPlan) -> BlockCounts:
  ops, found, every = threads.kernel.ops, _Sums(), threads.threads
  own = plan.count * plan.width
  for step in threads.steps.before + threads.steps.after:
    match step:
      case do.Fetch():
        wide = plan.axis in ops[step.index].axes
        found.loaded_bytes += (own * every if wide else 1) * ops[step.index].dtype.size_bytes
      case do.ThreadRun():
        elements = own if plan.axis in ops[step.index].axes else 1
        found.run((ops[i] for i in step.ops), elements * every)
      case do.Fold():
        found.lanes += (own + 5) * every
        found.barriers += 0 if plan.packed else 2
  blocks = prod(threads.launch)
  return found.counts(blocks=blocks, warps=threads.params.warps, smem_bytes=threads.smem_bytes)


def _streaming(threads: ThreadGraph, streamed: StreamedPlan) -> BlockCounts:
  plan, loop, behind, found = streamed.axes, streamed.loop, streamed.behind, _Sums()
  ops, warps = plan.kernel.ops, plan.params.warps
  every, own = plan.threads, {a.index: a for a in loop.accumulators}
  times = threads.pipeline.iterations

  def fragments(index: int) -> int:
    return prod(n for _, n in plan.tiles(ops[index]))

  for index in loop.loads:
    tensor = loop.graph.tensor(ops[index].tensor)
    size = tensor.dtype.bits / 8 / tensor.repeat
    found.loaded_bytes += times * every * fragments(index) * plan.lane * size
  for step in loop.body:
    often = times * plan.parts
    match step:
      case do.ThreadRun():
        found.run((ops[i] for i in step.ops), often * every * 8 * fragments(step.index))
      case do.Unpack() | do.Widen() | do.PairProduct():
        found.lanes += often * every * 8 * fragments(step.index)
      case do.Contract():
        acc = own[step.into]
        # An eight of the depth is two of the four slots of an instruction: 32 of it are two.
        found.mma += often * warps * 2 * acc.row_tiles * acc.column_tiles
      case do.Update():
        found.lanes += often * every * 8 * prod(n for _, n in own[step.index].tiles)
  for step in behind.steps:
    found.barrier(step, 1)
    match step:
      case do.Publish():
        found.shared_bytes += 4 * warps * own[step.index].floats
      case do.Gather() | do.GatherRanks():
        found.shared_bytes += 4 * (warps + 1) * own[step.index].floats
      case do.Total() | do.Stage():
        found.shared_bytes += 4 * behind.span(step.index).elements
      case do.Store():
        found.lanes += every * behind.spaces[step.index][0].per_thread
  return found.counts(
    blocks=prod(threads.launch), warps=warps, iterations=times, stages=threads.pipeline.stages,
    smem_bytes=threads.smem_bytes, held=threads.live,
  )  # fmt: skip


@dataclass(slots=True)
class _Tiled:
  threads: ThreadGraph
  plan: TiledPlan

  def counts(self) -> BlockCounts:
    threads, found = self.threads, _Sums()
    pieces, lowering = self.plan.pieces, self.plan.lowering
    for often, steps in (
      (1, threads.steps.before), (pieces.most_steps, threads.steps.body), (1, threads.steps.after),
    ):  # fmt: skip
      for step in steps:
        found.barrier(step, often)
        self._add(step, often, found)
        for index, form in self._uses(step):
          self._made_in_place(index, form, often, found)
    ring = (lowering.tiles[lowering.homes[i]] for i in lowering.ring)
    moved = sum(t.size_bytes / t.copies for t in ring)
    found.loaded_bytes += pieces.most_steps * moved
    found.shared_bytes += pieces.most_steps * moved
    return found.counts(
      blocks=prod(pieces.grid.launch), warps=self.plan.warps.total, iterations=pieces.most_steps,
      stages=threads.pipeline.stages, smem_bytes=threads.smem_bytes, held=threads.live,
    )  # fmt: skip

  def _elements(self, form: Form) -> int:
    """Of all threads, copies counted."""
    return 32 * self.plan.warps.total * self.plan.warps.registers(form)

  def _add(self, step: do.ThreadStep, often: int, found: _Sums) -> None:
    lowering = self.plan.lowering
    ops = lowering.assignment.kernel.ops
    match step:
      case do.Fetch():
        found.loaded_bytes += often * self._elements(step.to.form) * ops[step.index].dtype.bits / 8
        found.lanes += often * self._elements(step.to.form)
      case do.Copy():
        size = lowering.tiles[step.tile].size_bytes
        found.loaded_bytes += often * size
        found.shared_bytes += often * size
      case do.Read():
        found.shared_bytes += often * 4 * self._elements(step.to.form)
      case do.Spill():
        found.shared_bytes += often * 4 * self._elements(step.held.form)
      case do.ThreadRun():
        found.run((ops[i] for i in step.ops), often * self._elements(step.form))
      case do.Contract():
        self._contract(step, often, found)
      case do.Multiply():
        size = prod(p.length for p in lowering.assignment.own(step.index).values())
        deep = lowering.assignment.products[step.index].depth.length
        found.lanes += often * size * deep
        found.shared_bytes += often * 8 * size * deep
      case do.Fold():
        found.lanes += often * self._elements(step.source)
      case do.Meet():
        found.lanes += often * 2 * len(step.masks) * self._elements(lowering.forms[step.index])
      case do.Publish():
        found.shared_bytes += often * 4 * self._elements(lowering.forms[step.index])
      case do.Gather():
        parts = self.plan.warps.count(step.side)
        found.shared_bytes += often * 4 * parts * self._elements(lowering.forms[step.index])
      case do.GatherRanks():
        found.shared_bytes += often * 4 * lowering.ranks * self._elements(lowering.forms[step.index])
      case do.Total():
        found.shared_bytes += often * lowering.tiles[step.tile].size_bytes
      case do.Update():
        found.lanes += (
          often * (1 + (ops[step.index].op in ACCUMULATORS)) * self._elements(lowering.forms[step.index])
        )
      case do.Store():
        save = lowering.assignment.kernel.saves[step.index]
        found.lanes += often * self._elements(lowering.save_form(save.arg))

  def _uses(self, step: do.ThreadStep) -> list[tuple[int, Form]]:
    """The values that a step takes, in their forms."""
    lowering = self.plan.lowering
    assignment, ops = lowering.assignment, lowering.assignment.kernel.ops

    def beside(args: Iterable[int], form: Form) -> list[tuple[int, Form]]:
      return [(a, form.of(assignment.own(a).values())) for a in args]

    match step:
      case do.ThreadRun():
        return [use for i in step.ops for use in beside(ops[i].args, step.form)]
      case do.Fold():
        return [(ops[step.index].args[0], step.source)]
      case do.Contract():
        product = assignment.products[step.index]
        found = list(zip(ops[step.index].args, (product.a, product.b), strict=True))
        return [(a, f) for a, f in found if do.Held(a, f, packed=True) not in lowering.made]
      case do.Pack():
        return [(step.index, step.to.form)]
      case do.Update():
        return beside(ops[step.index].args, lowering.forms[step.index])
      case do.Spill():
        return [(step.index, step.held.form)]
      case do.Store():
        arg = assignment.kernel.saves[step.index].arg
        return [(arg, lowering.save_form(arg))]
    return []

  def _made_in_place(self, index: int, form: Form, often: int, found: _Sums) -> None:
    """A value that is read or computed where it is used."""
    lowering = self.plan.lowering
    op = lowering.assignment.kernel.ops[index]
    if op.op in ("const", "extent") or not lowering.in_place(index, form):
      return
    elements = often * self._elements(form)
    if op.op != "load":
      found.run((op,), elements)
      for a in op.args:
        self._made_in_place(a, form.of(lowering.assignment.own(a).values()), often, found)
    elif index not in lowering.homes:
      found.loaded_bytes += elements * op.dtype.bits / 8
    elif lowering.tile_of(index, form) is None:
      found.shared_bytes += elements * op.dtype.bits / 8

  def _contract(self, step: do.Contract, often: int, found: _Sums) -> None:
    warps, product = self.plan.warps, self.plan.lowering.assignment.products[step.index]

    def tiles(side: Side, of: int) -> int:
      return ceil(warps.tiles(side, 8) * 8 / of) if side else 1

    rest = prod(p.length for p in product.c.rest)
    each = tiles(product.c.g, 16) * tiles(product.c.t, 8) * tiles((product.depth,), 16)
    found.mma += often * warps.total * rest * each
    lowering = self.plan.lowering
    for index, form in zip(
      lowering.assignment.kernel.ops[step.index].args, (product.a, product.b), strict=True
    ):
      if lowering.on_tensor_cores(step.index) and lowering.tile_of(index, form) is not None:
        found.shared_bytes += often * 2 * self._elements(form)
