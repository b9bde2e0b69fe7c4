"""What one block of a kernel does and holds, counted over the steps of its thread graph.

The counts are of the steps that the text is written from, so they are what a kernel does, not what it would
have to do: padded tiles, copies in several warps, moves through shared memory. ``bench/kernel_times.py``
records them beside measured times.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import ceil, prod

from mirage_onnx.cost.chip import SECTOR_BYTES
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.block_ops import ACCUMULATORS
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import BlockOp
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.feed import Feed
from mirage_onnx.lower.forms import Form, Side
from mirage_onnx.lower.issued import in_pairs, in_vectors, pair_together
from mirage_onnx.lower.shared import SharedTile, in_chunks
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.stream_graph import StreamedPlan
from mirage_onnx.lower.tensor_view import TensorView
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.tiled_graph import TiledPlan

#: Loads of a lane that are under way at a time where they are used at once; elements that a thread of a copy
#: has under way where they go one by one, as the compiler unrolls such loops.
IN_FLIGHT, UNROLLED = 10, 4


@dataclass(slots=True)
class BlockCounts:
  """Of a block.

  ``loaded_bytes``, ``stored_bytes``: from and to memory, elements apart as the sectors that they are in;
  ``shared_bytes``: to and from shared memory, ``remote_bytes``: from that of other blocks of a cluster;
  ``requests``, ``shared_requests``: instructions of all threads that move them; ``trips``: how often a thread
  waits for memory, one after the other; ``mma``: instructions of 16 x 8 x 16 of all warps, ``wgmma``: as many
  that warpgroups issue in one, ``waited``: those of them whose results the same iteration takes; ``lanes``,
  ``special``: operations of all threads; ``iterations``: of its loop, ``stages``: of its ring; ``held``:
  elements that a lane holds at once, 0 where nobody counts them, ``results``: registers of a lane for
  products by wgmma and what they take from registers. ``partial``: stores of a warp that write a part of a
  sector each; ``folds``: reductions inside a warp, one after the other.
  """

  blocks: int = 1
  warps: int = 1
  iterations: float = 1
  stages: int = 1
  smem_bytes: int = 0
  held: int = 0
  loaded_bytes: float = 0
  stored_bytes: float = 0
  shared_bytes: float = 0
  requests: float = 0
  shared_requests: float = 0
  trips: float = 0
  mma: float = 0
  lanes: float = 0
  special: float = 0
  barriers: float = 0
  cluster_barriers: float = 0
  wgmma: float = 0
  waited: float = 0
  results: int = 0
  partial: float = 0
  folds: float = 0
  remote_bytes: float = 0

  @classmethod
  def names(cls) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))

  def run(self, ops: Iterable[BlockOp], elements: float) -> None:
    """Elementwise operations on so many elements of all threads."""
    for op in ops:
      if op.op in ELEMENTWISE and ELEMENTWISE[op.op].price is not Price.LANE:
        self.special += elements
      else:
        self.lanes += elements

  def load(self, elements: float, size: float, together: float) -> None:
    """From memory, so many elements an instruction."""
    self.loaded_bytes += elements * size
    self.requests += elements / together

  def store(self, elements: float, size: float, together: float = 1) -> None:
    """To memory."""
    self.stored_bytes += elements * size
    self.requests += elements / together

  def share(self, elements: float, size: float, together: float = 1) -> None:
    """To or from shared memory."""
    self.shared_bytes += elements * size
    self.shared_requests += elements / together

  def barrier(self, step: do.ThreadStep, times: float) -> None:
    if isinstance(step, do.ThreadBarrier) and step.cluster:
      self.cluster_barriers += times
    elif isinstance(step, (do.ThreadBarrier, do.Advance)):
      self.barriers += times


def counts_of(threads: ThreadGraph) -> BlockCounts:
  """The counts of a block with the sizes that the kernel was lowered for."""
  found = BlockCounts(prod(threads.grid.launch), threads.params.warps, threads.iterations, threads.stages)
  found.smem_bytes, found.held = threads.smem_bytes, threads.live
  if isinstance(threads.plan, StreamedPlan):
    _streaming(threads, threads.plan, found)
  else:
    _Tiled(threads, threads.plan, found).count()
    found.loaded_bytes -= _copied_by_others(threads, threads.plan)
  return found


def _copied_by_others(threads: ThreadGraph, plan: TiledPlan) -> float:
  """Bytes that blocks that share copy for this one."""
  feed, lowering, spared = threads.feed, plan.lowering, 0.0
  for fed in feed.tiles if isinstance(feed, Feed) else ():
    tile = lowering.tiles[lowering.homes[fed.index]]
    size = tile.elements * tile.dtype.size_bytes * threads.iterations
    spared += size * (1 - 1 / threads.sharing) if fed.shared else 0.0
  return spared


def _streaming(threads: ThreadGraph, streamed: StreamedPlan, found: BlockCounts) -> None:
  plan, loop, behind = streamed.axes, streamed.loop, streamed.behind
  ops, warps = plan.kernel.ops, plan.params.warps
  every, own = plan.threads, {a.index: a for a in loop.accumulators}
  times = threads.iterations

  def fragments(index: int) -> int:
    return prod(n for _, n in plan.tiles(ops[index]))

  for index in loop.loads:
    tensor = loop.graph.tensor(ops[index].tensor)
    size = tensor.dtype.bits / 8 / tensor.repeat
    view = TensorView.of(tensor, threads.extents, packed=True)
    vectors = view.together(plan.depth, 8) and plan.depth_extent % 8 == 0
    together = max(1.0, min(plan.lane, 16 / size)) if vectors else 1
    found.load(times * every * fragments(index) * plan.lane, size, together)
  for step in loop.body:
    often = times * plan.parts
    match step:
      case do.ThreadRun():
        found.run((ops[i] for i in step.ops), often * every * 8 * fragments(step.index))
      case do.Unpack() | do.Widen() | do.PairProduct():
        found.lanes += often * every * 8 * fragments(step.index)
      case do.Contract(into=into):
        # An eight of the depth is two of the four slots of an instruction: 32 of it are two.
        found.mma += often * warps * 2 * own[into].row_tiles * own[into].column_tiles
      case do.Weigh(index=into):
        found.lanes += times * every * 4 * own[into].row_tiles * own[into].column_tiles
      case do.Update():
        found.lanes += often * every * 8 * prod(n for _, n in own[step.index].tiles)
  for step in behind.steps:
    found.barrier(step, 1)
    match step:
      case do.Publish():
        found.share(warps * own[step.index].floats, 4)
      case do.Gather() | do.GatherRanks():
        found.share((warps + 1) * own[step.index].floats, 4)
      case do.Total() | do.Stage():
        found.share(behind.span(step.index).elements, 4)
      case do.Store():
        space, saves = behind.spaces[step.index]
        elements = space.share
        found.lanes += elements
        for save in saves:
          found.store(elements, loop.graph.tensor(save.tensor).dtype.size_bytes)
        found.share(elements * (1 if behind.reduced else warps), 4)
  found.trips = max(1, times / threads.stages)


@dataclass(slots=True)
class _Tiled:
  threads: ThreadGraph
  plan: TiledPlan
  found: BlockCounts

  def count(self) -> None:
    threads, found = self.threads, self.found
    lowering = self.plan.lowering
    found.iterations = iterations = self._iterations()
    before, body, after = threads.steps.before, threads.steps.body, threads.steps.after
    for often, steps in ((1, before), (iterations, body), (1, after)):
      for step in steps:
        found.barrier(step, often)
        self._add(step, often)
        for index, form in self._uses(step):
          self._made_in_place(index, form, often)
    if lowering.warpgroup:
      found.results = sum(self.plan.warps.registers(lowering.forms[i]) for i in lowering.assignment.products)
      found.results += sum(-(-self.plan.warps.registers(h.form) // 2) for h in lowering.made if h.packed)
    ring = (lowering.tiles[lowering.homes[i]] for i in lowering.ring)
    for index, tile in zip(lowering.ring, ring, strict=True):
      self._copied(index, tile, iterations)
    if lowering.warps.in_rows:  # whose loads are all under way together
      found.trips = 1 + bool(before)
    if lowering.ring:
      found.trips += max(1, iterations / max(1, lowering.stages - 1))

  def _iterations(self) -> float:
    """What a block does of them on average, where a constant hides the others."""
    pieces, seen = self.plan.pieces, self.plan.unseen
    if seen is None or pieces.step is None:
      return pieces.most_steps
    rows, tile = seen.band.rows, pieces.grid.tile(seen.band.rows, pieces.extents).tile
    each = seen.share(pieces.extents[rows], pieces.extents[seen.band.columns], tile, pieces.step.length)
    return each * pieces.most_steps

  def _elements(self, form: Form) -> int:
    """Of all threads, copies counted."""
    return 32 * self.plan.warps.total * self.plan.warps.registers(form)

  def _add(self, step: do.ThreadStep, often: float) -> None:
    found, lowering = self.found, self.plan.lowering
    ops = lowering.assignment.kernel.ops
    match step:
      case do.Fetch():
        elements = often * self._elements(step.to.form)
        together = self._together(ops[step.index].tensor, step.to.form) or 1 + in_pairs(lowering, step.to)
        found.load(elements, ops[step.index].dtype.bits / 8, together)
        found.trips += often
        found.lanes += elements
      case do.Copy():
        self._copied(step.index, lowering.tiles[step.tile], often)
        found.trips += often
      case do.Read():
        found.share(often * self._elements(step.to.form), 4)
      case do.Spill():
        found.share(often * self._elements(step.held.form), 4)
      case do.ThreadRun():
        found.run((ops[i] for i in step.ops), often * self._elements(step.form))
      case do.Contract():
        self._contract(step, often)
      case do.Multiply():
        size = prod(p.length for p in lowering.assignment.own(step.index).values())
        deep = lowering.assignment.products[step.index].depth.length
        found.lanes += often * size * deep
        found.share(often * 2 * size * deep, 4)
      case do.Fold():
        found.lanes += often * self._elements(step.source)
        found.folds += often
      case do.Meet():
        found.lanes += often * 2 * len(step.masks) * self._elements(lowering.forms[step.index])
      case do.Publish():
        found.share(often * self._elements(lowering.forms[step.index]), 4)
      case do.Gather():
        parts = self.plan.warps.count(step.side)
        found.share(often * parts * self._elements(lowering.forms[step.index]), 4)
      case do.GatherRanks():
        found.share(often * self._elements(lowering.forms[step.index]), 4)
        found.remote_bytes += (lowering.ranks - 1) * 4 * often * self._elements(lowering.forms[step.index])
      case do.Total():
        tile = lowering.tiles[step.tile]
        found.share(often * tile.elements, tile.dtype.bits / 8)
      case do.Update():
        both = 1 + (ops[step.index].op in ACCUMULATORS)
        found.lanes += often * both * self._elements(lowering.forms[step.index])
      case do.Store():
        save = lowering.assignment.kernel.saves[step.index]
        form, own = lowering.save_form(save.arg), lowering.assignment.own(save.arg).values()
        elements, size = often * self._elements(form), lowering.tensors[save.tensor].dtype.size_bytes
        found.lanes += elements
        found.store(elements, size, self._together(save.tensor, form) or 1)
        run = self._run(save.tensor, form)
        found.partial += often * prod(p.length for p in own) / run * (run * size < SECTOR_BYTES)

  def _together(self, name: str, form: Form) -> int:
    """Neighbours of a row in one instruction of a lane; 0: no vector."""
    lowering = self.plan.lowering
    view = TensorView.of(lowering.tensors[name], lowering.extents, packed=True)
    return form.lanes.pack if in_vectors(lowering, view, form) else 0

  def _run(self, name: str, form: Form) -> int:
    """Neighbours in memory that one instruction of a warp has of a tensor."""
    inner = self.plan.lowering.tensors[name].axes[-1:]
    for side, lanes in ((form.t, form.lanes.inner), (form.g, form.lanes.groups)):
      if side and (side[-1].axis,) == inner:
        return min(lanes, side[-1].length)
    return 1

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
        apart = (h for h in (do.Held(a, f, packed=True) for a, f in found) if h not in lowering.made)
        return [(h.index, h.form) for h in apart if lowering.tile_of(h.index, h.form) is None]
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

  def _made_in_place(self, index: int, form: Form, often: float) -> None:
    """A value that is read or computed where it is used."""
    found, lowering = self.found, self.plan.lowering
    op = lowering.assignment.kernel.ops[index]
    if op.op in ("const", "extent") or not lowering.in_place(index, form):
      return
    elements = often * self._elements(form)
    if op.op != "load":
      found.run((op,), elements)
      for a in op.args:
        self._made_in_place(a, form.of(lowering.assignment.own(a).values()), often)
    elif index not in lowering.homes:
      tensor = lowering.tensors[op.tensor]
      view, own = TensorView.of(tensor, lowering.extents), lowering.assignment.own(index)
      pairs = form.lanes.pack == 2 and op.dtype.is_half and pair_together(lowering, view, own, form)
      found.load(elements, op.dtype.bits / 8, 1 + pairs)
      found.trips += often * self.plan.warps.registers(form) / (1 + pairs) / IN_FLIGHT
    else:
      found.share(elements, op.dtype.bits / 8)

  def _copied(self, index: int, tile: SharedTile, often: float) -> None:
    """A tile of a tensor to shared memory, in chunks of 16 bytes where it lies so."""
    found, lowering = self.found, self.plan.lowering
    tensor = lowering.tensors[lowering.assignment.kernel.ops[index].tensor]
    view = TensorView.of(tensor, lowering.extents, packed=True)
    together = tile.chunk if in_chunks(view, tile) else 1
    elements, size = often * tile.elements, tile.dtype.bits / 8
    found.load(elements, size, together)
    found.share(elements, size, together)
    if together == 1 and not is_runtime(lowering.extents, tile.order[-1].axis if tile.order else ""):
      found.trips += elements / (32 * self.plan.warps.total) / UNROLLED

  def _contract(self, step: do.Contract, often: float) -> None:
    warps, product = self.plan.warps, self.plan.lowering.assignment.products[step.index]

    def tiles(side: Side, of: int) -> int:
      return ceil(warps.tiles(side, 8) * 8 / of) if side else 1

    rest = prod(p.length for p in product.c.rest)
    each = tiles(product.c.g, 16) * tiles(product.c.t, 8) * tiles((product.depth,), 16)
    lowering, count = self.plan.lowering, often * warps.total * rest * each
    by_warpgroup = step.index in lowering.warpgroup
    if by_warpgroup:
      self.found.wgmma += count
      self.found.waited += count * (step.index not in lowering.under_way)
    else:
      self.found.mma += count
    rows = tiles(product.c.g, 16)
    args = lowering.assignment.kernel.ops[step.index].args
    for index, form, again in zip(args, (product.a, product.b), (1.0, rows / WGMMA.warps), strict=True):
      home = lowering.tile_of(index, form) if lowering.on_tensor_cores(step.index) else None
      if home is not None and do.Held(index, form, packed=True) not in lowering.made:
        tile, elements = lowering.tiles[home], often * self._elements(form)
        if by_warpgroup:  # of operand B all warps of a group have what is read once for 64 rows
          self.found.shared_bytes += 2 * elements * again
          continue
        matrices = lowering.by_matrices(tile, form, product.depth)
        self.found.share(elements, 2, 8 if matrices else 1 + (tile.order[-1] == product.depth))
