"""The depth loop of a streaming kernel with packed weights, column tile by column tile.

A step is several eights of the depth (``StreamPlan.parts``). First the rows' operands of all of them are
made, and what is summed up of rows; then each column tile's weights are widened, contracted and, as soon
as that is done, loaded again: so loads are in flight while other tiles are computed, whatever the ring
has. Operands of 16 bits whose rows are a product of two loads are multiplied in 16 bits: the product of two
such numbers is exact in fp32, so this rounds it alike.
"""

from collections.abc import Sequence

from mirage_onnx.codegen.index_text import subscript
from mirage_onnx.codegen.loads import tag
from mirage_onnx.codegen.loop import LoopEmitter
from mirage_onnx.codegen.source import Writer
from mirage_onnx.ir.ugraph import Layout, UGraph
from mirage_onnx.lower.scaled_integers import cast_load
from mirage_onnx.lower.stream_plan import Accumulator, AccumulatorForm, StreamPlan, operands


class PackedLoop(LoopEmitter):
  """A ``LoopEmitter`` whose stages go by column tiles, where nothing else is made of weights."""

  def __init__(
    self, graph: UGraph, plan: StreamPlan, accumulators: Sequence[Accumulator],
    writer: Writer, *, pdl: bool,
  ) -> None:  # fmt: skip
    self.products = _products(graph, plan)
    super().__init__(graph, plan, accumulators, writer, pdl=pdl)
    self.contracted = [a for a in self.accumulators if a.form is AccumulatorForm.MMA]
    weights = [i for i in self.used if self.ops[i].layout is Layout.A_FRAG]
    scaled = all(i in self.scaled or self._is_few_bits(i) for i in weights)
    columns = any(a.form is AccumulatorForm.COLUMN for a in self.accumulators)
    self.by_tile = scaled and not columns
    self.weights = [i for i in weights if self.ops[i].op == "load"]

  def _is_few_bits(self, index: int) -> bool:
    op = self.ops[index]
    return op.op == "load" and self.graph.tensor(op.tensor).few_bits

  def _leaves(self, index: int) -> tuple[int, ...]:
    return self.products.get(index) or super()._leaves(index)

  def _stage(self, stage: str) -> None:
    if not self.by_tile:
      super()._stage(stage)
      return
    plan, writer = self.plan, self.writer
    pairs = {a.index: operands(plan.kernel, self.ops[a.source]) for a in self.contracted}
    rows = dict.fromkeys(b for _, b in pairs.values())
    for b in rows:
      dims = subscript([str(n) for n in (plan.parts, *(count for _, count in plan.tiles(self.ops[b])))])
      writer.line(f"Eight<{tag(self.ops[b].dtype)}> r{b}{dims};")
    with writer.loop("u", plan.parts) as u:
      self._unpack(stage, u)
      self._compute(stage, u)
      self._accumulate(stage, u)
      for b in rows:
        with writer.loops(plan.tiles(self.ops[b])) as indices:
          operand = self._operand_eight(b, stage, u, indices)
          writer.line(f"r{b}{subscript([u, *indices])} = {operand};", b)
    self.ring.fetch(stage, [i for i in self.ring.loads if i not in self.weights], ahead=True)
    for column in plan.columns:
      self._columns(stage, column, pairs)

  def _columns(self, stage: str, column: str, pairs: dict[int, tuple[int, int]]) -> None:
    """All products with the weights of one column axis."""
    plan, writer = self.plan, self.writer
    own = [a for a in self.contracted if a.column == column]
    with writer.loop("n", plan.column_tiles(column)) as n, writer.scope(plan.column_tiles(column) == 1):
      with writer.loop("u", plan.parts) as u:
        for a in dict.fromkeys(pairs[acc.index][0] for acc in own):
          writer.line(f"Eight<{tag(self.ops[a].dtype)}> p{a}[2];")
          with writer.loop("h", 2) as h:
            writer.line(self._widened(a, f"p{a}[{h}]", stage, u, (n, h)), a)
        for acc in own:
          a, b = pairs[acc.index]
          with writer.loop("i", acc.row_tiles) as i:
            to = f"acc{acc.index}[{i}][{n}]"
            writer.line(f"mma_step({to}, p{a}[0], p{a}[1], r{b}[{u}][{i}]);", acc.source)
      loads = [i for i in self.weights if plan.column_of(self.ops[i]) == column]
      self.ring.fetch(stage, loads, ahead=True, tile=n)

  def _compute(self, stage: str, part: str) -> None:
    super()._compute(stage, part)
    for index, (a, b) in self.products.items():
      if index not in self.used:
        continue
      self._declare("p", index, f"Eight<{tag(self.ops[index].dtype)}>")
      with self.writer.loops(self.plan.tiles(self.ops[index])) as indices:
        x, y = (self._eight(i, stage, part, self._own(i, indices)) for i in (a, b))
        made = f"product8({x}, {y})"
        made = f"apart({made})" if index in self.apart else made
        self.writer.line(f"p{index}{subscript(indices)} = {made};", index)

  def _made_apart(self, index: int) -> bool:
    """Values that the general rules leave out."""
    return index in self.products or (self.by_tile and index in self.scaled)

  def _own(self, index: int, indices: Sequence[str]) -> tuple[str, ...]:
    """The indices of a load among those of a value that it is combined into."""
    return tuple(indices[: len(self.plan.tiles(self.ops[index]))])


def _products(graph: UGraph, plan: StreamPlan) -> dict[int, tuple[int, int]]:
  """Rows' operands of 16 bits that are the product of two loads of their type, by index."""
  ops, found = plan.kernel.ops, {}
  used_by = [i for op in ops for i in op.args]
  for index, op in enumerate(ops):
    if op.op != "cast" or not op.dtype.is_half or op.layout is not Layout.B_FRAG:
      continue
    product = ops[op.args[0]]
    if product.op != "mul" or used_by.count(op.args[0]) > 1:
      continue
    pair = [cast_load(ops, i) for i in product.args]
    loads = [i for i in pair if i is not None and plan.depth in ops[i].axes]
    fit = all(ops[i].dtype is op.dtype and not graph.tensor(ops[i].tensor).few_bits for i in loads)
    only = all(ops[user].op == "matmul" for user, o in enumerate(ops) if index in o.args)
    if len(loads) == 2 and fit and only:
      found[index] = (loads[0], loads[1])
  return found
