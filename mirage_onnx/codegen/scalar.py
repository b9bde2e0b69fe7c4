"""POST values as formulas of one element, written where they are needed."""

from collections.abc import Callable, Mapping, Sequence

from mirage_onnx.codegen.elementwise import evaluate, literal
from mirage_onnx.codegen.grid_text import first_of
from mirage_onnx.codegen.loads import TensorText, rounded
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.space import Place
from mirage_onnx.ir import BlockOp, UGraph
from mirage_onnx.ir.block_ops import CLUSTER
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.sizes import axis_variable
from mirage_onnx.lower.stream_behind import ACCUMULATIONS, formula, walked_vectors
from mirage_onnx.lower.stream_plan import Accumulator, StreamPlan


class Scalar:
  """Evaluates values at a place of the block's tile.

  A place gives the position in the tile of every axis that is wider than one element there; a
  variable named after the axis holds the index in the whole axis. ``accumulator`` and ``staged``
  say what an accumulator and a value in shared memory are at a place.
  """

  def __init__(
    self,
    graph: UGraph,
    plan: StreamPlan,
    writer: Writer,
    accumulator: Callable[[Accumulator, Place], str],
    staged: Callable[[int, Place], str | None],
  ) -> None:
    self.graph, self.plan, self.writer = graph, plan, writer
    self.ops = plan.kernel.ops
    self.by_index = {a.index: a for a in plan.accumulators}
    self.accumulator, self.staged = accumulator, staged
    #: Vectors of loads that contractions take, and the arrays that have them already.
    self.under_way: dict[int, str] = {}

  def index(self, axes: Sequence[str], at: Place) -> dict[str, str]:
    """An index for every axis."""
    tiles = {a: self.plan.grid.tile(a, self.plan.extents) for a in axes}
    return {a: axis_variable(a) if a in at else first_of(tile) for a, tile in tiles.items()}

  def view(self, index: int) -> TensorText:
    """The tensor that load ``index`` reads."""
    return TensorText.of(self.graph.tensor(self.ops[index].tensor), self.plan.extents)

  def load(self, index: int, at: Place) -> str:
    view = self.view(index)
    return view.load(self.index(view.tensor.axes, at))

  def eight(self, load: int, axis: str, at: Place) -> str:
    """The eight elements of a load that begin at the variable ``<axis>_8``."""
    view, name = self.view(load), axis_variable(axis)
    where = {**self.index(view.tensor.axes, {**at, axis: name}), axis: f"{name}_8"}
    return f"load8<{view.tag}, {view.path}>({view.address(where)})"

  def value(self, index: int, at: Place, names: dict[int, str]) -> str:
    """Writes what is needed for value ``index`` at a place; returns its name.

    ``names`` holds the values that the scope has already, and gets the new ones.
    """
    for number in formula(self.ops, index, names, lambda i: self.staged(i, at) is not None):
      op = self.ops[number]
      text = self._formula(number, op, at, names)
      literals = constant(op, self.plan.extents) is not None
      if literals or text.isidentifier() or op.op in CLUSTER:
        names[number] = text
        continue
      self.writer.line(f"const float v{number} = {text};", number)
      names[number] = f"v{number}"
    return names[index]

  def _formula(self, index: int, op: BlockOp, at: Place, names: Mapping[int, str]) -> str:
    number = constant(op, self.plan.extents)
    if number is not None:
      return literal(number)
    staged = self.staged(index, at)
    if staged is not None:
      return staged
    if op.op in ACCUMULATIONS:
      return self.accumulator(self.by_index[index], at)
    if op.op in CLUSTER:
      return rounded(names[op.args[0]], op.dtype)
    if op.op == "load":
      return self.load(index, at)
    if op.op == "matmul":
      return self._contraction(index, op, at)
    return evaluate(self.ops, op, [names[a] for a in op.args], self.plan.extents)

  def _contraction(self, index: int, op: BlockOp, at: Place) -> str:
    """A matmul over an axis that is whole in the tile: fp32 multiply-adds by one thread."""
    tile, writer = self.plan.grid.tile(op.reduced[0], self.plan.extents), self.writer
    name = axis_variable(tile.axis)
    writer.line(f"float v{index} = 0.0f;")
    inside = {**at, tile.axis: name}
    _, _, vectors = walked_vectors(self.graph, self.plan, index)
    if vectors:
      writer.line("#pragma unroll")
      with writer.block(f"for (int {name}_8 = 0; {name}_8 < {tile.extent}; {name}_8 += 8)"):
        known = {}
        for a in vectors:
          writer.line(f"float w{a}[8];")
          there = f"{self.under_way[a]}[{name}_8 / 8]" if a in self.under_way else ""
          eight = there or self.eight(a, tile.axis, at)
          writer.line(f"unpack8<{self.view(a).tag}>({eight}, w{a});", a)
          known[a] = f"w{a}[j]"
        with writer.loop("j", 8):
          writer.line(f"const int {name} = {name}_8 + j;")
          self._multiply(index, op, inside, known)
    else:
      with writer.block(f"for (int {name} = 0; {name} < {tile.extent}; ++{name})"):
        self._multiply(index, op, inside, {})
    return f"v{index}"

  def _multiply(self, index: int, op: BlockOp, at: Place, known: Mapping[int, str]) -> None:
    names = dict(known)
    a, b = (self.value(x, at, names) for x in op.args)
    self.writer.line(f"v{index} += {a} * {b};", index)
