"""After the loop of a streaming kernel: partial results meet, then the outputs are computed.

1. Each warp writes its accumulators to shared memory (fp32).
2. If somebody needs whole tiles, or there is a cluster, the warps' parts are added up there; with a
   cluster, blocks then read each other's tiles over DSMEM. Otherwise step 4 adds the parts itself.
3. Values that need other threads' elements (operands of a POST matmul, POST reductions) are staged
   in shared memory, in order, with a barrier after each.
4. Every output element is computed by one thread, from a formula that ``Scalar`` writes inline.

The ranks of a cluster share out the output elements; steps 1 to 3 are done by each.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirage_onnx.codegen.early_loads import EarlyLoads
from mirage_onnx.codegen.grid_text import replicas
from mirage_onnx.codegen.index_text import subscript, times, total
from mirage_onnx.codegen.loads import TensorText
from mirage_onnx.codegen.scalar import Place, Scalar
from mirage_onnx.codegen.source import Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import DType, UGraph
from mirage_onnx.ir.block_ops import REDUCTIONS, merge_of
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.stream_behind import MOST_UNROLLED, Placement
from mirage_onnx.lower.stream_plan import COLUMNS, ROWS, Accumulator, AccumulatorForm, StreamPlan

#: Shared memory is handed out in pieces of 16 bytes.
_PIECE = 4


class Epilogue:
  """Writes everything after the loop; ``early`` writes what is loaded before it.

  ``floats``: the fp32 values of shared memory handed out so far.
  """

  def __init__(
    self, graph: UGraph, plan: StreamPlan, accumulators: Sequence[Accumulator], writer: Writer
  ) -> None:
    self.graph, self.plan, self.accumulators, self.writer = graph, plan, accumulators, writer
    self.ops, self.cluster, self.warps = plan.kernel.ops, plan.grid.cluster, plan.params.warps
    self.floats = 0
    self.placement = Placement(graph, plan, accumulators)
    self.homes: dict[int, str] = {}
    self.scalar = Scalar(graph, plan, writer, self._accumulator, self._staged_element)
    self.early = EarlyLoads(graph, self.placement, self.scalar, writer)

  def _reserve(self, name: str, floats: int, comment: str = "") -> str:
    """Declares ``name``, a pointer to floats of shared memory of its own."""
    note = f"  // {comment}" if comment else ""
    self.writer.line(f"float* {name} = {total('smem', str(self.floats))};{note}")
    self.floats += -(-floats // _PIECE) * _PIECE
    return name

  # ---- access

  def _accumulator(self, acc: Accumulator, at: Place) -> str:
    """The finished value of an accumulator at a place of the tile."""
    row = self.placement.row(acc)
    i = at.get(row.axis, "0") if row else "0"
    column = at.get(acc.column, "0") if acc.column else "0"
    place = total(times(i, acc.pitch) if acc.form is AccumulatorForm.MMA else i, column)
    name = self.homes[acc.index]
    if not self.placement.reduced:
      kind = f"{acc.rule}, {self.warps}, {acc.floats}"
      return f"parts_reduce<{kind}>({total(name, place)})"
    if self.cluster == 1 or acc in self.placement.everywhere:
      return f"{name}[{place}]"
    return f"cluster_reduce<{acc.rule}, {self.cluster}>({total(name, place)})"

  def _staged_element(self, index: int, at: Place) -> str | None:
    """A staged value at a place of the tile; None if it is not there (yet)."""
    if index not in self.placement.staged or index not in self.homes:
      return None
    return f"{self.homes[index]}[{self.placement.span(index).offset(at)}]"

  # ---- steps 1 and 2

  def _publish(self) -> None:
    """Accumulators of each warp to shared memory."""
    writer = self.writer
    writer.comment("Each warp's part of the accumulators, to shared memory.")
    writer.line("float* smem = ptx::smem<float>();")
    for acc in self.accumulators:
      size = self.warps * acc.floats
      shape = f"[{self.warps}][{acc.floats}]"
      self.homes[acc.index] = self._reserve(f"part{acc.index}", size, shape)
    for acc in self.accumulators:
      warp = f"ptx::warp() * {acc.floats}" if self.warps > 1 else "0"
      mine = total(self.homes[acc.index], warp)
      with writer.loops(acc.tiles) as indices:
        value = f"acc{acc.index}{subscript(indices)}"
        match acc.form:
          case AccumulatorForm.MMA:
            to = total(mine, times(indices[0], ROWS * acc.pitch), times(indices[1], COLUMNS))
            writer.line(f"store_accumulator<{acc.pitch}>({to}, {value});", acc.index)
          case AccumulatorForm.ROW:
            to = total(mine, times(indices[0], ROWS), "g")
            writer.line(f"if (t == 0) *({to}) = {value};", acc.index)
          case AccumulatorForm.COLUMN:
            to = total(mine, times(indices[0], COLUMNS), times(indices[1], 8), "g")
            writer.line(f"if (t == 0) *({to}) = {value};", acc.index)
          case AccumulatorForm.UNIFORM:
            writer.line(f"if (ptx::lane() == 0) *({mine}) = {value};", acc.index)
    writer.line("ptx::sync_block();")

  @contextmanager
  def _places(self, acc: Accumulator) -> Iterator[str]:
    """A loop over the places of an accumulator's tile, shared out over the threads."""
    row = self.placement.row(acc)
    rows = row.tile if row else 1
    columns = self.plan.columns[acc.column].tile if acc.column else 1
    count = rows * columns
    head = f"for (int e = ptx::thread(); e < {count}; e += {self.plan.threads})"
    with self.writer.block(head):
      padded = acc.form is AccumulatorForm.MMA and rows > 1
      yield f"e / {columns} * {acc.pitch} + e % {columns}" if padded else "e"

  def _add_up(self) -> None:
    """Sums over the warps, and over the cluster where they are wanted everywhere."""
    writer = self.writer
    if self.warps > 1:
      writer.comment("Over the warps, in place.")
      for acc in self.accumulators:
        name = self.homes[acc.index]
        call = f"parts_reduce<{acc.rule}, {self.warps}, {acc.floats}>"
        with self._places(acc) as e:
          writer.line(f"{name}[{e}] = {call}({name} + {e});", acc.index)
    if self.cluster == 1:
      if self.warps > 1:
        writer.line("ptx::sync_block();")
      return
    writer.line("ptx::cluster_sync();")
    if self.placement.everywhere:
      writer.comment("Over the cluster, what every block needs.")
      for acc in self.placement.everywhere:
        part = self.homes[acc.index]
        name = self._reserve(f"all{acc.index}", acc.floats)
        with self._places(acc) as e:
          call = f"cluster_reduce<{acc.rule}, {self.cluster}>"
          writer.line(f"{name}[{e}] = {call}({part} + {e});", acc.index)
        self.homes[acc.index] = name
      writer.line("ptx::sync_block();")

  # ---- steps 3 and 4

  def _stage(self, index: int) -> None:
    op, writer, span = self.ops[index], self.writer, self.placement.span(index)
    writer.comment(f"%{index} ({op.op}), for all threads.")
    name = self._reserve(f"tile{index}", span.elements)
    if op.op in REDUCTIONS:
      with span.walk(writer, "ptx::warp()", self.warps) as at:
        value = self._warp_reduction(index, at)
        writer.line(f"if (ptx::lane() == 0) {name}[{span.offset(at)}] = {value};", index)
    else:
      with span.walk(writer, "ptx::thread()", self.plan.threads) as at:
        value = self.scalar.value(index, at, {})
        writer.line(f"{name}[{span.offset(at)}] = {value};", index)
    self.homes[index] = name
    writer.line("ptx::sync_block();")

  def _warp_reduction(self, index: int, at: Place) -> str:
    """Lanes stride over the reduced axis; the result is in every lane."""
    op, writer = self.ops[index], self.writer
    if len(op.reduced) != 1 or op.dtype is not DType.F32:
      raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} over {op.reduced} to {op.dtype}")
    tile = self.placement.tile(op.reduced[0])
    if tile.split or tile.axis == self.plan.depth:
      raise RejectionError("LAYOUT", f"{op.op} over {tile.axis}, which is not in the block")
    rule, name = merge_of(op.op).cuda, axis_variable(tile.axis)
    writer.line(f"float p{index} = {rule}::neutral();")
    with writer.block(f"for (int {name} = ptx::lane(); {name} < {tile.extent}; {name} += 32)"):
      value = self.scalar.value(op.args[0], {**at, tile.axis: name}, {})
      writer.line(f"p{index} = {rule}::combine(p{index}, {value});", index)
    writer.line(f"const float v{index} = warp_reduce<{rule}>(p{index});", index)
    return f"v{index}"

  def _store(self, number: int) -> None:
    space, saves = self.placement.spaces[number]
    writer, count = self.writer, space.per_thread
    writer.comment("Output elements: " + ", ".join(s.tensor for s in saves) + ".")
    unrolled = count <= MOST_UNROLLED
    repeat = writer.loop("q", count) if unrolled else writer.counted("q", count)
    with repeat as q, space.element(writer, q) as at:
      elements, vectors = self.early.loaded.get(number, ({}, {}))
      names = {i: self.scalar.view(i).widened(f"{n}[{q}]") for i, n in elements.items()}
      self.scalar.under_way = {i: f"{n}[{q}]" for i, n in vectors.items()}
      for save in saves:
        view = TensorText.of(self.graph.tensor(save.tensor), self.plan.extents)
        value = self.scalar.value(save.arg, at, names)
        line = view.store(self.scalar.index(view.tensor.axes, at), value)
        once = replicas(self.plan.grid, view.tensor.axes)
        writer.line(f"if ({once}) {line}" if once else line, save.arg)

  def emit(self) -> None:
    self._publish()
    if self.placement.reduced:
      self._add_up()
    for index in self.placement.staged:
      self._stage(index)
    for number in range(len(self.placement.spaces)):
      self._store(number)
    if self.cluster > 1:
      self.writer.comment("Shared memory stays until every block of the cluster has read it.")
      self.writer.line("ptx::cluster_sync();")
