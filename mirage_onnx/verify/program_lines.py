"""A µGraph as lines, one per value and saved tensor: what the analysis of ranges follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from mirage_onnx.ir import DType, UGraph
from mirage_onnx.ir.block_ops import OPERATORS, OVER_LOOP, SUM, Kind
from mirage_onnx.ir.term import Term
from mirage_onnx.verify.symbolic import block_values


@dataclass(frozen=True, slots=True)
class Line:
  """One value of ``kernel``: an operation of ``ir.ugraph`` on earlier lines, by name.

  ``term``: what it is, exactly; ``marks``: the parts its elements are in (``symbolic``);
  ``summed``: axes of which elements are added up (an upper bound of how many is their extent).
  A load without arguments reads the input ``source``.
  """

  name: str
  kernel: str
  op: str
  args: tuple[str, ...]
  dtype: DType
  term: Term | None
  marks: frozenset[str] = frozenset()
  summed: tuple[str, ...] = ()
  source: str = ""
  exponent: Fraction | None = None

  def count(self, extents: Mapping[str, int]) -> int:
    """The most elements that are added up."""
    return prod(extents[a] for a in self.summed)


def ugraph_lines(graph: UGraph) -> tuple[Line, ...]:
  """A line per block value (``%3 of kernel k0``) and per saved tensor (its name)."""
  values = block_values(graph)
  inputs = {x.name for x in graph.tensors if x.role in ("input", "weight")}
  lines = []
  for kernel in graph.kernels:
    for n, op in enumerate(kernel.ops):
      value = values[kernel.name, n]
      args = tuple(block_name(a, kernel.name) for a in op.args)
      if op.op == "load" and op.tensor not in inputs:
        args = (op.tensor,)
      summed = tuple(a.partition("/")[0] for a in op.reduced)
      over, row = None, OPERATORS.get(op.op)
      if row and row.merge is SUM:
        over = kernel.cluster if row.kind is Kind.CLUSTER else kernel.loop if row.kind in OVER_LOOP else None
      if over:
        summed = (over.partition("/")[0],)
      exponent = op.value if op.op == "powr" and isinstance(op.value, Fraction) else None
      lines.append(
        Line(
          block_name(n, kernel.name), kernel.name, op.op, args, op.dtype, value.term,
          value.marks, summed, op.tensor, exponent,
        )
      )  # fmt: skip
    for save in kernel.saves:
      value = values[kernel.name, save.arg]
      args = (block_name(save.arg, kernel.name),)
      dtype = graph.tensor(save.tensor).dtype
      name = save.tensor
      lines.append(Line(name, kernel.name, "cast", args, dtype, value.term, value.marks))
  return tuple(lines)


def block_name(index: int, kernel: str) -> str:
  """What messages call a block value."""
  return f"%{index} of kernel {kernel}"
