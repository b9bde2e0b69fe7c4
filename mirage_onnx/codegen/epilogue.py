"""After the loop of a streaming kernel as text: partial results meet, then the outputs are computed.

``lower/stream_behind.py`` says what is done, in which order, and where in shared memory.
"""

from collections.abc import Sequence
from itertools import groupby

from mirage_onnx.codegen.grid_text import first_replica
from mirage_onnx.codegen.index_text import subscript, times, total
from mirage_onnx.codegen.loads import TensorText
from mirage_onnx.codegen.scalar import Scalar
from mirage_onnx.codegen.source import Writer, conditional
from mirage_onnx.codegen.space import Place, element_of, offset_in, walk_over
from mirage_onnx.ir.block_ops import merge_of
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.steps import Gather, GatherRanks, Publish, Stage, Store, ThreadBarrier, Total
from mirage_onnx.lower.stream_behind import MOST_UNROLLED, StreamBehind
from mirage_onnx.lower.stream_plan import COLUMNS, ROWS, Accumulator, AccumulatorForm


class Epilogue:
  """Writes everything after the loop; ``early`` writes what is loaded before it."""

  def __init__(self, behind: StreamBehind, writer: Writer) -> None:
    self.behind, self.writer = behind, writer
    self.graph, self.plan, self.ops = behind.graph, behind.plan, behind.ops
    self.cluster, self.warps = self.plan.grid.cluster, self.plan.params.warps
    self.by_index = {a.index: a for a in behind.accumulators}
    #: The tiles that values are in so far.
    self.homes: dict[int, str] = {}
    self.scalar = Scalar(self.graph, self.plan, writer, self._accumulator, self._staged_element)
    self.early = EarlyLoads(behind, self.scalar, writer)

  def _tile(self, name: str, comment: str = "") -> str:
    """Declares a tile, a pointer to floats of shared memory."""
    note = f"  // {comment}" if comment else ""
    self.writer.line(f"float* {name} = {total('smem', str(self.behind.places[name]))};{note}")
    return name

  # ---- access

  def _accumulator(self, acc: Accumulator, at: Place) -> str:
    """The finished value of an accumulator at a place of the tile."""
    row = self.behind.row(acc)
    i = at.get(row.axis, "0") if row else "0"
    column = at.get(acc.column, "0") if acc.column else "0"
    place = total(times(i, acc.pitch) if acc.form is AccumulatorForm.MMA else i, column)
    name = self.homes[acc.index]
    if not self.behind.reduced:
      return f"{self._over_warps(acc)}({total(name, place)})"
    if self.cluster == 1 or acc in self.behind.everywhere:
      return f"{name}[{place}]"
    return f"{self._over_ranks(acc)}({total(name, place)})"

  def _over_warps(self, acc: Accumulator) -> str:
    return f"parts_reduce<{acc.merge.cuda}, {self.warps}, {acc.floats}>"

  def _over_ranks(self, acc: Accumulator) -> str:
    return f"cluster_reduce<{acc.merge.cuda}, {self.cluster}>"

  def _staged_element(self, index: int, at: Place) -> str | None:
    """A staged value at a place of the tile; None if it is not there (yet)."""
    if index not in self.behind.staged or index not in self.homes:
      return None
    return f"{self.homes[index]}[{offset_in(self.behind.span(index), at)}]"

  # ---- partial results

  def _publish(self, published: Sequence[Publish]) -> None:
    """Accumulators of each warp to shared memory."""
    writer, accumulators = self.writer, [self.by_index[s.index] for s in published]
    writer.comment("Each warp's part of the accumulators, to shared memory.")
    writer.line("float* smem = ptx::smem<float>();")
    for step, acc in zip(published, accumulators, strict=True):
      self.homes[acc.index] = self._tile(step.tile, f"[{self.warps}][{acc.floats}]")
    for acc in accumulators:
      warp = f"ptx::warp() * {acc.floats}" if self.warps > 1 else "0"
      mine = total(self.homes[acc.index], warp)
      mma = acc.form is AccumulatorForm.MMA
      apart = {"i": ROWS * acc.pitch if mma else ROWS, "n": COLUMNS, "h": 8}
      with writer.loops(acc.tiles) as indices:
        value = f"acc{acc.index}{subscript(indices)}"
        places = [times(i, apart[name]) for i, (name, _) in zip(indices, acc.tiles, strict=True)]
        if mma:
          text = f"store_accumulator<{acc.pitch}>({total(mine, *places)}, {value});"
        elif acc.form is AccumulatorForm.UNIFORM:
          text = f"if (ptx::lane() == 0) *({mine}) = {value};"
        else:
          text = f"if (t == 0) *({total(mine, *places, 'g')}) = {value};"
        writer.line(text, acc.index)

  def _add_up(self, acc: Accumulator, call: str, to: str) -> None:
    """``call`` of all places of an accumulator's tile, shared out over the threads."""
    row = self.behind.row(acc)
    rows = row.tile if row else 1
    columns = self.plan.columns[acc.column].tile if acc.column else 1
    count = rows * columns
    head = f"for (int e = ptx::thread(); e < {count}; e += {self.plan.threads})"
    with self.writer.block(head):
      padded = acc.form is AccumulatorForm.MMA and rows > 1
      e = f"e / {columns} * {acc.pitch} + e % {columns}" if padded else "e"
      self.writer.line(f"{to}[{e}] = {call}({self.homes[acc.index]} + {e});", acc.index)
    self.homes[acc.index] = to

  # ---- staged values and outputs

  def _stage(self, step: Total | Stage) -> None:
    index = step.index
    op, writer, span = self.ops[index], self.writer, self.behind.span(index)
    writer.comment(f"%{index} ({op.op}), for all threads.")
    name = self._tile(step.tile)
    if isinstance(step, Total):
      with walk_over(span, writer, "ptx::warp()", self.warps) as at:
        value = self._warp_reduction(index, at)
        writer.line(f"if (ptx::lane() == 0) {name}[{offset_in(span, at)}] = {value};", index)
    else:
      with walk_over(span, writer, "ptx::thread()", self.plan.threads) as at:
        value = self.scalar.value(index, at, {})
        writer.line(f"{name}[{offset_in(span, at)}] = {value};", index)
    self.homes[index] = name

  def _warp_reduction(self, index: int, at: Place) -> str:
    """Lanes stride over the reduced axis; the result is in every lane."""
    op, writer = self.ops[index], self.writer
    tile = self.behind.tile(op.reduced[0])
    rule, name = merge_of(op.op).cuda, axis_variable(tile.axis)
    writer.line(f"float p{index} = {rule}::neutral();")
    with writer.block(f"for (int {name} = ptx::lane(); {name} < {tile.extent}; {name} += 32)"):
      value = self.scalar.value(op.args[0], {**at, tile.axis: name}, {})
      writer.line(f"p{index} = {rule}::combine(p{index}, {value});", index)
    writer.line(f"const float v{index} = warp_reduce<{rule}>(p{index});", index)
    return f"v{index}"

  def _store(self, number: int) -> None:
    space, saves = self.behind.spaces[number]
    writer, count = self.writer, space.per_thread
    writer.comment("Output elements: " + ", ".join(s.tensor for s in saves) + ".")
    unrolled = count <= MOST_UNROLLED
    repeat = writer.loop("q", count) if unrolled else writer.counted("q", count)
    with repeat as q, element_of(space, writer, q) as at:
      elements, vectors = self.early.loaded.get(number, ({}, {}))
      names = {i: self.scalar.view(i).widened(f"{n}[{q}]") for i, n in elements.items()}
      self.scalar.under_way = {i: f"{n}[{q}]" for i, n in vectors.items()}
      for save in saves:
        view = TensorText.of(self.graph.tensor(save.tensor), self.plan.extents)
        value = self.scalar.value(save.arg, at, names)
        line = view.store(self.scalar.index(view.tensor.axes, at), value)
        writer.line(conditional(first_replica(self.plan.grid, view.tensor.axes), line), save.arg)

  def emit(self) -> None:
    """The steps in their order."""
    *_, last = self.behind.steps
    for kind, group in groupby(self.behind.steps, type):
      steps = list(group)
      if kind is Publish:
        self._publish([s for s in steps if isinstance(s, Publish)])
      elif kind is Gather:
        self.writer.comment("Over the warps, in place.")
      elif kind is GatherRanks:
        self.writer.comment("Over the cluster, what every block needs.")
      for step in steps:
        match step:
          case Gather():
            acc = self.by_index[step.index]
            self._add_up(acc, self._over_warps(acc), self.homes[acc.index])
          case GatherRanks():  # to a tile of its own: others still read the parts
            acc = self.by_index[step.index]
            self._add_up(acc, self._over_ranks(acc), self._tile(f"all{acc.index}"))
          case Total() | Stage():
            self._stage(step)
          case Store():
            self._store(step.index)
          case ThreadBarrier():
            if step is last:
              self.writer.comment("Shared memory stays until every block of the cluster has read it.")
            self.writer.line("ptx::cluster_sync();" if step.cluster else "ptx::sync_block();")


class EarlyLoads:
  """Writes what the outputs need of memory, loaded before the loop, and knows what is in which array then."""

  def __init__(self, behind: StreamBehind, scalar: Scalar, writer: Writer) -> None:
    self.behind, self.scalar, self.writer = behind, scalar, writer
    #: Of a walk over outputs: the loads that are elements, and those that are vectors.
    self.loaded: dict[int, tuple[dict[int, str], dict[int, str]]] = {}

  def emit(self, *, ahead: bool) -> None:
    """Operands of the output elements, so that their latency passes during the loop.

    They stay as they lie in memory: a conversion here would wait for them. ``ahead``: the kernels
    before may still write what is made in the graph.
    """
    for number, (loads, vectors) in self.behind.early(self.behind.graph.saved if ahead else set()).items():
      space, _ = self.behind.spaces[number]
      names = {i: f"e{i}_{number}" for i in loads}
      for index, name in names.items():
        view = self.scalar.view(index)
        dims = f"[{space.per_thread}]"
        self.writer.line(f"{view.storage} {name}{dims};  // {view.tensor.name}")
      for load, (_, extent) in vectors.items():
        view = self.scalar.view(load)
        dims = f"[{space.per_thread}][{extent // 8}]"
        self.writer.line(f"Eight<{view.tag}> e{load}_{number}{dims};  // {view.tensor.name}")
      if not names and not vectors:
        continue
      with self.writer.loop("q", space.per_thread) as q, element_of(space, self.writer, q) as at:
        for index, name in names.items():
          view = self.scalar.view(index)
          bits = view.load_bits(self.scalar.index(view.tensor.axes, at))
          self.writer.line(f"{name}[{q}] = {bits};", index)
        for load, (axis, extent) in vectors.items():
          step = f"{axis_variable(axis)}_8"
          self.writer.line("#pragma unroll")
          with self.writer.block(f"for (int {step} = 0; {step} < {extent}; {step} += 8)"):
            value = self.scalar.eight(load, axis, at)
            self.writer.line(f"e{load}_{number}[{q}][{step} / 8] = {value};", load)
      self.loaded[number] = names, {i: f"e{i}_{number}" for i in vectors}
