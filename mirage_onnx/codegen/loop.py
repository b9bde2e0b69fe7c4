"""The depth loop of a streaming kernel as text (``lower/stream_loop.py`` says what it does).

Where weights are packed (``by_tile``) a stage goes by column tiles: operands of rows are ready for all
depths of the stage first, then each tile of weights is widened and contracted, and refilled at once.
"""

from collections.abc import Sequence

from mirage_onnx.codegen.elementwise import evaluate, literal
from mirage_onnx.codegen.grid_text import declare_rows
from mirage_onnx.codegen.index_text import subscript
from mirage_onnx.codegen.loads import tag
from mirage_onnx.codegen.packed_operands import statement
from mirage_onnx.codegen.ring import Ring
from mirage_onnx.codegen.source import Writer, conditional
from mirage_onnx.ir.block_ops import MAX, SUM
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.stream_loop import StreamLoop
from mirage_onnx.lower.stream_plan import Accumulator, AccumulatorForm, operands


class LoopEmitter:
  """Writes a streaming kernel up to the partial results of each warp, in registers."""

  def __init__(self, loop: StreamLoop, writer: Writer, *, pdl: bool) -> None:
    self.pdl, self.graph, self.steps = pdl, loop.graph, loop
    self.plan, self.writer, self.accumulators = loop.plan, writer, loop.accumulators
    self.ops = loop.ops
    self.by_index = {a.index: a for a in loop.accumulators}
    self.ring = Ring(loop, writer)

  # ---- what the values are

  def _eight(self, index: int, stage: str, part: str, indices: Sequence[str]) -> str:
    """The ``Eight`` that a tile of a 16-bit value of the loop is."""
    if self.ops[index].op != "load":
      return f"p{index}{subscript(indices)}"
    stage = self.ring.at_stage(index, stage)
    return f"x{index}[{stage}]{subscript([*indices, *([part] if self.plan.parts > 1 else [])])}"

  def _operand_eight(self, index: int, stage: str, part: str, indices: Sequence[str]) -> str:
    """The same as an operand of mma, of which both may be apart (``lower/packed_operand.py``)."""
    eight = self._eight(index, stage, part, indices)
    return f"apart({eight})" if index in self.steps.apart and self.ops[index].op == "load" else eight

  def _operand(self, index: int, indices: Sequence[str], j: str) -> str:
    """Element ``j`` of a value as seen from a tile."""
    op = self.ops[index]
    number = constant(op, self.plan.extents)
    if number is not None:
      return literal(number)
    tiles = self.plan.tiles(op)
    own = ["0" if count == 1 else at for at, (_, count) in zip(indices, tiles, strict=False)]
    element = f"[{j}]" if self.steps.deep(index) and not self.steps.is_shared(index) else ""
    return f"v{index}{subscript(own)}{element}"

  def _declare(self, name: str, index: int, type_name: str, inner: str = "") -> None:
    dims = subscript([str(count) for _, count in self.plan.tiles(self.ops[index])])
    self.writer.line(f"{type_name} {name}{index}{dims}{inner};")

  # ---- before the loop

  def _invariant(self, step: do.ThreadStep) -> None:
    """A value without depth, computed once."""
    writer, plan, index = self.writer, self.plan, step.index
    op = self.ops[index]
    self._declare("v", index, "float")
    with writer.loops(plan.tiles(op)) as indices:
      if isinstance(step, do.Fetch):
        view = self.ring.view(index)
        value = view.load(self.ring.index(op, view, indices))
      else:
        args = [self._operand(a, indices, "0") for a in op.args]
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
    if self.plan.is_wide(acc):
      tiles = subscript([str(count) for _, count in acc.tiles])
      self.writer.line(f"float lane{acc.index}{tiles}[{self.plan.rows_of(acc)}][2] = {{}};")
    if acc.merge is SUM:
      self.writer.line(f"float {name}{dims} = {'{}' if dims else '0.0f'};")
      return
    self.writer.line(f"float {name}{dims};")
    with self.writer.loops(acc.tiles) as indices:
      self.writer.line(f"{name}{subscript(indices)} = Max::neutral();", acc.index)

  # ---- in the loop

  def _live(self, j: str) -> str:
    """Whether element ``j`` of the lane's eight exists."""
    return "left > 0" if self.plan.depth_extent % 8 == 0 else f"{j} < left"

  def _step(self, step: do.ThreadStep, stage: str, part: str) -> None:
    """One step of a part of the depth."""
    match step:
      case do.Unpack():
        self._unpack(step.index, stage, part)
      case do.ThreadRun():
        self._run(step.ops)
      case do.Widen():
        self._widen(step.index, stage, part)
      case do.PairProduct():
        self._pair_product(step, stage, part)
      case do.Contract():
        self._contract(step, stage, part)
      case do.Update():
        self._update(self.by_index[step.index])
      case do.Pack():
        with self.writer.loops(self.plan.tiles(self.ops[step.index])) as indices:
          operand = self._operand_eight(step.index, stage, part, indices)
          self.writer.line(f"r{step.index}{subscript([part, *indices])} = {operand};", step.index)

  def _unpack(self, index: int, stage: str, part: str) -> None:
    op, packed = self.ops[index], self.ring.packed(index)
    self._declare("v", index, "float", "" if self.steps.is_shared(index) else "[8]")
    with self.writer.loops(self.plan.tiles(op)) as indices:
      at = subscript(indices)
      if packed:
        self.writer.line(packed.floats(f"x{index}[{stage}]{at}", part, f"v{index}{at}"), index)
        return
      call = f"unpack8<{tag(op.dtype)}>"
      self.writer.line(f"{call}({self._eight(index, stage, part, indices)}, v{index}{at});", index)

  def _run(self, run: Sequence[int]) -> None:
    """Elementwise ops over the same tiles in one loop nest."""
    writer, plan, steps = self.writer, self.plan, self.steps
    halves = [i for i in run if self.ops[i].dtype.is_half]
    for index in run:
      if index in halves:
        self._declare_packed(index)
      else:
        self._declare("v", index, "float", "[8]")
    with writer.loops(plan.tiles(self.ops[run[0]])) as indices, writer.scope(bool(halves)):
      at = subscript(indices)
      for index in halves:
        writer.line(f"float f{index}[8];")
      with writer.loop("j", 8) as j:
        for index in run:
          op = self.ops[index]
          args = [self._operand(a, indices, j) for a in op.args]
          value = evaluate(self.ops, op, args, plan.extents, narrow=False)
          if index in steps.masked:
            value = f"{self._live(j)} ? {value} : 0.0f"
          to = f"f{index}" if index in halves else f"v{index}{at}"
          writer.line(f"{to}[{j}] = {value};", index)
      for index in halves:
        pack = "pack8_apart" if index in steps.apart else "pack8"
        self._packed(index, at, f"p{index}{at} = {pack}<{tag(self.ops[index].dtype)}>(f{index});")

  def _widen(self, index: int, stage: str, part: str) -> None:
    """Packed integers times their scales, eight at once."""
    self._declare_packed(index)
    with self.writer.loops(self.plan.tiles(self.ops[index])) as indices:
      at = subscript(indices)
      self._packed(index, at, self._widened(index, f"p{index}{at}", stage, part, indices))

  def _declare_packed(self, index: int) -> None:
    """A value of 16 bits, and its fp32 elements if somebody takes those."""
    self._declare("p", index, f"Eight<{tag(self.ops[index].dtype)}>")
    if self.steps.floats_needed(index):
      self._declare("v", index, "float", "[8]")

  def _packed(self, index: int, at: str, statement: str) -> None:
    """Makes an eight of such a value."""
    self.writer.line(statement, index)
    if self.steps.floats_needed(index):
      self.writer.line(f"unpack8<{tag(self.ops[index].dtype)}>(p{index}{at}, v{index}{at});", index)

  def _widened(self, index: int, to: str, stage: str, part: str, indices: Sequence[str]) -> str:
    """The statement that makes eight of them at ``to``."""
    made, texts = self.steps.scaled[index], {}
    for i in made.loads:
      packed = self.ring.packed(i)
      assert packed is not None
      slot = f"x{i}[{stage}]{subscript(indices)}"
      texts[i] = packed.element(slot, part) if packed.repeat > 1 else slot
    apart, behind = index in self.steps.apart, index in self.steps.behind
    return statement(made, self.ops, to, texts, part, apart=apart, behind=behind)

  def _pair_product(self, step: do.PairProduct, stage: str, part: str) -> None:
    index = step.index
    self._declare("p", index, f"Eight<{tag(self.ops[index].dtype)}>")
    with self.writer.loops(self.plan.tiles(self.ops[index])) as indices:
      # A load has the first of the indices of a value that it is combined into.
      own = [tuple(indices[: len(self.plan.tiles(self.ops[i]))]) for i in step.args]
      x, y = (self._eight(i, stage, part, at) for i, at in zip(step.args, own, strict=True))
      made = f"product8({x}, {y})"
      made = f"apart({made})" if index in self.steps.apart else made
      self.writer.line(f"p{index}{subscript(indices)} = {made};", index)

  def _contract(self, step: do.Contract, stage: str, part: str) -> None:
    acc = self.by_index[step.into]
    a, b = operands(self.plan.kernel, self.ops[step.index])
    if self.plan.is_wide(acc):
      self._multiply(acc, step.index, a, b)
      return
    with self.writer.loops(acc.tiles) as (i, n):
      low, high = (self._operand_eight(a, stage, part, (n, h)) for h in "01")
      rows = self._operand_eight(b, stage, part, (i,))
      self.writer.line(f"mma_step(acc{acc.index}[{i}][{n}], {low}, {high}, {rows});", step.index)

  def _multiply(self, acc: Accumulator, index: int, a: int, b: int) -> None:
    """The same in fp32: a row of the tile after the other goes around the lanes."""
    writer, rows = self.writer, self.plan.rows_of(acc)
    with writer.loop("i", acc.row_tiles) as i, writer.loop("r", rows) as r, writer.block():
      row = self._operand(b, (i,), "").removesuffix("[]")
      if rows > 1:
        writer.line("float row[8];")
        writer.line(f"row_of({row}, {r}, row);", index)
        row = "row"
      with writer.loop("n", acc.column_tiles) as n:
        low, high = (self._operand(a, (n, h), "").removesuffix("[]") for h in "01")
        writer.line(f"multiply8(lane{acc.index}[{i}][{n}][{r}], {low}, {high}, {row});", index)

  def _update(self, acc: Accumulator) -> None:
    (source,) = self.ops[acc.source].args
    with self.writer.loops((*acc.tiles, ("j", 8))) as (*indices, j):
      element = self._operand(source, indices, j)
      slot = f"acc{acc.index}{subscript(indices)}"
      update = f"{slot} = {acc.merge.cuda}::combine({slot}, {element});"
      guards = [self._live(j)] if acc.merge is MAX and not self.plan.even else []
      self.writer.line(conditional(guards, update), acc.source)

  def _column(self, column: str, stage: str) -> None:
    """The steps of every tile of a column axis."""
    plan, writer = self.plan, self.writer
    *steps, refill = self.steps.by_column[column]
    weighed = [s for s in steps if isinstance(s, do.Weigh)]
    with writer.loop("n", plan.column_tiles(column)) as n, writer.scope(plan.column_tiles(column) == 1):
      for weigh in weighed:
        index = weigh.index
        writer.line(f"float sum{index}[{self.by_index[index].row_tiles}][4] = {{}};", index)
      with writer.loop("u", plan.parts) as u:
        for step in steps:
          if isinstance(step, do.Widen):
            a = step.index
            writer.line(f"Eight<{tag(self.ops[a].dtype)}> p{a}[2];")
            with writer.loop("h", 2) as h:
              writer.line(self._widened(a, f"p{a}[{h}]", stage, u, (n, h)), a)
          elif isinstance(step, do.Contract):
            acc = self.by_index[step.into]
            a, b = operands(plan.kernel, self.ops[step.index])
            with writer.loop("i", acc.row_tiles) as i:
              to = f"sum{acc.index}[{i}]" if a in self.steps.behind else f"acc{acc.index}[{i}][{n}]"
              writer.line(f"mma_step({to}, p{a}[0], p{a}[1], r{b}[{u}][{i}]);", step.index)
      for weigh in weighed:
        self._weigh(weigh, stage, n)
      assert isinstance(refill, do.Refill)
      self.ring.fetch(stage, refill.loads, ahead=True, tile=n)

  def _weigh(self, step: do.Weigh, stage: str, n: str) -> None:
    """Sums over a step of the depth, times the scales of their columns, to the accumulators of a tile."""
    acc, name = self.by_index[step.index], tag(self.ops[step.scales].dtype)
    scales = ", ".join(f"x{step.scales}[{stage}][{n}][{h}]" for h in range(2))
    with self.writer.loop("i", acc.row_tiles) as i:
      to = f"acc{acc.index}[{i}][{n}], sum{acc.index}[{i}]"
      self.writer.line(f"add_scaled<{name}>({to}, {scales});", step.index)

  def _uses_left(self) -> bool:
    return not self.plan.even and bool(self.steps.masked or any(a.merge is MAX for a in self.accumulators))

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
    *steps, refill = self.steps.inside
    for b in (s.index for s in steps if isinstance(s, do.Pack)):
      dims = (self.plan.parts, *(count for _, count in self.plan.tiles(self.ops[b])))
      self.writer.line(f"Eight<{tag(self.ops[b].dtype)}> r{b}{subscript([str(n) for n in dims])};")
    with self.writer.loop("u", self.plan.parts) as u:
      for step in steps:
        self._step(step, stage, u)
    assert isinstance(refill, do.Refill)
    self.ring.fetch(stage, refill.loads, ahead=True)
    for column in self.steps.by_column:
      self._column(column, stage)

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
      near = [i for i in loads if self.steps.stages(i) < plan.stages]
      if deep := [i for i in loads if i not in near]:
        with self.writer.loop("s", plan.stages) as s:
          ring.fetch(s, deep, ahead=False)
      ring.fetch("0", near, ahead=False)
    for step in self.steps.before:
      self._invariant(step)

  def run(self) -> None:
    """The rounds, then sums over the quad, whose lanes hold different depths of one row."""
    for acc in self.accumulators:
      self._declare_accumulator(acc)
    self._rounds()
    for acc in self.accumulators:
      if self.plan.is_wide(acc):
        with self.writer.loops(acc.tiles) as indices:
          at = f"{acc.index}{subscript(indices)}"
          self.writer.line(f"to_accumulator(acc{at}, lane{at});", acc.index)
      if acc.form is not AccumulatorForm.MMA:
        with self.writer.loops(acc.tiles) as indices:
          slot = f"acc{acc.index}{subscript(indices)}"
          self.writer.line(f"{slot} = quad_reduce<{acc.merge.cuda}>({slot});", acc.index)
