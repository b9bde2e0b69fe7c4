"""Comparisons, logic and choice: a boolean is the number 0 or 1.

IsInf has no rule: kernels compute in fp32, where what overflows fp16 is no infinity.
"""

from collections.abc import Callable

from mirage_onnx.importer.context import Context, const
from mirage_onnx.importer.elementwise import operands
from mirage_onnx.ir.dtype import DType

_INTEGERS = (DType.I32, DType.I64)


def _function(op: str, *order: int) -> Callable[[Context], None]:
  """``op`` of the operands in this order."""

  def lower(c: Context) -> None:
    values = operands(c)
    c.finish(c.elementwise(op, *(values[i] for i in order), dtype=DType.BOOL))

  return lower


def _not(c: Context) -> None:
  c.finish(c.elementwise("sub", const(1), c.tensor(0)))


def _is_nan(c: Context) -> None:
  """Only NaN is not itself."""
  x = c.tensor(0)
  c.finish(c.elementwise("sub", const(1), c.elementwise("equal", x, x, dtype=DType.BOOL)))


def _where(c: Context) -> None:
  values = (c.tensor(0), c.operand(1), c.operand(2))
  c.finish(c.elementwise("select", *values, dtype=c.output().dtype))


def cast(c: Context) -> None:
  """To the type that inference found for the output; of a number, whether it is not 0.

  What an integer is beyond fp32 is lost in kernels, so no fp64 is made of it.
  """
  x, want = c.tensor(0), c.output().dtype
  too_wide = want is DType.F64 and x.dtype in _INTEGERS
  if x.dtype is not want and (too_wide or want in _INTEGERS):
    raise c.reject(f"{c.output().name!r} is {want}", "DTYPE")
  if want is DType.BOOL and x.dtype is not DType.BOOL:
    x = c.elementwise("sub", const(1), c.elementwise("equal", x, const(0), dtype=DType.BOOL))
  c.finish(x)


#: ONNX operator -> rule.
RULES: dict[str, Callable[[Context], None]] = {
  "Less": _function("less", 0, 1),
  "LessOrEqual": _function("less_equal", 0, 1),
  "Greater": _function("less", 1, 0),
  "GreaterOrEqual": _function("less_equal", 1, 0),
  "Equal": _function("equal", 0, 1),
  "And": _function("mul", 0, 1),
  "Or": _function("max", 0, 1),
  "Not": _not,
  "IsNaN": _is_nan,
  "Where": _where,
}
