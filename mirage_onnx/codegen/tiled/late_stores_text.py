"""Results of a part that are stored in the steps of the next one, packed in registers until then.

Behind a part all multiprocessors store at once, and the tensor cores wait for L2. So a lane keeps what it
has, and quads exchange it and store 16 bytes at a time while the next products run; of the last part at the
end. With ``late=2`` it keeps the argument of the last functions (their one argument, rounded to the results'
type), and these are computed there, too, beside the products: between one and the next, for a warp stands
still at a product that the tensor cores have no place for yet. (4096x768x3072 with x N(x) behind it on an
H100: 47.7 us, 45.8 stored late, 44.1 with functions between products; with all of a step's behind its four,
and a branch for each step, 52.7.)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_onnx.codegen.elementwise import literal
from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.tiled.quads_text import QUAD_TILES, in_quads
from mirage_onnx.codegen.tiled.spot import Spot, digit, owner
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import ELEMENTWISE, TIMES_NORMAL, Price, is_elementwise
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.feed import Feed
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.thread_graph import ThreadGraph

#: Registers of a thread beside results and what is kept of them.
BESIDE = 48


@dataclass(frozen=True, slots=True)
class LateStores:
  """Of a save: ``rows`` and ``columns`` of 16 bytes of a lane; ``stride``: elements from row to row.

  ``kept``: the value that is kept; ``behind``: what is computed of it when it is stored.
  """

  view: TensorText
  form: Form
  rows: int
  columns: int
  stride: int
  steps: int
  kept: int
  behind: tuple[int, ...] = ()

  @property
  def each(self) -> int:
    """Words of four bytes that one step has, so that all of the first steps have as many."""
    if self.behind:
      return -(-4 * self._count // self.steps)
    return 4 * next(
      n for n in range(2, self._count + 1) if self._count % n == 0 and self._count // n <= self.steps
    )

  @property
  def first_steps(self) -> int:
    """Those between whose products there are stores."""
    return -(-4 * self._count // self.each)

  @property
  def _count(self) -> int:
    return self.rows * self.columns

  def begin(self, w: ValueWriter) -> None:
    """Nothing is kept."""
    w.writer.line(f"unsigned late[{self.rows}][{self.columns}][4] = {{}};")
    w.writer.line(f"{self.view.storage}* late_to = nullptr;")
    w.writer.line("int late_rows = 0;")
    w.writer.line("int late_columns = 0;")

  def keep(self, w: ValueWriter, own: Mapping[str, Piece]) -> None:
    """Where what is kept belongs."""
    ((r,), (c,)), writer = (self.form.g, self.form.t), w.writer
    units = {f"q_{p.name}": "0" for p in self.form.rest}
    spot = Spot(writer, w.pieces, w.lowering.warps, self.form, {**units, "i": "0", "j": "0", "e": "0"})
    with writer.block():
      spot.declare(p for p in own.values() if p != c)
      each = 8 * QUAD_TILES * self.columns
      writer.line(f"const int c = {total(times(digit(w.lowering.warps, self.form.t), each), 't * 8')};")
      spot.known[c] = "c"
      writer.line(f"late_to = {self.view.address(w.global_index(self.view, own, spot))};")
      writer.line(f"late_rows = {w.pieces.size(r)} - {spot.known[r]};")
      writer.line(f"late_columns = {w.pieces.size(c)} - c;")

  def between(self, w: ValueWriter, product: int, products: int) -> None:
    """A share of what a step computes, behind one of its ``products``."""
    partial = 4 * self._count % self.each != 0
    for q in range(self.each * product // products, self.each * (product + 1) // products):
      n = f"({total(times('step', self.each), str(q))})"
      with w.writer.scope(partial, f"if ({n} < {4 * self._count})"):
        self._compute(w, f"late[{n} / {4 * self.columns}][{n} / 4 % {self.columns}][{n} % 4]", str(q))
        last = {(step * self.each + q) % 4 == 3 for step in range(self.first_steps)}
        if True in last:  # in some step; where it is not in all of them, a step asks
          with w.writer.block(f"if ({n} % 4 == 3)" if False in last else ""):
            self._store(w, f"{n} / 4")

  def store(self, w: ValueWriter) -> None:
    """All that is kept."""
    w.writer.line("#pragma unroll")
    with w.writer.block(f"for (int n = 0; n < {self._count}; ++n)"):
      for word in range(4):
        self._compute(w, f"late[n / {self.columns}][n % {self.columns}][{word}]", str(word))
      self._store(w, "n")

  def _store(self, w: ValueWriter, n: str) -> None:
    """Of 16 bytes, whose results are there."""
    i, j = f"{n} / {self.columns}", f"{n} % {self.columns}"
    w.writer.line(f"const ptx::U4 eight = quad_turned(late[{i}][{j}], t);")
    to = f"late_to + {i} * {8 * self.stride} + {j} * {8 * QUAD_TILES}"
    there = f"{i} * 8 < late_rows && {j} * {8 * QUAD_TILES} < late_columns"
    w.writer.line(f"if ({there}) ptx::st_v4({to}, eight);")

  def _compute(self, w: ValueWriter, pair: str, name: str) -> None:
    """The results of a packed pair of what is kept, in its place, if there is something behind."""
    if not self.behind:
      return
    kind, line, low = tag(self.view.tensor.dtype), w.writer.line, f"a{name}"
    line(f"float {low}[2];")
    line(f"{kind}::unpack({pair}, {low}[0], {low}[1]);")
    results = []
    for e in range(2):
      known = {self.kept: f"{low}[{e}]"}
      for index in self.behind:
        args = [known.get(a) or _number(w, a) for a in w.operands(index)]
        known[index] = f"r{index}_{name}_{e}"
        line(f"const float {known[index]} = {w.evaluated(index, args)};", index)
      results.append(known[self.behind[-1]])
    line(f"{pair} = {kind}::pack({', '.join(results)});")


def _number(w: ValueWriter, index: int) -> str:
  """A constant of what is computed."""
  number = constant(w.ops[index], w.lowering.extents)
  assert number is not None
  return literal(number)


def late_stores(w: ValueWriter, threads: ThreadGraph) -> LateStores | None:
  """How the save of a kernel is late, if its numbers say so.

  Raises:
      RejectionError: LAYOUT, a block has one part, or a lane no registers for it.
  """
  if not threads.params.late:
    return None
  found = _late_stores(w, threads)
  if found is None:
    raise RejectionError("LAYOUT", f"{threads.kernel.name} has nothing that is stored late")
  return found


def _late_stores(w: ValueWriter, threads: ThreadGraph) -> LateStores | None:
  feed, lowering = threads.feed, w.lowering
  kernel, warps = lowering.kernel, lowering.warps
  if not isinstance(feed, Feed) or not feed.registers or len(kernel.saves) != 1 or threads.kernels > 1:
    return None
  (save,) = kernel.saves
  view, own, form = w.view(save.tensor), w.own(save.arg), lowering.save_form(save.arg)
  several = threads.tiles > threads.standing and feed.teams == 1
  if not several or not in_quads(w, form, view, own) or len(form.g) != 1 or owner(form, warps):
    return None
  if any(p.length > 1 for p in {*form.rest, *own.values()} - {*form.g, *form.t}):
    return None
  results = warps.registers(form)
  stride = view.stride(form.g[0].axis)
  if not isinstance(stride, int) or 3 * results // 2 + BESIDE > feed.registers[1]:
    return None
  rows, columns = warps.tiles(form.g, 8), warps.tiles(form.t, 8) // QUAD_TILES
  steps = lowering.assignment.pieces.most_steps
  kept, behind = _kept(w, save.arg) if threads.params.late > 1 else (save.arg, ())
  if steps < 2 or rows * columns < 2 or (threads.params.late > 1 and not behind):
    return None
  return LateStores(view, form, rows, columns, stride, steps, kept, behind)


def _kept(w: ValueWriter, result: int) -> tuple[int, tuple[int, ...]]:
  """The one argument of the last functions of a result, nearest to it, and what is computed of it.

  Among that is what takes the special function unit; else nothing would be won. It is steady, for the
  argument is rounded, as a model of 16 bits does, but one that casts in front of it does not. (x N(x) is not
  quite, below 0: there a rounded argument moves it by at most a fifth of what it moves a 1.)
  """
  for at in range(result - 1, -1, -1):
    if w.ops[at].axes != w.ops[result].axes or w.ops[at].dtype is not DType.F32:
      continue
    behind, left = set[int](), [result]
    while left:
      index = left.pop()
      if index == at or index in behind or constant(w.ops[index], w.lowering.extents) is not None:
        continue
      behind.add(index)
      if not is_elementwise(w.ops[index].op):
        break
      left += w.operands(index)
    else:
      dear = [i for i in behind if _is_dear(w, i)]
      if dear and all(_is_steady(w.ops[i].op) for i in dear):
        return at, tuple(sorted(behind))
  return result, ()


def _is_dear(w: ValueWriter, index: int) -> bool:
  """More than an instruction or two; of a number, a quotient is a product."""
  op = w.ops[index]
  if op.op == "div" and constant(w.ops[op.args[1]], w.lowering.extents) is not None:
    return False
  return op.op == TIMES_NORMAL or (op.op in ELEMENTWISE and ELEMENTWISE[op.op].price is not Price.LANE)


def _is_steady(op: str) -> bool:
  return op == TIMES_NORMAL or ELEMENTWISE[op].steady
