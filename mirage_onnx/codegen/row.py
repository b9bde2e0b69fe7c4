"""Row kernels as text: ``lower/row_graph.py`` says what their threads do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage_onnx.codegen.elementwise import evaluate, literal
from mirage_onnx.codegen.grid_text import declare_firsts, declare_rows, first_of, first_replica, last_of
from mirage_onnx.codegen.loads import TensorText, parameters
from mirage_onnx.codegen.source import KernelSource, Writer, conditional
from mirage_onnx.codegen.whole_text import whole_kernel
from mirage_onnx.ir import BlockOp
from mirage_onnx.ir.block_ops import merge_of
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.in_place import InPlace
from mirage_onnx.lower.row_graph import RowPlan
from mirage_onnx.lower.steps import Fetch, Fold, Store, ThreadRun, ThreadStep
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.target import Target


class _RowEmitter:
  def __init__(self, threads: ThreadGraph, plan: RowPlan, *, pdl: bool) -> None:
    self.threads, self.plan, self.pdl = threads, plan, pdl
    self.graph, self.kernel, self.params, self.extents = (
      threads.graph, threads.kernel, threads.params, threads.extents
    )  # fmt: skip
    self.grid, self.ops = threads.grid, threads.kernel.ops
    self.writer = Writer()
    self.reductions = 0

  @property
  def thread(self) -> str:
    """The number of a thread among those of its row."""
    return "lane" if self.plan.packed else "ptx::thread()"

  def _rows(self, turn: str = "") -> None:
    """Which row this thread belongs to, where the block has many; ``turn``: of the rows of which turn."""
    plan, writer = self.plan, self.writer
    if (packed := plan.packed) is None:
      return
    writer.line(f"const int lane = ptx::thread() % {plan.threads};")
    own = f"ptx::thread() / {plan.threads}"
    own = f"{turn} * {packed.tile // plan.turns} + {own}" if turn else own
    place = own if (first := first_of(packed)) == "0" else f"{first} + {own}"
    if not packed.short:
      writer.line(f"const int row = {place};")
      return
    writer.line(f"const bool exists = {place} <= {last_of(packed)};")
    writer.line(f"const int row = exists ? {place} : {last_of(packed)};")

  def _view(self, name: str) -> TensorText:
    return TensorText.of(self.graph.tensor(name), self.extents)

  def _index(self, view: TensorText, at: str) -> dict[str, str]:
    index = {a.axis: "row" if a is self.plan.packed else first_of(a) for a in self.grid.axes}
    return {a: at if a == self.plan.axis else index[a] for a in view.tensor.axes}

  def _is_vector(self, index: int) -> bool:
    return self.plan.axis in self.ops[index].axes

  def _operand(self, index: int, i: str, j: str) -> str:
    number = constant(self.ops[index], self.extents)
    if number is not None:
      return literal(number)
    return f"v{index}[{i}][{j}]" if self._is_vector(index) else f"v{index}"

  def _guarded(self, body: str, op: int) -> None:
    """``body`` where the thread's vector ``at`` exists."""
    self.writer.line(conditional([f"at < {self.plan.extent}"] if self.plan.short else [], body), op)

  def _position(self, i: str) -> None:
    plan = self.plan
    row = self.thread if i == "0" else f"({i} * {plan.threads} + {self.thread})"
    scaled = row if plan.width == 1 else f"{row} * {plan.width}"
    self.writer.line(f"const int at = {scaled};")

  def _load(self, index: int, op: BlockOp) -> None:
    view, plan, writer = self._view(op.tensor), self.plan, self.writer
    if not self._is_vector(index):
      writer.line(f"const float v{index} = {view.load(self._index(view, '0'))};", index)
      return
    zero = " = {}" if plan.short else ""
    writer.line(f"float v{index}[{plan.count}][{plan.width}]{zero};  // {op.tensor}")
    with writer.loop("i", plan.count) as i, writer.block():
      self._position(i)
      if view.together(plan.axis, plan.width) and not view.tensor.places:
        call = f"load_vector<{view.tag}, {view.path}>"
        address = view.address(self._index(view, "at"))
        self._guarded(f"{call}({address}, v{index}[{i}]);", index)
      else:
        body = f"v{index}[{i}][{{j}}] = {view.load(self._index(view, 'at + j'))};"
        self._elements(body, index)

  def _elements(self, body: str, op: int) -> None:
    """``body`` for each element j of the vector, guarded."""
    with self.writer.loop("j", self.plan.width) as j:
      one = body.replace("{j}", j).replace("at + j", "at" if j == "0" else "at + j")
      self._guarded(one, op)

  def _vectors(self, run: Sequence[int]) -> None:
    """A run of elementwise ops on vectors in one loop nest."""
    plan, writer = self.plan, self.writer
    for index in run:
      writer.line(f"float v{index}[{plan.count}][{plan.width}];")
    with writer.loops((("i", plan.count), ("j", plan.width))) as (i, j):
      for index in run:
        op = self.ops[index]
        operands = [self._operand(a, i, j) for a in op.args]
        value = evaluate(self.ops, op, operands, self.extents)
        writer.line(f"v{index}[{i}][{j}] = {value};", index)

  def _uniform(self, index: int, op: BlockOp) -> None:
    if constant(op, self.extents) is None:
      operands = [self._operand(a, "0", "0") for a in op.args]
      value = evaluate(self.ops, op, operands, self.extents)
      self.writer.line(f"const float v{index} = {value};", index)

  def _reduce(self, index: int, op: BlockOp) -> None:
    plan, writer = self.plan, self.writer
    rule = merge_of(op.op).cuda
    writer.line(f"float p{index} = {rule}::neutral();")
    with writer.loop("i", plan.count) as i, writer.block():
      if plan.short:
        self._position(i)
      with writer.loop("j", plan.width) as j:
        value = self._operand(op.args[0], i, j)
        self._guarded(f"p{index} = {rule}::combine(p{index}, {value});", index)
    scratch = f"ptx::smem<float>() + {self.reductions * self.params.warps}"
    call = f"block_reduce<{rule}, {self.params.warps}>(p{index}, {scratch})"
    if plan.packed:
      call = f"warp_reduce<{rule}, {plan.threads}>(p{index})"
    writer.line(f"const float v{index} = {call};", index)
    self.reductions += not plan.packed

  def _steps(self, steps: Iterable[ThreadStep]) -> None:
    for step in steps:
      op = self.ops[step.index]
      match step:
        case Fetch():
          self._load(step.index, op)
        case ThreadRun():
          if self._is_vector(step.index):
            self._vectors(step.ops)
          else:
            self._uniform(step.index, op)
        case Fold():
          self._reduce(step.index, op)
        case Store():
          save = self.kernel.saves[step.index]
          self._save(save.tensor, save.arg)

  def _is_weight(self, step: ThreadStep) -> bool:
    return not self._view(self.ops[step.index].tensor).coherent

  def _all(self) -> None:
    if self.plan.update:
      self._updated(self.plan.update)
      return
    rows = self.grid, self.writer, self.graph, self.kernel, self.extents
    if self.threads.ahead:
      declare_rows(*rows)
    rest = self._begun(self.threads.steps.after, ahead=self.threads.ahead)
    if not self.threads.ahead:
      declare_rows(*rows)
    self._steps(rest)

  def _begun(self, steps: Sequence[ThreadStep], *, ahead: bool = False) -> list[ThreadStep]:
    """Weights are on their way (``ahead``: loads) before the kernel waits for those that write the rest."""
    first = [s for s in steps if isinstance(s, Fetch) and (ahead or self._is_weight(s))]
    self._steps(first)
    if self.pdl:
      self.writer.wait()
    return [s for s in steps if s not in first]

  def _updated(self, update: InPlace) -> None:
    """The same of what may be in place: only what says so is read where nothing changes."""
    early, plan = self.threads.steps.before, self.plan
    if plan.turns > 1:
      of_rows = [s for s in early if plan.packed and plan.packed.axis in self.ops[s.index].axes]
      self._steps(self._begun([s for s in early if s not in of_rows]))
      with self.writer.block(f"for (int turn = 0; turn < {plan.turns}; ++turn)"):
        self._rows("turn")
        self._steps(of_rows)
        self._where_changed(update)
      return
    self._steps(self._begun(early))
    self._where_changed(update)

  def _where_changed(self, update: InPlace) -> None:
    writer = self.writer
    apart = [f"{self._view(a).pointer} != {self._view(b).pointer}" for a, b in update.pairs]
    changes = " || ".join([f"{self._operand(update.condition, '0', '0')} != 0.0f", *apart])
    if self.plan.packed and self.plan.packed.short:
      # Lanes behind the last row do not read it while it changes.
      changes = f"exists && ({changes})"
    writer.line(f"const bool changes = {changes};")
    # Lanes of a warp that reduce do so together; only those whose row changes write.
    with writer.block("if (ptx::any(changes))" if self.plan.together else "if (changes)"):
      declare_rows(self.grid, writer, self.graph, self.kernel, self.extents)
      self._steps(self.threads.steps.after)

  def _save(self, tensor: str, arg: int) -> None:
    view, plan, writer = self._view(tensor), self.plan, self.writer
    axes = view.tensor.axes
    conditions = first_replica(self.grid, axes)
    if plan.packed and plan.packed.axis not in axes:
      conditions.append(f"ptx::thread() < {plan.threads}")
    elif plan.packed and plan.packed.short:
      conditions.append("exists")
    if plan.axis not in axes:
      conditions.append(f"{self.thread} == 0")
    if self.plan.together:
      conditions.append("changes")
    with writer.where(conditions):
      if plan.axis not in axes:
        value = self._operand(arg, "0", "0")
        writer.line(view.store(self._index(view, "0"), value), arg)
        return
      with writer.loop("i", plan.count) as i, writer.block():
        self._position(i)
        if view.together(plan.axis, plan.width) and self._is_vector(arg):
          address = view.address(self._index(view, "at"))
          self._guarded(f"store_vector<{view.tag}>({address}, v{arg}[{i}]);", arg)
        else:
          value = self._operand(arg, i, "{j}")
          self._elements(view.store(self._index(view, "at + j"), value), arg)

  def body(self) -> None:
    declare_firsts(self.grid, self.writer)
    if self.plan.turns == 1:
      self._rows()
    self._all()


def emit_row(threads: ThreadGraph, plan: RowPlan, target: Target) -> KernelSource:
  """The CUDA text of a row kernel."""
  emitter = _RowEmitter(threads, plan, pdl=target.has_pdl)
  shared = plan.update.tensors if plan.update else frozenset()
  given = parameters(threads.graph, threads.kernel, threads.extents, shared)
  comment = (
    f"Axis {plan.axis}: {'lane t of a row' if plan.packed else 'thread t'} holds {plan.count} vectors of "
    f"{plan.width}; vector i starts at element (i * {plan.threads} + t) * {plan.width}."
  )
  return whole_kernel(threads, target, emitter.writer, given, emitter.body, comment=comment)
