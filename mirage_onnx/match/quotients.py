"""Quotients that are 0 where they are no number: the weights of rows in which nothing is seen.

Exporters write ``where(p != p, 0, p)`` behind p = e / sum e, e = exp(x - max x): of a row whose x are all
-inf, p is NaN. Over the numbers of the algebra p always is itself, so a comparison of p with p is no
equation that anything could be moved across. Here the same without NaN, L the least number of fp32:

    where(p != p, 0, p)  ->  e / max(sum e, 1/2),  e = exp(x - max max(x, L))

The maximum is a number, so of x = -inf e is 0. Where some x is a number, the largest e is 1 and the sum
at least 1, or nearly, if a kernel computes x once for the maximum and again for e; where none is, e and
the sum are 0. The divisor varies over rows only, so a sum over the row may come before it. Where all x are
known to be numbers the guard is left to ``guards.py``, which drops it.
"""

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

from mirage_onnx.importer.dot_products import LEAST
from mirage_onnx.ir import Constant, DType, Step, Tensor
from mirage_onnx.ir.program import Dim
from mirage_onnx.match.guards import BOUNDED

HALF = Constant(Fraction(1, 2))

Makers = Mapping[str, Step]
Shape = tuple[Dim, ...] | None


#: Steps whose results are numbers where what they read are, as ``guards.is_number`` has it of terms.
_OF_NUMBERS = BOUNDED | {
  "add",
  "sub",
  "mul",
  "neg",
  "cast",
  "reshape",
  "transpose",
  "expand",
  "slice",
  "concat",
}


def defined(steps: Sequence[Step], outputs: Sequence[str], finite: Collection[str]) -> list[Step]:
  """``steps`` that yield ``outputs``, where a quotient that may be no number is never computed.

  ``finite``: the inputs and constants that no number is missing from.
  """
  makers = {s.output.name: s for s in steps}
  made: list[Step] = []
  changed, numbers = False, set(finite)
  for step in steps:
    read = (i for i in step.inputs if isinstance(i, str))
    if step.op == "matmul" or (step.op in _OF_NUMBERS and numbers.issuperset(read)):
      numbers.add(step.output.name)
    terms = _terms(step, makers)
    if terms and terms[0].inputs[0] in numbers:
      terms = None
    made += _guarded(step, *terms) if terms else [step]
    changed |= terms is not None
  return _read(made, outputs) if changed else made


def _terms(step: Step, makers: Makers) -> tuple[Step, Step] | None:
  """The maximum and the sum of exponentials of a quotient that ``step`` replaces by 0 where it is NaN."""
  if step.op != "select":
    return None
  condition, there, other = step.inputs
  asked = _maker(condition, makers)
  while asked and asked.op == "sub" and _is(asked.inputs[0], 1):
    there, other = other, there
    asked = _maker(asked.inputs[1], makers)
  if asked is None or asked.op != "equal" or asked.inputs != (there, there) or not _is(other, 0):
    return None
  return _softmax(there, makers)


def _is(x: object, number: int) -> bool:
  return isinstance(x, Constant) and (x.base, x.exponent) == (number, 1)


def _maker(x: object, makers: Makers) -> Step | None:
  return makers.get(x) if isinstance(x, str) else None


def _softmax(x: object, makers: Makers) -> tuple[Step, Step] | None:
  step = _maker(x, makers)
  while step and step.op == "cast":
    step = _maker(step.inputs[0], makers)
  if step is None or step.op != "div":
    return None
  e, total = (_maker(i, makers) for i in step.inputs)
  if not (e and total and e.op == "exp" and total.op == "sum" and total.inputs == (e.output.name,)):
    return None
  shifted = _maker(e.inputs[0], makers)
  most = _maker(shifted.inputs[1], makers) if shifted and shifted.op == "sub" else None
  if not (shifted and most and most.op == "rmax" and most.inputs == shifted.inputs[:1]):
    return None
  return (most, total) if most.attr == total.attr and most.output.dtype is DType.F32 else None


def _guarded(step: Step, most: Step, total: Step) -> list[Step]:
  """The value of ``step`` by other steps, which have names of their own."""
  name, wide, row = step.output.name, step.output.shape, most.output.shape
  made: list[Step] = []

  def emit(op: str, *inputs: str | Constant, over: Step | None = None, shape: Shape = wide) -> str:
    output = Tensor(f"{name}:{len(made)}", DType.F32, row if over else shape)
    made.append(Step(op, inputs, output, over.attr if over else None))
    return output.name

  x = str(most.inputs[0])
  peak = emit("rmax", emit("max", x, LEAST), over=most)
  e = emit("exp", emit("sub", x, peak))
  divisor = emit("max", emit("sum", e, over=total), HALF, shape=row)
  p = emit("div", e, divisor)
  made.append(Step("cast", (p,), step.output, step.output.dtype))
  return made


def _read(steps: Sequence[Step], outputs: Sequence[str]) -> list[Step]:
  """Those of ``steps`` that ``outputs`` depend on."""
  wanted, found = set(outputs), list[Step]()
  for step in reversed(steps):
    if step.output.name in wanted:
      wanted |= {i for i in step.inputs if isinstance(i, str)}
      found.append(step)
  return found[::-1]
