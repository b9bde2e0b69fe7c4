"""The depth loop of a streaming kernel: fragments from the ring, elementwise, mma, sums.

A stage is consumed by converting what is needed to fp32, combining it elementwise, rounding it to
the 16-bit operand type, and contracting it; sums and maxima over the depth are taken on the side,
each lane over its own elements. Operands loaded as they are go to the mma without conversion.

Beyond the depth the ring holds zeros. A computed value that need not be zero there is set to zero
before it is contracted or summed (``masked``).
"""

from collections.abc import Sequence

from mirage_onnx.codegen.elementwise import KEEPS_ZERO, evaluate, literal
from mirage_onnx.codegen.grid_text import declare_rows
from mirage_onnx.codegen.index_text import subscript
from mirage_onnx.codegen.loads import tag
from mirage_onnx.codegen.packed_operands import apart_operands, statement
from mirage_onnx.codegen.ring import Ring
from mirage_onnx.codegen.source import Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.block_ops import OVER_AXES
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.ugraph import BlockOp, Layout, UGraph
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.scaled_integers import scaled_integers
from mirage_onnx.lower.stream_plan import Accumulator, AccumulatorForm, StreamPlan, operands

#: Which layouts an elementwise op of the loop may combine into its own.
_COMBINES = {
  Layout.B_FRAG: (Layout.B_FRAG, Layout.DEPTH, Layout.ROW, Layout.UNIFORM),
  Layout.A_FRAG: (Layout.A_FRAG, Layout.DEPTH, Layout.COLUMN, Layout.UNIFORM),
  Layout.DEPTH: (Layout.DEPTH, Layout.UNIFORM),
  Layout.ROW: (Layout.ROW, Layout.UNIFORM),
  Layout.COLUMN: (Layout.COLUMN, Layout.UNIFORM),
  Layout.UNIFORM: (Layout.UNIFORM,),
}


class LoopEmitter:
  """Writes a streaming kernel up to the partial results of each warp, in registers.

  ``accumulators`` are those that are used; what no accumulator uses is not computed here.
  """

  def __init__(
    self, graph: UGraph, plan: StreamPlan, accumulators: Sequence[Accumulator],
    writer: Writer, *, pdl: bool,
  ) -> None:  # fmt: skip
    self.pdl, self.graph = pdl, graph
    self.plan, self.writer, self.accumulators = plan, writer, accumulators
    self.ops = plan.kernel.ops
    self.scaled = scaled_integers(graph, self.ops)
    self.by_tile = False
    used: set[int] = set()
    for acc in accumulators:
      used |= self._sources(acc.source)
    self.used = sorted(used)
    self.apart = apart_operands(plan.kernel, self.scaled, self.used)
    self.masked = self._masked()
    for index in self.used:
      self._check(self.ops[index])
    loads = [i for i in self.used if self.ops[i].op == "load" and self._deep(i)]
    self.ring = Ring(graph, plan, loads, writer)

  def _sources(self, index: int) -> set[int]:
    found = {index}
    for argument in self._leaves(index):
      found |= self._sources(argument)
    return found

  def _leaves(self, index: int) -> tuple[int, ...]:
    """What a value is made of at once."""
    made = self.scaled.get(index)
    return made.loads if made else self.ops[index].args

  def _made_apart(self, index: int) -> bool:
    """Whether a value has a rule of its own."""
    return False

  def _check(self, op: BlockOp) -> None:
    known = op.op == "load" or op.op in OVER_AXES or is_elementwise(op.op)
    if not known and constant(op, self.plan.extents) is None:
      raise RejectionError("EMIT_UNSUPPORTED", f"no rule for {op.op!r} in the loop")
    if any(self.ops[a].op in OVER_AXES for a in op.args):
      raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} in the loop of a value that is not accumulated yet")
    deep = op.layout in (Layout.A_FRAG, Layout.B_FRAG, Layout.DEPTH)
    if op.op not in OVER_AXES and deep != (self.plan.depth in op.axes):
      raise RejectionError("LAYOUT", f"{op.op} with axes {op.axes} of layout {op.layout}")

  # ---- what the values are

  def _deep(self, index: int) -> bool:
    return self.plan.depth in self.ops[index].axes

  def _floats_needed(self, index: int) -> bool:
    """Some use takes fp32 elements, not the packed 16-bit operand."""
    uses = [self.ops[i] for i in self.used if index in self.ops[i].args]
    return any(op.op != "matmul" for op in uses)

  def _eight(self, index: int, stage: str, part: str, indices: Sequence[str]) -> str:
    """The ``Eight`` that a tile of a 16-bit value of the loop is."""
    if self.ops[index].op != "load":
      return f"p{index}{subscript(indices)}"
    stage = self.ring.at_stage(index, stage)
    return f"x{index}[{stage}]{subscript([*indices, *([part] if self.plan.parts > 1 else [])])}"

  def _operand_eight(self, index: int, stage: str, part: str, indices: Sequence[str]) -> str:
    """The same as an operand of mma, of which both may be apart (``packed_operands.py``)."""
    eight = self._eight(index, stage, part, indices)
    return f"apart({eight})" if index in self.apart and self.ops[index].op == "load" else eight

  def _zero_beyond(self, index: int) -> bool:
    """Elements beyond the depth are zero without a mask, whatever the values are."""
    op = self.ops[index]
    number = constant(op, self.plan.extents)
    if op.op == "load" or number is not None:
      return number == 0 if number is not None else self._deep(index)
    zero = [self._zero_beyond(a) for a in op.args]
    if op.op in ("mul", "div"):
      finite = [constant(self.ops[a], self.plan.extents) is not None for a in op.args]
      if op.op == "div":
        return zero[0] and finite[1] and not zero[1]
      return any(zero) and all(z or f for z, f in zip(zero, finite, strict=True))
    return op.op in KEEPS_ZERO and all(zero)

  def _masked(self) -> set[int]:
    """Values that are set to zero beyond the depth."""
    if self.plan.even:
      return set()
    uses = [self.ops[i] for i in self.used if self.ops[i].op in ("matmul", "sum")]
    return {a for op in uses for a in op.args if not self._zero_beyond(a)}

  def _operand(self, index: int, result: BlockOp, indices: Sequence[str], j: str) -> str:
    """Element ``j`` of a value as seen from a tile of ``result``."""
    op = self.ops[index]
    number = constant(op, self.plan.extents)
    if number is not None:
      return literal(number)
    if op.layout not in _COMBINES[result.layout]:
      raise RejectionError("LAYOUT", f"{result.op} of layout {result.layout} takes no value of {op.layout}")
    if op.layout in (Layout.A_FRAG, Layout.COLUMN) and (
      self.plan.column_of(op) != self.plan.column_of(result)
    ):
      raise RejectionError("LAYOUT", f"{result.op} combines two column axes")
    tiles = self.plan.tiles(op)
    own = ["0" if count == 1 else at for at, (_, count) in zip(indices, tiles, strict=False)]
    element = f"[{j}]" if self._deep(index) and not self._is_shared(index) else ""
    return f"v{index}{subscript(own)}{element}"

  def _is_shared(self, index: int) -> bool:
    """A load of one element for all eight of a lane."""
    packed = self.ring.packed(index) if self.ops[index].op == "load" else None
    return packed is not None and packed.repeat > 1

  def _declare(self, name: str, index: int, type_name: str, inner: str = "") -> None:
    dims = subscript([str(count) for _, count in self.plan.tiles(self.ops[index])])
    self.writer.line(f"{type_name} {name}{index}{dims}{inner};")

  # ---- before the loop

  def _invariants(self) -> None:
    """Values without depth, computed once."""
    writer, plan = self.writer, self.plan
    for index in self.used:
      op = self.ops[index]
      if self._deep(index) or constant(op, plan.extents) is not None:
        continue
      if op.op != "load" and not is_elementwise(op.op):
        continue
      self._declare("v", index, "float")
      with writer.loops(plan.tiles(op)) as indices:
        if op.op == "load":
          view = self.ring.view(index)
          value = view.load(self.ring.index(op, view, indices))
        else:
          args = [self._operand(a, op, indices, "0") for a in op.args]
          value = evaluate(self.ops, op, args, plan.extents)
        writer.line(f"v{index}{subscript(indices)} = {value};", index)

  def _depth_range(self) -> None:
    plan, writer = self.plan, self.writer
    warps, stride, lane = plan.params.warps, plan.step * plan.params.warps, plan.lane
    writer.comment(
      f"Depth {plan.depth}: {plan.rounds} rounds of {plan.stages} stages; in a stage each of "
      f"the {warps} warps takes {plan.step}\nelements, of which lane (g, t) has {lane}t .. "
      f"{lane}t+{lane - 1} of row g and of columns g and g + 8."
    )
    writer.line("const int g = ptx::lane() / 4;")
    writer.line("const int t = ptx::lane() % 4;")
    writer.line(f"constexpr int kStride = {stride};")
    writer.line(f"constexpr int kRound = {plan.stages} * kStride;")
    begin = ""
    if plan.grid.cluster > 1:
      size = plan.step * plan.steps
      writer.line(f"const int k_begin = static_cast<int>(ptx::cluster_rank()) * {size};")
      begin = "k_begin + "
    if not plan.even:
      end = f"at_most({begin}{plan.step * plan.steps}, {plan.depth_extent})"
      writer.line(f"const int k_end = {end if begin else plan.depth_extent};")
    writer.line(f"int k = {begin}ptx::warp() * {plan.step} + t * {lane};")

  def _declare_accumulator(self, acc: Accumulator) -> None:
    dims = subscript([str(count) for _, count in acc.tiles])
    dims += "[4]" if acc.form is AccumulatorForm.MMA else ""
    name = f"acc{acc.index}"
    if acc.rule == "Sum":
      self.writer.line(f"float {name}{dims} = {'{}' if dims else '0.0f'};")
      return
    self.writer.line(f"float {name}{dims};")
    with self.writer.loops(acc.tiles) as indices:
      self.writer.line(f"{name}{subscript(indices)} = Max::neutral();", acc.index)

  # ---- in the loop

  def _live(self, j: str) -> str:
    """Whether element ``j`` of the lane's eight exists."""
    return "left > 0" if self.plan.depth_extent % 8 == 0 else f"{j} < left"

  def _unpack(self, stage: str, part: str) -> None:
    for index in self.ring.loads:
      if self._floats_needed(index):
        op, packed = self.ops[index], self.ring.packed(index)
        self._declare("v", index, "float", "" if self._is_shared(index) else "[8]")
        with self.writer.loops(self.plan.tiles(op)) as indices:
          at = subscript(indices)
          if packed:
            self.writer.line(packed.floats(f"x{index}[{stage}]{at}", part, f"v{index}{at}"), index)
            continue
          call = f"unpack8<{tag(op.dtype)}>"
          self.writer.line(f"{call}({self._eight(index, stage, part, indices)}, v{index}{at});", index)

  def _compute(self, stage: str, part: str) -> None:
    """Elementwise ops on fragments: a run over the same tiles shares a loop nest."""
    run: list[int] = []
    for index in self.used:
      op = self.ops[index]
      if not (is_elementwise(op.op) and self._deep(index)) or self._made_apart(index):
        continue
      if index in self.scaled:
        self._scale(index, stage, part)
        continue
      same = run and self.plan.tiles(self.ops[run[0]]) == self.plan.tiles(op)
      if not same or any(self.ops[a].dtype.is_half for a in op.args if a in run):
        self._run(run)
        run = []
      run.append(index)
    self._run(run)

  def _run(self, run: Sequence[int]) -> None:
    if not run:
      return
    writer, plan = self.writer, self.plan
    halves = [i for i in run if self.ops[i].dtype.is_half]
    for index in run:
      if index in halves:
        self._declare("p", index, f"Eight<{tag(self.ops[index].dtype)}>")
      if index not in halves or self._floats_needed(index):
        self._declare("v", index, "float", "[8]")
    with writer.loops(plan.tiles(self.ops[run[0]])) as indices, writer.scope(bool(halves)):
      at = subscript(indices)
      for index in halves:
        writer.line(f"float f{index}[8];")
      with writer.loop("j", 8) as j:
        for index in run:
          op = self.ops[index]
          args = [self._operand(a, op, indices, j) for a in op.args]
          value = evaluate(self.ops, op, args, plan.extents, narrow=False)
          if index in self.masked:
            value = f"{self._live(j)} ? {value} : 0.0f"
          to = f"f{index}" if index in halves else f"v{index}{at}"
          writer.line(f"{to}[{j}] = {value};", index)
      for index in halves:
        name = tag(self.ops[index].dtype)
        pack = "pack8_apart" if index in self.apart else "pack8"
        writer.line(f"p{index}{at} = {pack}<{name}>(f{index});", index)
        if self._floats_needed(index):
          writer.line(f"unpack8<{name}>(p{index}{at}, v{index}{at});", index)

  def _scale(self, index: int, stage: str, part: str) -> None:
    """Packed integers times their scales, eight at once."""
    tiles, name = self.plan.tiles(self.ops[index]), tag(self.ops[index].dtype)
    self._declare("p", index, f"Eight<{name}>")
    if self._floats_needed(index):
      self._declare("v", index, "float", "[8]")
    with self.writer.loops(tiles) as indices:
      at = subscript(indices)
      self.writer.line(self._widened(index, f"p{index}{at}", stage, part, indices), index)
      if self._floats_needed(index):
        self.writer.line(f"unpack8<{name}>(p{index}{at}, v{index}{at});", index)

  def _widened(self, index: int, to: str, stage: str, part: str, indices: Sequence[str]) -> str:
    """The statement that makes eight of them at ``to``."""
    made, texts = self.scaled[index], {}
    for i in made.loads:
      packed = self.ring.packed(i)
      assert packed is not None
      slot = f"x{i}[{stage}]{subscript(indices)}"
      texts[i] = packed.element(slot, part) if packed.repeat > 1 else slot
    return statement(made, self.ops, to, texts, part, apart=index in self.apart)

  def _accumulate(self, stage: str, part: str) -> None:
    writer, plan = self.writer, self.plan
    for acc in self.accumulators:
      source = self.ops[acc.source]
      if acc.form is AccumulatorForm.MMA and self.by_tile:
        continue
      if acc.form is AccumulatorForm.MMA:
        a, b = operands(plan.kernel, source)
        with writer.loops(acc.tiles) as (i, n):
          low, high = (self._operand_eight(a, stage, part, (n, h)) for h in "01")
          rows = self._operand_eight(b, stage, part, (i,))
          to = f"acc{acc.index}[{i}][{n}]"
          writer.line(f"mma_step({to}, {low}, {high}, {rows});", acc.source)
        continue
      value = self.ops[source.args[0]]
      with writer.loops((*acc.tiles, ("j", 8))) as (*indices, j):
        element = self._operand(source.args[0], value, indices, j)
        slot = f"acc{acc.index}{subscript(indices)}"
        update = f"{slot} = {acc.rule}::combine({slot}, {element});"
        guard = acc.rule == "Max" and not plan.even
        writer.line(f"if ({self._live(j)}) {update}" if guard else update, acc.source)

  def _uses_left(self) -> bool:
    return not self.plan.even and bool(self.masked or any(a.rule == "Max" for a in self.accumulators))

  def _rounds(self) -> None:
    plan, writer = self.plan, self.writer
    rounds = str(plan.rounds)
    if plan.rounds == 1:
      rounds = "rounds"
      writer.comment(
        "One round. If the compiler knew it, it would sink the loads above to their uses, "
        "and a warp\nwould have one step in flight instead of all of them."
      )
      pointer = self.ring.view(self.ring.loads[0]).pointer
      writer.line(f"const int rounds = {pointer} == nullptr ? 2 : 1;")
    writer.line("#pragma unroll 1")
    with writer.block(f"for (int round = 0; round < {rounds}; ++round, k += kRound)"):
      if plan.even:
        writer.line(f"const bool more = round + 1 < {rounds};")
      with writer.loop("s", plan.stages) as s, writer.scope(plan.stages == 1):
        if self._uses_left():
          at = "k" if s == "0" else f"(k + {s} * kStride)"
          writer.line(f"const int left = k_end - {at};")
        self._stage(s)

  def _stage(self, stage: str) -> None:
    """What is done with one step of the ring, which is then loaded again."""
    with self.writer.loop("u", self.plan.parts) as u:
      self._unpack(stage, u)
      self._compute(stage, u)
      self._accumulate(stage, u)
    self.ring.fetch(stage, self.ring.loads, ahead=True)

  def begin(self) -> None:
    """Everything up to the first round; the ring is being filled when it ends.

    Weights are on their way before the kernel waits for those that write what it reads.
    """
    self._depth_range()
    ring, plan = self.ring, self.plan
    picks = any(w.picks for t in self.graph.tensors_of(plan.kernel) for w in t.windows)
    if picks:  # pointers lead to rows that those before may name
      if self.pdl:
        self.writer.wait()
      declare_rows(plan.grid, self.writer, self.graph, plan.kernel, plan.extents)
    ring.pointers()
    ring.declare()
    waits = self.pdl and not picks
    weights = [i for i in ring.loads if waits and not ring.view(i).coherent]
    others = [i for i in ring.loads if i not in weights]
    for loads in (weights, others):
      if waits and loads is others:
        self.writer.wait()
      near = [i for i in loads if ring.stages(i) < self.plan.stages]
      if deep := [i for i in loads if i not in near]:
        with self.writer.loop("s", self.plan.stages) as s:
          ring.fetch(s, deep, ahead=False)
      ring.fetch("0", near, ahead=False)
    self._invariants()

  def run(self) -> None:
    """The rounds, then sums over the quad, whose lanes hold different depths of one row."""
    for acc in self.accumulators:
      self._declare_accumulator(acc)
    self._rounds()
    for acc in self.accumulators:
      if acc.form is not AccumulatorForm.MMA:
        with self.writer.loops(acc.tiles) as indices:
          slot = f"acc{acc.index}{subscript(indices)}"
          self.writer.line(f"{slot} = quad_reduce<{acc.rule}>({slot});", acc.index)
