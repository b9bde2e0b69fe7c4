"""Row kernels: a block per grid index, one axis spread over its threads, no tensor cores.

The row is read once and stays in registers as fp32. Thread t of T holds vectors of ``width``
consecutive elements: vector i starts at element (i*T + t) * width, so a warp reads consecutive
addresses. Reductions over the row end as one value in every thread.

Short rows share a block: a grid axis with a tile of R has T = threads / R lanes for each of R rows,
at most a warp. Lanes of a row behind the last take part in reductions, as that row once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mirage_onnx.codegen.elementwise import evaluate, literal
from mirage_onnx.codegen.grid_text import declare_firsts, declare_rows, first_of, last_of, replicas
from mirage_onnx.codegen.header import header
from mirage_onnx.codegen.loads import TensorText, parameters
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, DType, Kernel, KernelParams, UGraph
from mirage_onnx.ir.block_ops import REDUCTIONS, merge_of
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.grid import AxisTile, Grid, check_maps
from mirage_onnx.lower.in_place import update_of
from mirage_onnx.lower.read_ahead import is_overtaken, reads_ahead
from mirage_onnx.lower.tensor_view import runtime_axes
from mirage_onnx.target import Target

_MOST_PER_THREAD = 64
_WIDTHS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class RowPlan:
  """How the vector axis lies in the threads: ``count`` vectors of ``width`` elements each.

  ``threads`` have a row; ``packed`` is the grid axis of which a block has many, if one is.
  """

  axis: str
  extent: int
  threads: int
  width: int
  count: int
  packed: AxisTile | None

  @classmethod
  def of(cls, kernel: Kernel, params: KernelParams, grid: Grid, extents: Mapping[str, int]) -> RowPlan:
    """The layout of the kernel's row.

    Raises:
        RejectionError: LAYOUT, not exactly one axis inside the block, rows that do not share
            it out, or too long a row.
    """
    inside = {a for op in kernel.ops for a in op.axes if a not in kernel.grid}
    if len(inside) != 1:
      raise RejectionError("LAYOUT", f"a row kernel has one axis inside the block, not {sorted(inside)}")
    axis = inside.pop()
    extent, threads = extents[axis], 32 * params.warps
    tiled = [(a, t) for a, t in zip(grid.axes, params.tile, strict=True) if t > 1]
    if tiled:
      rows = prod(t for _, t in tiled)
      threads, rest = divmod(threads, rows)
      # The grid has made a tile smaller that is longer than its axis.
      lost = any(a.tile != t for a, t in tiled)
      if len(tiled) > 1 or lost or rest or threads not in (1, 2, 4, 8, 16, 32):
        reason = f"tiles of {params.tile} do not share out {32 * params.warps} threads"
        raise RejectionError("LAYOUT", reason)
    width = next(w for w in _WIDTHS if extent % w == 0 and (w == 1 or 2 * extent >= w * threads))
    count = -(-extent // (threads * width))
    if count * width > _MOST_PER_THREAD:
      raise RejectionError(
        "LAYOUT",
        f"{count * width} elements of {axis} per thread, at most {_MOST_PER_THREAD}",
      )
    return cls(axis, extent, threads, width, count, tiled[0][0] if tiled else None)

  @property
  def thread(self) -> str:
    """The number of a thread among those of its row."""
    return "lane" if self.packed else "ptx::thread()"

  @property
  def short(self) -> bool:
    """Whether some vectors lie beyond the row."""
    return self.count * self.threads * self.width != self.extent


class _RowEmitter:
  def __init__(
    self, graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int],
    target: Target,
  ) -> None:  # fmt: skip
    if params.cluster > 1:
      raise RejectionError("LAYOUT", "a row kernel does not use clusters")
    self.graph, self.kernel, self.params, self.extents = graph, kernel, params, extents
    self.pdl = target.has_pdl
    check_maps(graph, kernel)
    self.grid = Grid.of(kernel, params, extents, target)
    self.plan = RowPlan.of(kernel, params, self.grid, extents)
    self.ops = kernel.ops
    self.writer = Writer()
    self.reductions = 0
    self.needed = self._needed()
    self.update = update_of(graph, kernel)

  def _rows(self) -> None:
    """Which row this thread belongs to, where the block has many."""
    plan, writer = self.plan, self.writer
    if (packed := plan.packed) is None:
      return
    writer.line(f"const int lane = ptx::thread() % {plan.threads};")
    own = f"ptx::thread() / {plan.threads}"
    place = own if (first := first_of(packed)) == "0" else f"{first} + {own}"
    if not packed.short:
      writer.line(f"const int row = {place};")
      return
    writer.line(f"const bool exists = {place} <= {last_of(packed)};")
    writer.line(f"const int row = exists ? {place} : {last_of(packed)};")

  def _needed(self) -> set[int]:
    needed: set[int] = set()
    for index in range(len(self.ops) - 1, -1, -1):
      if index in needed or any(s.arg == index for s in self.kernel.saves):
        needed |= {index, *self.ops[index].args}
    return needed

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
    self.writer.line(f"if (at < {self.plan.extent}) {body}" if self.plan.short else body, op)

  def _position(self, i: str) -> None:
    plan = self.plan
    row = plan.thread if i == "0" else f"({i} * {plan.threads} + {plan.thread})"
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
      if view.together(plan.axis, plan.width):
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

  def _vectors(self, run: list[int]) -> None:
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
    if op.reduced != (self.plan.axis,) or not self._is_vector(op.args[0]):
      raise RejectionError("EMIT_UNSUPPORTED", f"a row kernel reduces {self.plan.axis}, not {op.reduced}")
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
    writer.line(f"const float v{index} = {self._rounded(call, op.dtype)};", index)
    self.reductions += not plan.packed

  @staticmethod
  def _rounded(text: str, dtype: DType) -> str:
    if dtype is not DType.F32:
      raise RejectionError("EMIT_UNSUPPORTED", f"a reduction has type f32, not {dtype}")
    return text

  def _ops(self) -> None:
    loads = [i for i, o in enumerate(self.ops) if o.op == "load" and i in self.needed]
    if self.update:
      self._updated(loads)
      return
    # Weights are on their way before the kernel waits for those that write the rest.
    ahead = reads_ahead(self.graph, self.kernel, self.extents)
    first = [i for i in loads if ahead or not self._view(self.ops[i].tensor).coherent]
    if ahead:
      declare_rows(self.grid, self.writer, self.graph, self.kernel, self.extents)
    for index in first:
      self._load(index, self.ops[index])
    if self.pdl:
      self.writer.wait()
    if not ahead:
      declare_rows(self.grid, self.writer, self.graph, self.kernel, self.extents)
    for index in loads:
      if index not in first:
        self._load(index, self.ops[index])
    self._compute(sorted(self.needed))
    for save in self.kernel.saves:
      self._save(save.tensor, save.arg)

  def _updated(self, loads: list[int]) -> None:
    """As ``_ops``, of what may be in place: only what says so is read where nothing changes."""
    update, writer = self.update, self.writer
    assert update is not None
    for wanted in (False, True):
      for index in loads:
        if index in update.early and self._view(self.ops[index].tensor).coherent is wanted:
          self._load(index, self.ops[index])
      if self.pdl and not wanted:
        writer.wait()
    self._compute(sorted(update.early))
    apart = [f"{self._view(a).pointer} != {self._view(b).pointer}" for a, b in update.pairs]
    changes = " || ".join([f"{self._operand(update.condition, '0', '0')} != 0.0f", *apart])
    if (
      self.plan.packed and self.plan.packed.short
    ):  # lanes behind the last row do not read it while it changes
      changes = f"exists && ({changes})"
    writer.line(f"const bool changes = {changes};")
    rest = sorted(self.needed - update.early)
    with writer.block("if (changes)"):
      declare_rows(self.grid, writer, self.graph, self.kernel, self.extents)
      for index in loads:
        if index in rest:
          self._load(index, self.ops[index])
      self._compute(rest)
      for save in self.kernel.saves:
        self._save(save.tensor, save.arg)

  def _compute(self, some: list[int]) -> None:
    run: list[int] = []
    for index in some:
      op = self.ops[index]
      if op.op == "load":
        continue
      simple = is_elementwise(op.op) or constant(op, self.extents) is not None
      if simple and self._is_vector(index):
        run.append(index)
        continue
      if run:
        self._vectors(run)
        run = []
      if simple:
        self._uniform(index, op)
      elif op.op in REDUCTIONS:
        self._reduce(index, op)
      else:
        raise RejectionError("EMIT_UNSUPPORTED", f"no rule for {op.op!r} in a row kernel")
    if run:
      self._vectors(run)

  def _save(self, tensor: str, arg: int) -> None:
    view, plan, writer = self._view(tensor), self.plan, self.writer
    axes = view.tensor.axes
    conditions = [replicas(self.grid, axes)]
    if plan.packed and plan.packed.axis not in axes:
      conditions.append(f"ptx::thread() < {plan.threads}")
    elif plan.packed and plan.packed.short:
      conditions.append("exists")
    if plan.axis not in axes:
      conditions.append(f"{plan.thread} == 0")
    condition = " && ".join(c for c in conditions if c)
    with writer.scope(bool(condition), f"if ({condition})"):
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

  def emit(self) -> KernelSource:
    writer, plan, kernel = self.writer, self.plan, self.kernel
    name = kernel.name
    shared = self.update.tensors if self.update else frozenset()
    args, given = parameters(self.graph, kernel, self.extents, shared)
    threads = 32 * self.params.warps
    with writer.kernel(name, threads, 1, given):
      who = "lane t of a row" if plan.packed else "thread t"
      writer.comment(
        f"Axis {plan.axis}: {who} holds {plan.count} vectors of {plan.width}; vector i "
        f"starts at element (i * {plan.threads} + t) * {plan.width}."
      )
      if self.pdl:
        writer.trigger(behind_wait=is_overtaken(self.graph, kernel, self.extents))
      declare_firsts(self.grid, writer)
      self._rows()
      self._ops()
    top = header(self.graph, kernel, self.params, self.extents, name)
    smem_bytes = 4 * self.params.warps * self.reductions if self.params.warps > 1 else 0
    return KernelSource(
      name, f"{top}\n{writer.text}", self.grid.launch, threads, 1, smem_bytes,
      args, self.pdl, runtime_axes(self.graph, kernel, self.extents), self.grid.tiles,
    )  # fmt: skip


def emit_row(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> KernelSource:
  """The CUDA text of a row kernel.

  Raises:
      RejectionError: LAYOUT or EMIT_UNSUPPORTED.
  """
  return _RowEmitter(graph, kernel, params, extents, target).emit()
