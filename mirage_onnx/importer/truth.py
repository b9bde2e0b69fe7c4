"""Comparisons, logic and choice: a boolean is the number 0 or 1."""

from collections.abc import Callable
from fractions import Fraction
from math import prod

from mirage_onnx.importer.context import Context, const, shape_of
from mirage_onnx.importer.elementwise import operands
from mirage_onnx.ir.dtype import DType

#: Elements of a constant that is looked at.
MOST_READ = 1 << 20
_INTEGERS = (DType.I32, DType.I64)


def _function(op: str, *order: int) -> Callable[[Context], None]:
  """``op`` of the operands in this order."""

  def lower(c: Context) -> None:
    values = operands(c, c.as_stored)
    c.finish(c.elementwise(op, *(values[i] for i in order), dtype=DType.BOOL))

  return lower


def _and(c: Context) -> None:
  """The product; what is true everywhere is no operand, only its shape is.

  Exporters say so of queries that see every key, and a mask of keys stays one of keys.
  """
  for position in (0, 1):
    other = c.tensor(1 - position)
    if not c.is_known(position) or c.is_known(1 - position) or not c.tensor(position).is_static:
      continue
    if prod(sizes := shape_of(c.tensor(position))) <= MOST_READ and c.array(position, "flags").all():
      whole = c.broadcast(sizes, shape_of(other))
      c.finish(other if whole == other.shape else c.expand(other, whole))
      return
  _function("mul", 0, 1)(c)


def _not(c: Context) -> None:
  c.finish(c.elementwise("sub", const(1), c.tensor(0)))


def _is_nan(c: Context) -> None:
  """Only NaN is not itself."""
  x = c.tensor(0)
  c.finish(c.elementwise("sub", const(1), c.elementwise("equal", x, x, dtype=DType.BOOL)))


#: Type -> the least number that it rounds to infinity: half a unit beyond its largest.
_OVERFLOW = {DType.F16: (2 - Fraction(1, 2**11)) * 2**15, DType.BF16: (2 - Fraction(1, 2**8)) * 2**127}


def _is_inf(c: Context) -> None:
  """Whether a 16-bit float, or what was cast to or from one, is beyond its type.

  Kernels compute in fp32 and have the number that overflows it.
  """
  x = c.tensor(0)
  limits = [_OVERFLOW[t] for t in c.types(0) if t in _OVERFLOW]
  if not limits:
    raise c.reject(f"{x.name!r} is no 16-bit float, nor cast from one")
  above, below = (c.attribute(f"detect_{sign}", 1) for sign in ("positive", "negative"))
  if not (above or below):
    raise c.reject("neither infinity is detected")
  limit = min(limits)
  if not above:
    c.finish(c.elementwise("less_equal", x, const(-limit), dtype=DType.BOOL))
    return
  size = c.elementwise("abs", x) if below else x
  c.finish(c.elementwise("less_equal", const(limit), size, dtype=DType.BOOL))


def _where(c: Context) -> None:
  values = (c.tensor(0), c.as_stored(1), c.as_stored(2))
  c.finish(c.elementwise("select", *values, dtype=c.output().dtype))


def cast(c: Context) -> None:
  """To the type that inference found for the output; of a number, whether it is not 0.

  What an integer is beyond fp32 is lost in kernels, so no fp64 is made of it; and integers are made
  of booleans only.
  """
  x, want = c.tensor(0), c.output().dtype
  too_wide = want is DType.F64 and x.dtype in _INTEGERS
  if x.dtype is not want and (too_wide or (want in _INTEGERS and x.dtype is not DType.BOOL)):
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
  "And": _and,
  "Or": _function("max", 0, 1),
  "Not": _not,
  "IsNaN": _is_nan,
  "IsInf": _is_inf,
  "Where": _where,
}
