"""The loop of a streaming kernel: a pipeline through registers, and what each of its steps does.

A stage of the ring is consumed by converting what is needed to fp32, combining it elementwise, rounding
it to the 16-bit operand type, and contracting it; sums and maxima over the depth are taken on the side,
each lane over its own elements. Operands loaded as they are go to the mma without conversion.

Beyond the depth the ring holds zeros. A computed value that need not be zero there is set to zero before
it is contracted or summed (``masked``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.block_ops import OVER_AXES
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import KEEPS_ZERO, is_elementwise
from mirage_onnx.ir.ugraph import BlockOp, Layout, UGraph
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.dataflow import cast_load
from mirage_onnx.lower.packed_operand import apart_operands
from mirage_onnx.lower.scaled_integers import Scaled, scaled_integers
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


@dataclass(frozen=True, slots=True)
class StreamLoop:
  """``accumulators``: those that are used; what none of them needs is not among the values ``used``.

  ``scaled``, ``products``: operands with a rule of their own; ``apart``: those whose eights are in
  the order of ``apart_operands``; ``behind``: those whose scales come behind their contraction.
  ``loads``: what the ring holds. ``by_tile``: weights are widened and contracted column tile by column
  tile. ``before``: what the loop does not change; ``inside``: the steps of a part of the depth;
  ``by_column``: behind them, those of every tile of a column axis.
  """

  graph: UGraph
  plan: StreamPlan
  accumulators: tuple[Accumulator, ...]
  scaled: Mapping[int, Scaled]
  products: Mapping[int, tuple[int, int]]
  used: tuple[int, ...] = ()
  apart: frozenset[int] = frozenset()
  behind: frozenset[int] = frozenset()
  masked: frozenset[int] = frozenset()
  loads: tuple[int, ...] = ()
  by_tile: bool = False
  before: tuple[do.ThreadStep, ...] = ()
  inside: tuple[do.ThreadStep, ...] = ()
  by_column: Mapping[str, tuple[do.ThreadStep, ...]] = field(default_factory=dict)

  @classmethod
  def of(cls, graph: UGraph, plan: StreamPlan, accumulators: Sequence[Accumulator]) -> StreamLoop:
    """The loop of a kernel.

    Raises:
        RejectionError: EMIT_UNSUPPORTED or LAYOUT, no rule holds for a value of the loop.
    """
    ops = plan.kernel.ops
    products = _products(graph, plan) if plan.parts > 1 else {}
    loop = cls(graph, plan, tuple(accumulators), scaled_integers(graph, ops), products)
    used: set[int] = set()
    for acc in accumulators:
      used |= loop._sources(acc.source)
    loop = replace(loop, used=tuple(sorted(used)))
    loop = replace(loop, apart=apart_operands(plan.kernel, loop.scaled, loop.used), masked=loop._masked())
    for index in loop.used:
      loop._check(ops[index])
    loads = tuple(i for i in loop.used if ops[i].op == "load" and loop.deep(i))
    loop = replace(loop, loads=loads, by_tile=plan.parts > 1 and loop._goes_by_tile())
    loop = replace(loop, behind=loop._scaled_behind() if loop.by_tile else frozenset())
    return replace(
      loop, before=loop._before(), inside=tuple(loop._inside()),
      by_column={c: tuple(loop._of_column(c)) for c in plan.columns} if loop.by_tile else {},
    )  # fmt: skip

  @property
  def ops(self) -> tuple[BlockOp, ...]:
    return self.plan.kernel.ops

  @property
  def weights(self) -> tuple[int, ...]:
    """Loads of column operands."""
    return tuple(i for i in self.loads if self.ops[i].layout is Layout.A_FRAG)

  @property
  def body(self) -> tuple[do.ThreadStep, ...]:
    """The steps of an iteration."""
    columns = (s for steps in self.by_column.values() for s in steps)
    return (*self.inside, *columns)

  def _sources(self, index: int) -> set[int]:
    found = {index}
    made = self.scaled.get(index)
    for argument in self.products.get(index) or (made.loads if made else self.ops[index].args):
      found |= self._sources(argument)
    return found

  def _goes_by_tile(self) -> bool:
    weights = [i for i in self.used if self.ops[i].layout is Layout.A_FRAG]
    scaled = all(i in self.scaled or (self.ops[i].op == "load" and self.few_bits(i)) for i in weights)
    return scaled and not any(a.form is AccumulatorForm.COLUMN for a in self.accumulators)

  def _check(self, op: BlockOp) -> None:
    known = op.op == "load" or op.op in OVER_AXES or is_elementwise(op.op)
    if not known and constant(op, self.plan.extents) is None:
      raise RejectionError("EMIT_UNSUPPORTED", f"no rule for {op.op!r} in the loop")
    if any(self.ops[a].op in OVER_AXES for a in op.args):
      raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} in the loop of a value that is not accumulated yet")
    deep = op.layout in (Layout.A_FRAG, Layout.B_FRAG, Layout.DEPTH)
    if op.op not in OVER_AXES and deep != (self.plan.depth in op.axes):
      raise RejectionError("LAYOUT", f"{op.op} with axes {op.axes} of layout {op.layout}")

  def _scaled_behind(self) -> frozenset[int]:
    """Operands whose scales come behind their contraction, once for each sum over a step of the depth.

    That has one scale then. Integers are multiplied as they are: their products are exact, and a scaled
    weight is not rounded to 16 bits. Of more than eight rows the sums cost more than they save: 16 took
    1 to 6 % longer, eight 3 to 7 % less (4 bits, an H200; bench/results/h200/packed_variants.json).
    """
    if self.plan.row_tiles > 1:
      return frozenset()
    scales = {i: made.scales for i, made in self.scaled.items() if made.scales is not None}
    repeats = {i: self.graph.tensor(self.ops[s].tensor).repeat for i, s in scales.items()}
    own = {self._operands(acc)[0] for acc in self._contracted()}
    return frozenset(i for i, repeat in repeats.items() if i in own and repeat % self.plan.step == 0)

  # ---- what the values are

  def deep(self, index: int) -> bool:
    """Whether a value varies over the depth."""
    return self.plan.depth in self.ops[index].axes

  def few_bits(self, index: int) -> bool:
    """Whether a load is of weights of few bits, or of their scales."""
    return self.graph.tensor(self.ops[index].tensor).few_bits

  def is_shared(self, index: int) -> bool:
    """A load of one element for all eight of a lane."""
    load = self.ops[index].op == "load" and self.few_bits(index)
    return load and self.graph.tensor(self.ops[index].tensor).repeat > 1

  def stages(self, index: int) -> int:
    """How many steps of a load are in flight."""
    return self.plan.stages if self.plan.parts == 1 or self.few_bits(index) else 1

  def floats_needed(self, index: int) -> bool:
    """Some use takes fp32 elements, not the packed 16-bit operand."""
    uses = [self.ops[i] for i in self.used if index in self.ops[i].args]
    return any(op.op != "matmul" or self.ops[index].dtype is DType.F32 for op in uses)

  def check_use(self, index: int, result: BlockOp) -> None:
    """Refuses a value that a tile of ``result`` has no element of.

    Raises:
        RejectionError: LAYOUT.
    """
    op = self.ops[index]
    if op.layout not in _COMBINES[result.layout]:
      raise RejectionError("LAYOUT", f"{result.op} of layout {result.layout} takes no value of {op.layout}")
    if op.layout in (Layout.A_FRAG, Layout.COLUMN) and (
      self.plan.column_of(op) != self.plan.column_of(result)
    ):
      raise RejectionError("LAYOUT", f"{result.op} combines two column axes")

  def _zero_beyond(self, index: int) -> bool:
    """Elements beyond the depth are zero without a mask, whatever the values are."""
    op = self.ops[index]
    number = constant(op, self.plan.extents)
    if op.op == "load" or number is not None:
      return number == 0 if number is not None else self.deep(index)
    zero = [self._zero_beyond(a) for a in op.args]
    if op.op in ("mul", "div"):
      finite = [constant(self.ops[a], self.plan.extents) is not None for a in op.args]
      if op.op == "div":
        return zero[0] and finite[1] and not zero[1]
      return any(zero) and all(z or f for z, f in zip(zero, finite, strict=True))
    return op.op in KEEPS_ZERO and all(zero)

  def _masked(self) -> frozenset[int]:
    if self.plan.even:
      return frozenset()
    uses = [self.ops[i] for i in self.used if self.ops[i].op in ("matmul", "sum")]
    return frozenset(a for op in uses for a in op.args if not self._zero_beyond(a))

  # ---- the steps

  def _before(self) -> tuple[do.ThreadStep, ...]:
    """Values without depth, computed once."""
    found: list[do.ThreadStep] = []
    for index in self.used:
      op = self.ops[index]
      if self.deep(index) or constant(op, self.plan.extents) is not None:
        continue
      if op.op == "load":
        found.append(do.Fetch(index, do.Held(index, self.plan.form(op))))
      elif is_elementwise(op.op):
        found.append(do.ThreadRun(index, (index,), self.plan.form(op)))
    return tuple(found)

  def _inside(self) -> list[do.ThreadStep]:
    found: list[do.ThreadStep] = [do.Unpack(i) for i in self.loads if self.floats_needed(i)]
    found += self._computed()
    found += [do.PairProduct(i, pair) for i, pair in self.products.items() if i in self.used]
    for acc in self.accumulators:
      if acc.form is not AccumulatorForm.MMA:
        found.append(do.Update(acc.index))
      elif not self.by_tile:
        found.append(do.Contract(acc.source, acc.index))
    if not self.by_tile:
      return [*found, do.Refill(-1, self.loads)]
    rows = dict.fromkeys(b for _, b in (self._operands(a) for a in self._contracted()))
    found += [do.Pack(b, do.Held(b, self.plan.form(self.ops[b]), packed=True)) for b in rows]
    return [*found, do.Refill(-1, tuple(i for i in self.loads if i not in self.weights))]

  def _computed(self) -> list[do.ThreadStep]:
    """Elementwise ops on fragments: a run over the same tiles shares a loop nest."""
    found: list[do.ThreadStep] = []
    run: list[int] = []

    def end() -> None:
      if run:
        found.append(do.ThreadRun(run[-1], tuple(run), self.plan.form(self.ops[run[0]])))
        run.clear()

    for index in self.used:
      op = self.ops[index]
      apart = index in self.products or (self.by_tile and index in self.scaled)
      if not (is_elementwise(op.op) and self.deep(index)) or apart:
        continue
      if index in self.scaled:
        found.append(do.Widen(index))
        continue
      same = run and self.plan.tiles(self.ops[run[0]]) == self.plan.tiles(op)
      if not same or any(self.ops[a].dtype.is_half for a in op.args if a in run):
        end()
      run.append(index)
    end()
    return found

  def _of_column(self, column: str) -> list[do.ThreadStep]:
    """All products with the weights of one column axis."""
    own = [a for a in self._contracted() if a.column == column]
    found: list[do.ThreadStep] = [do.Widen(i) for i in dict.fromkeys(self._operands(a)[0] for a in own)]
    found += [do.Contract(a.source, a.index) for a in own]
    made = ((acc.index, self._operands(acc)[0]) for acc in own)
    scales = ((acc, self.scaled[i].scales) for acc, i in made if i in self.behind)
    found += [do.Weigh(acc, scale) for acc, scale in scales if scale is not None]
    loads = (i for i in self.weights if self.plan.column_of(self.ops[i]) == column)
    return [*found, do.Refill(-1, tuple(loads))]

  def _contracted(self) -> list[Accumulator]:
    return [a for a in self.accumulators if a.form is AccumulatorForm.MMA]

  def _operands(self, acc: Accumulator) -> tuple[int, int]:
    return operands(self.plan.kernel, self.ops[acc.source])

  @property
  def held(self) -> int:
    """Elements that a lane holds: accumulators of tensor cores, and half of what comes in 16 bits."""
    plan = self.plan
    sums = sum(a.row_tiles * a.column_tiles * 4 for a in self.accumulators if a.form is AccumulatorForm.MMA)
    tiles = {i: prod(n for _, n in plan.tiles(self.ops[i])) for i in self.loads}
    return sums + sum(self.stages(i) * n * plan.lane // 2 for i, n in tiles.items())


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
