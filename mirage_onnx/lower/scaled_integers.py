"""Operands that a kernel makes of packed integers, their zero points and their scales.

A product of integers with their scale that is rounded to 16 bits is made in 16 bits: an integer of 8
bits, and the difference of two, is exact there, so the product is the fp32 one, rounded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.ir import BlockOp, DType, UGraph
from mirage_onnx.lower.dataflow import cast_load


@dataclass(frozen=True, slots=True)
class Scaled:
  """Values that are integers, less their zero points, times their scales: the loads of the three.

  Without scales they are the integers, which 16 bits hold exactly; a scale of one leaves them so.
  """

  integers: int
  half: DType
  scales: int | None = None
  zeros: int | None = None

  @property
  def loads(self) -> tuple[int, ...]:
    return tuple(i for i in (self.integers, self.scales, self.zeros) if i is not None)


def scaled_integers(graph: UGraph, ops: Sequence[BlockOp]) -> dict[int, Scaled]:
  """Operands of 16 bits that are such products, by index."""
  found = {}
  for index, op in enumerate(ops):
    if op.op != "cast" or not op.dtype.is_half:
      continue
    pairs: list[tuple[int | None, int]] = [(None, op.args[0])]
    if ops[op.args[0]].op == "mul":
      pairs += _both(ops[op.args[0]].args)
    made = (_scaled(graph, ops, op, *pair) for pair in pairs)
    if (first := next((m for m in made if m), None)) is not None:
      found[index] = first
  return found


def _both(args: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
  return (args[0], args[1]), (args[1], args[0])


def _scaled(
  graph: UGraph, ops: Sequence[BlockOp], op: BlockOp, scale: int | None, integer: int
) -> Scaled | None:
  scales = None
  if scale is not None:
    scales = cast_load(ops, scale)
    if scales is None or ops[scales].dtype is not op.dtype or graph.tensor(ops[scales].tensor).repeat == 1:
      return None
  pair = _difference(ops, integer)
  if pair is None:
    return None
  tensors = [graph.tensor(ops[i].tensor) for i in pair if i is not None]
  if not all(t.dtype is tensors[0].dtype and t.dtype.is_packed for t in tensors):
    return None
  if tensors[0].repeat > 1 or any(t.repeat == 1 for t in tensors[1:]):
    return None
  if scales is None and op.dtype is DType.BF16 and tensors[0].dtype.bits > 4 and tensors[1:]:
    return None  # differences of two bytes are no bf16
  return Scaled(pair[0], op.dtype, scales, pair[1])


def _difference(ops: Sequence[BlockOp], index: int) -> tuple[int, int | None] | None:
  """The loads a and b of a value a - b, or a alone."""
  if (alone := cast_load(ops, index)) is not None:
    return alone, None
  op = ops[index]
  if op.op == "sub":
    a, b = (cast_load(ops, i) for i in op.args)
    return (a, b) if a is not None and b is not None else None
  if op.op == "add":
    for x, y in _both(op.args):
      a, b = cast_load(ops, x), _negated(ops, y)
      if a is not None and b is not None:
        return a, b
  return None


def _negated(ops: Sequence[BlockOp], index: int) -> int | None:
  op = ops[index]
  if op.op == "neg":
    return cast_load(ops, op.args[0])
  if op.op == "mul":
    for x, y in _both(op.args):
      if ops[x].op == "const" and ops[x].value == -1:
        return cast_load(ops, y)
  return None
