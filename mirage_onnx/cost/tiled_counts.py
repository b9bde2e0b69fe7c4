"""What a block of a tiled kernel does and holds at many parameter points, as ``counts.py`` counts it.

There the steps of one thread graph are counted, here what they will be: a kernel is laid out for one set of
numbers in milliseconds, and a search asks for thousands. Both are counts of the same things, and one formula
makes times of them (``kernel_time.py``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mirage_onnx.cost.chip import SECTOR_BYTES
from mirage_onnx.cost.counts import IN_FLIGHT, UNROLLED, BlockCounts
from mirage_onnx.cost.tiled_block import BASE_REGISTERS
from mirage_onnx.cost.tiled_sizes import ONE, Array, Points, TileSizes, WarpCounts, power_of_two, up
from mirage_onnx.cost.tiled_work import BlockValue, CutAxes, Extent, ProductWork, TiledWork, held_at_once
from mirage_onnx.ir.block_ops import ACCUMULATORS, Kind, kind_of
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.ugraph import Layout
from mirage_onnx.lower.lowered import MOST_FETCHED
from mirage_onnx.lower.lowering import MOST_COPIED
from mirage_onnx.lower.tiled_graph import BLOCK_HOLDS, HELD, MOST_LIVE
from mirage_onnx.lower.tiled_layouts import spread_axis

CONSTANTS = ("const", "extent")
#: Bytes of a chunk of a copy.
CHUNK = 16
#: Steps of shuffles: of all lanes, inside the quads, over the groups.
ALL_LANES, IN_QUADS, OVER_GROUPS = 5, 2, 3


@dataclass(slots=True)
class TiledCounter:
  """Counts of a block at all points, into ``found``."""

  work: TiledWork
  sizes: TileSizes
  warps: WarpCounts
  points: Points
  iterations: Array
  found: BlockCounts
  threads: Array = field(init=False)
  placed: list[Array] = field(default_factory=list)
  copied: dict[int, Array] = field(default_factory=dict)
  known: dict[tuple[Extent, frozenset[str]], Array] = field(default_factory=dict)
  spread: str | None = None
  rows: Array = field(default_factory=lambda: ONE)

  def __post_init__(self) -> None:
    self.threads = 32 * self.points.warps
    if not self.work.products:
      self.spread = spread_axis(self.work.kernel, self.work.tensors)
      for v in self.work.values:
        others = tuple((a, c) for a, c in v.extent.axes if a != self.spread)
        if len(others) < len(v.extent.axes):
          self.rows = np.maximum(self.rows, self.sizes.of(others))

  def count(self, registers: Array) -> BlockCounts:
    """The counts; ``registers``: of a lane, if what is computed is made where it is used."""
    live = self._live()
    fits = live <= np.minimum(MOST_LIVE, BLOCK_HOLDS / self.threads)
    self.found.held = np.where(fits, live, registers - BASE_REGISTERS)
    self._place(np.where(fits, *HELD))
    for v in self.work.values:
      kind = kind_of(v.op.op)
      if kind is Kind.LOAD:
        self._load(v)
      elif is_elementwise(v.op.op):
        self._elementwise(v)
      elif kind is Kind.REDUCTION:
        self._reduce(v)
      elif v.op.op in ACCUMULATORS or kind is Kind.RUNNING:
        self._accumulate(v)
    for p in self.work.products:
      self._product(p)
    self._move()
    self._saves()
    self._ring()
    return self.found

  def registers(self, v: BlockValue, form: Extent | None = None) -> Array:
    """What a lane holds of a value, in its own form or as another lies."""
    form = form or v.extent
    axes = frozenset(a for a, _ in v.extent.axes)
    if (form, axes) not in self.known:
      self.known[form, axes] = self._registers(form, v.extent.axes)
    return self.known[form, axes]

  def _registers(self, form: Extent, own: CutAxes) -> Array:
    if not self.work.products:
      return self._vector(own)
    sides = {a for a, _ in form.g + form.t}
    axes = {a for a, _ in own}
    n = self.sizes.of(tuple((a, c) for a, c in own if a not in sides))
    for side, pack in ((form.g, 1), (form.t, 2)):
      if not axes.isdisjoint(a for a, _ in side):
        n = n * self._tiles(side) * pack
    return n

  def _tiles(self, side: CutAxes) -> Array:
    """Tiles of eight that a warp has of a side; of rows and depth of a contraction an even number."""
    length, last, warps = self.sizes.of(side), self.work.last, self.warps
    axes = {a for a, _ in side}
    count: Array = ONE
    even = False
    for p in self.work.products:
      for part, parts in ((p.rows, warps.rows), (p.columns, warps.columns), (p.depth, warps.depth)):
        if axes == {a for a, _ in part}:
          even |= part is not p.columns and not p.wide
          count = parts if p is last else count
    tiles = np.ceil(length / (8 * count))
    return np.where(length > 8, up(tiles, 2), tiles) if even else tiles

  def _vector(self, own: CutAxes) -> Array:
    """The same where all lanes lie along one axis."""
    warps = self.points.warps
    others = tuple((a, c) for a, c in own if a != self.spread)
    by_rows = np.minimum(warps, power_of_two(self.rows))
    n = np.ceil(self.sizes.of(others) / by_rows) if others else ONE
    for a, c in own:
      if a == self.spread:
        n = n * np.ceil(self.sizes.axis(a, c) / (32 * warps / by_rows))
    return n

  def _often(self, v: BlockValue) -> Array:
    return self.iterations if v.repeats else ONE

  def _place(self, held: Array) -> None:
    """Where values are made where they are used (``Lowered.in_place``), and tiles go to shared memory."""
    ops, sizes = self.work.kernel.ops, self.sizes
    for v in self.work.values:
      placed = ONE > 1
      if v.op.op == "load":
        wide = self.registers(v) > MOST_FETCHED
        if v.op.layout is Layout.SHARED:
          placed = self.copied[v.index] = ONE > 0
        else:
          little = sizes.of(v.extent.axes) * v.op.dtype.size_bytes <= MOST_COPIED
          self.copied[v.index], placed = wide & little, wide
      elif is_elementwise(v.op.op):
        some, every = ONE > 1, ONE > 0
        for a in v.op.args:
          if ops[a].op not in CONSTANTS:
            some = some | self.placed[a]
            inner = {x for x, _ in v.extent.t} if self.work.products else {self.spread}
            if inner & {x for x, _ in self.work.values[a].extent.axes}:
              every = every & self.placed[a]
        placed = some & every & (self.registers(v) > held)
      self.placed.append(placed)

  def _live(self) -> Array:
    """Elements that a lane holds at once, if all that is computed stays in registers (``lower/live.py``)."""
    most = ONE * 0.0
    for together in held_at_once(self.work):
      most = np.maximum(most, sum(count * self.registers(self.work.values[i]) for i, count in together))
    return most

  def _take(self, args: Iterable[int], form: Extent | None, often: Array) -> None:
    """Values that a step takes; those that are in no registers are read or computed for it."""
    found, values = self.found, self.work.values
    for a in args:
      v = values[a]
      if v.op.op in CONSTANTS or not np.any(self.placed[a]):
        continue
      registers = self.registers(v, form)
      times = often * self.placed[a]
      elements = registers * self.threads * times
      if v.op.op != "load":
        found.run((v.op,), elements)
        self._take(v.op.args, form or v.extent, times)
        continue
      shared = self.copied[a]
      found.share(elements * shared, v.op.dtype.bits / 8)
      if not np.all(shared):
        pairs = self._pairs(v, form or v.extent)
        found.load(elements * ~shared, v.op.dtype.bits / 8, pairs)
        found.trips = found.trips + times * ~shared * registers / pairs / IN_FLIGHT

  def _pairs(self, v: BlockValue, form: Extent) -> float:
    """Elements that a lane loads together."""
    inner = self.work.tensors[v.op.tensor].inner
    return 1.0 + (v.op.dtype.is_half and bool(form.t) and form.t[-1][0] == inner)

  def _load(self, v: BlockValue) -> None:
    op, found, often = v.op, self.found, self._often(v)
    copied, placed = self.copied[v.index], self.placed[v.index]
    if np.any(copied):
      self._copy(v, copied)
    if not np.all(placed):
      elements = self.registers(v) * self.threads * often * ~placed
      found.load(elements, op.dtype.bits / 8, self._pairs(v, v.extent))
      found.lanes = found.lanes + elements
      found.trips = found.trips + often * ~placed

  def _copy(self, v: BlockValue, where: Array) -> None:
    """A tile to shared memory."""
    op, found = v.op, self.found
    inner, size = self.work.tensors[op.tensor].inner, op.dtype.bits / 8
    elements = self.sizes.of(v.extent.axes) * self._often(v) * where
    chunk, cuts = CHUNK // max(1, int(size)), dict(v.extent.axes)
    together: Array = ONE
    if inner in cuts:
      whole = self.sizes.axis(inner, cuts[inner])
      even = (whole % chunk == 0) & (self.sizes.extents.get(inner, chunk) % chunk == 0)
      together = np.where(even, float(chunk), 1.0)
    found.load(elements, size, together)
    found.share(elements, size, together)
    found.trips = found.trips + (together == 1) * elements / self.threads / UNROLLED
    if not v.repeats:
      found.trips = found.trips + 1.0 * where

  def _elementwise(self, v: BlockValue) -> None:
    made = self._often(v) * ~self.placed[v.index]
    if np.any(made):
      self.found.run((v.op,), self.registers(v) * self.threads * made)
      self._take(v.op.args, v.extent, made)

  def _reduce(self, v: BlockValue) -> None:
    found, often, of = self.found, self._often(v), self.work.values[v.op.args[0]]
    found.lanes = found.lanes + self.registers(of) * self.threads * often
    found.folds = found.folds + often
    self._take((of.index,), of.extent, often)
    users = [op for op in self.work.kernel.ops if v.index in op.args]
    waits = bool(users) and all(op.op in ACCUMULATORS for op in users)
    times = ONE if waits else often
    own = self.registers(v) * self.threads
    masks = (
      ALL_LANES if not self.work.products else IN_QUADS if of.extent.t and not v.extent.t else OVER_GROUPS
    )
    found.lanes = found.lanes + 2 * masks * own * times
    gone = of.share & ~v.share
    cut = of.op.layout is Layout.VECTOR and v.op.layout is not Layout.VECTOR
    parts = self.points.warps / np.minimum(self.points.warps, power_of_two(self.rows))
    parts = parts if cut else self.warps.dividing(gone)
    met = (parts > 1) * times
    found.share(own * (1 + parts) * met, 4)
    found.barriers = found.barriers + met

  def _accumulate(self, v: BlockValue) -> None:
    fused = self.work.kernel.ops[v.op.args[0]].op == "matmul"
    own = self.registers(v) * self.threads * self.iterations
    if not fused or len(v.op.args) > 1:
      self.found.lanes = self.found.lanes + (1 + (v.op.op in ACCUMULATORS)) * own
      self._take(v.op.args[fused:], v.extent, self.iterations)

  def _product(self, p: ProductWork) -> None:
    found, sizes, points = self.found, self.sizes, self.points
    often = self.iterations if p.repeats else ONE
    rows, columns, depth, rest = (sizes.of(s) for s in (p.rows, p.columns, p.depth, p.batch))
    op = self.work.kernel.ops[p.index]
    if p.wide:
      each = rows * columns * rest * depth * often
      found.lanes = found.lanes + each
      found.share(2 * each, 4)
      found.barriers = found.barriers + 2 * often
      return
    a_tiles, b_tiles = np.ceil(self._tiles(p.rows) / 2), self._tiles(p.columns) if p.columns else ONE
    deep = np.ceil(self._tiles(p.depth) / 2)
    found.mma = found.mma + often * points.warps * rest * a_tiles * b_tiles * deep
    lines = (a_tiles * 16, b_tiles * 8)
    sides = (Extent(p.rows, p.depth, p.batch), Extent(p.columns, p.depth, p.batch))
    for arg, own, side in zip(op.args, lines, sides, strict=True):
      v = self.work.values[arg]
      kept = p.repeats and not v.repeats
      if v.op.op != "load":
        self._take((arg,), None, ONE if kept else often)
        continue
      shared = self.copied[arg]
      read = own * deep * 16 * points.warps * rest
      times = ONE if kept else often
      inner = self.work.tensors[v.op.tensor].inner
      turned = inner not in dict(p.depth)
      matrices = (depth % 16 == 0) & ((not turned) | (sizes.of(side.g) % 8 == 0))
      found.share(read * times * shared, 2, np.where(matrices, 8.0, 1.0 + (not turned)))
      wide = self.placed[arg] & ~shared
      if np.any(wide):
        pairs = self._pairs(v, side)
        found.load(read * times * wide, v.op.dtype.bits / 8, pairs)
        found.trips = found.trips + times * wide * own * deep * 16 / 32 / pairs / IN_FLIGHT

  def _move(self) -> None:
    found, meetings = self.found, 0
    for move in self.work.moves:
      v = self.work.values[move.value]
      often, own = self._often(v), self.registers(v) * self.threads
      if move.kind in ("shared", "movmatrix"):
        found.share(own * often, 4)
        found.share(own * often, 2, 8)
        found.barriers = found.barriers + 2 * often
      elif move.kind == "dsmem":
        ranked = self.points.cluster > 1
        meetings += 1
        found.share(own * (1 + self.points.cluster) * ranked, 4)
        found.cluster_barriers = (1.0 + (meetings > 2)) * ranked  # maxima meet, then sums

  def _saves(self) -> None:
    found = self.found
    for save in self.work.kernel.saves:
      v, tensor = self.work.values[save.arg], self.work.tensors[save.tensor]
      elements, size = self.registers(v) * self.threads, tensor.dtype.size_bytes
      found.lanes = found.lanes + elements
      found.store(elements, size)
      self._take((save.arg,), v.extent, ONE)
      sides: tuple[tuple[CutAxes, int], ...] = ((v.extent.t, 8), (v.extent.g, 8))
      if not self.work.products:
        sides = ((tuple((a, c) for a, c in v.extent.axes if a == self.spread), 32),)
      run: Array = ONE
      for side, lanes in sides:
        if side and side[-1][0] == tensor.inner:
          run = np.minimum(lanes, self.sizes.axis(*side[-1]))
          break
      part = run * size < SECTOR_BYTES
      found.partial = found.partial + self.sizes.of(v.extent.axes) / run * part

  def _ring(self) -> None:
    found, points = self.found, self.points
    loads = [v for v in self.work.values if v.op.op == "load" and v.op.layout is Layout.SHARED]
    found.stages = ONE
    if any(v.repeats for v in loads):
      found.stages = np.minimum(points.stages, self.iterations)
      found.trips = found.trips + np.maximum(1, self.iterations / np.maximum(1, points.stages - 1))
      found.barriers = found.barriers + self.iterations
    if any(not v.repeats for v in loads):
      found.barriers = found.barriers + 1
    deep = self.warps.depth > 1
    for v in self.work.values:
      if v.op.op in ACCUMULATORS:
        found.share(self.registers(v) * self.threads * (1 + self.warps.depth) * deep, 4)
        found.barriers = found.barriers + 1.0 * deep
