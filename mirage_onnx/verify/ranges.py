"""What the values of a program can be in floating point, given the ranges of its inputs.

Every line of a program (a block value, a saved tensor) gets the interval of its floating point
value: what ``term_bounds`` proves of its term, or plain interval arithmetic where there is none.
Beyond fp32 IEEE arithmetic is followed as long as it is right: 1 / (1 + inf) = 0 is (a sigmoid);
inf - inf, 0 * inf and inf / inf are NaN, and 1 / sqrt(inf) = 0 is wrong (of 1e40 it is 1e-20). Such
a value is *lost*, and so is one that overflows fp16: 1 / 65504 is not 0.

An original may hide an overflow of fp16, as in x / sqrt(mean(x x)) for |x| > 256: its row is 0, which is
wrong, but a number. With ``hides`` such values are *over*, exact or +inf, and what divides by them is exact
or 0. That says where an original is finite, and candidates have to be; it need not be sound for that.

Intervals are of exact values: an overflow by rounding alone is left to ``check_numerics``. A
divisor that can be 0 exactly is 0 where the region divides by 0 as well, and elsewhere taken to be
one that its type keeps; one that is never 0, but smaller than that, may be rounded to 0, and its
quotient has no bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import ml_dtypes

from mirage_onnx.ir import interval as iv
from mirage_onnx.ir.block_ops import MAXIMA, SUMS, Kind, kind_of
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import ELEMENTWISE, divides_by_last
from mirage_onnx.ir.interval import Interval
from mirage_onnx.ir.rows import covered
from mirage_onnx.verify.domain import LOWEST
from mirage_onnx.verify.program_lines import Line
from mirage_onnx.verify.term_bounds import Bounds

#: Operations whose result is one of the values of their argument.
_SAME = frozenset(("load", "cast")) | MAXIMA

#: What an infinite last argument makes 0, and what one makes infinite, of numbers that are not negative.
_DIVIDES = frozenset(("div", "recip", "rsqrt"))
_GROWS = _SAME | {"add", "mul", "square", "sqrt"}

#: Half the reciprocal of the smallest normal fp32 number; what exceeds it has the reciprocal 0.
_RECIPROCAL_IS_0 = 2.0**126


def finfo(dtype: DType) -> Any:
  """The limits of a float type, as ``numpy.finfo``; of other types those of fp32."""
  if not dtype.is_float:
    dtype = DType.F32
  return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]


def largest(dtype: DType) -> float:
  """The largest finite number of a float type."""
  return float(finfo(dtype).max)


def least(dtype: DType) -> float:
  """The smallest positive number that is surely kept: of fp16, subnormal ones are."""
  limits = finfo(dtype)
  return float(limits.smallest_subnormal if dtype is DType.F16 else limits.tiny)


@dataclass(frozen=True, slots=True)
class Reach:
  """What a value can be: its interval, whether it may be lost, and the line where that began.

  ``vanishes``: it is never 0, but may be rounded to 0. ``over``: it is what it should be, or +inf.
  """

  interval: Interval
  dtype: DType
  vanishes: bool = False
  lost: bool = False
  origin: str = ""
  over: bool = False

  @property
  def finite(self) -> bool:
    return self.interval.bounded and not self.lost


def follow(lines: Sequence[Line], bounds: Bounds, *, hides: bool = False) -> dict[str, Reach]:
  """Line -> what it can be; ``hides``: values of fp16 that overflow are not lost, but over."""
  reach: dict[str, Reach] = {}
  for line in lines:
    args = [reach[a] for a in line.args]
    if line.op == "load" and not args:
      exact, lost = bounds.facts[line.source].range, False
    elif any(a.over for a in args):
      exact, lost = _beyond(line, args, bounds)
    else:
      exact, lost = _apply(line, args, bounds)
    most = largest(line.dtype)
    kept = Interval(exact.lo if exact.lo >= -most else -inf, exact.hi if exact.hi <= most else inf)
    origin = next((a.origin for a in args if a.origin), "")
    over = hides and not lost and most < _RECIPROCAL_IS_0 and kept.lo > -inf and kept.hi == inf
    over = over or (not lost and any(a.over for a in args) and not kept.bounded)
    lost = lost or (not kept.bounded and most < _RECIPROCAL_IS_0 and not over)
    if not origin and (lost or not kept.bounded):
      origin = line.name
    vanishes = 0 < exact.lo < least(line.dtype) or -least(line.dtype) < exact.hi < 0
    kept = iv.REALS if lost else kept | iv.ZERO if vanishes else kept
    reach[line.name] = Reach(kept, line.dtype, vanishes, lost, origin, over)
  return reach


def _apply(line: Line, args: Sequence[Reach], bounds: Bounds) -> tuple[Interval, bool]:
  """The interval before rounding, and whether the value may be lost."""
  x = [a.interval for a in args]
  negative = line.exponent is not None and line.exponent < 0
  divides = negative or (line.op in ELEMENTWISE and divides_by_last(line.op))
  if divides and args[-1].finite and not args[-1].vanishes:
    x[-1] = _normal(x[-1], args[-1].dtype)
  plain = _interval(line, x, bounds)
  lost = any(a.lost for a in args) or any(v != v for v in (plain.lo, plain.hi))
  if all(a.finite for a in args):
    if line.term is not None:
      plain = plain & bounds.within(line.marks).interval(line.term)
  else:
    lost = lost or _loses(line, x)
  return plain, lost


def _beyond(line: Line, args: Sequence[Reach], bounds: Bounds) -> tuple[Interval, bool]:
  """As ``_apply``, where an argument is over: that of a divisor ends there, others go on."""
  if line.term is None or any(a.lost for a in args):
    return iv.REALS, True
  exact = bounds.within(line.marks).interval(line.term)
  if line.op in _DIVIDES and not any(a.over for a in args[:-1]):
    return exact | iv.ZERO, False
  grows = line.op in _GROWS or line.op in SUMS or (line.exponent is not None and line.exponent > 0)
  grows = grows or (line.op == "div" and not args[-1].over)
  signed = line.op in ("mul", "div") and any(a.interval.lo <= 0.0 for a in args if not a.over)
  return Interval(exact.lo, inf), not grows or signed or exact.lo == -inf


def _normal(x: Interval, dtype: DType) -> Interval:
  """A divisor that is not 0; one of either sign is left as it is."""
  small = least(dtype)
  if x.lo >= 0:
    return Interval(max(x.lo, small), max(x.hi, small))
  return Interval(min(x.lo, -small), min(x.hi, -small)) if x.hi <= 0 else x


def _interval(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  kind = kind_of(line.op)
  return ELEMENTWISE[line.op].interval(*x) if kind is None else _RULES[kind](line, x, bounds)


def _same(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  return x[0]


def _constant(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  assert line.term is not None
  return bounds.interval(line.term)


def _pointwise(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  return x[0] if line.exponent is None else iv.power(x[0], line.exponent)


def _product(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  return (x[0] * x[1]).scaled(line.count(bounds.extents))


def _merged(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  return x[0] if line.op in MAXIMA else x[0].scaled(line.count(bounds.extents))


def _rescaled(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  shrinks = x[1].lo >= 0.0 and x[1].hi <= 1.0
  return x[0].scaled(line.count(bounds.extents)) if shrinks else iv.REALS


def _previous(line: Line, x: Sequence[Interval], bounds: Bounds) -> Interval:
  """Before the first iteration a maximum is the lowest number; a sum is nothing, which its bounds hold."""
  return x[0] | Interval(LOWEST, LOWEST)


#: Kind of operator -> interval of its value, by line, intervals of the arguments and bounds.
_RULES = covered("verify/ranges.py", {
  Kind.LOAD: _same,
  Kind.CONSTANT: _constant,
  Kind.POINTWISE: _pointwise,
  Kind.CONTRACTION: _product,
  Kind.REDUCTION: _merged,
  Kind.ACCUMULATOR: _merged,
  Kind.RESCALED: _rescaled,
  Kind.RUNNING: _merged,
  Kind.PREVIOUS: _previous,
  Kind.CLUSTER: _merged,
}, Kind)  # fmt: skip


def _loses(line: Line, x: Sequence[Interval]) -> bool:
  """Can the result be NaN or far from the truth, where an argument may be infinite?"""
  if line.op in ELEMENTWISE:
    return ELEMENTWISE[line.op].loses(*x)
  if line.op in SUMS:
    return x[0].hi == inf and x[0].lo == -inf
  if line.op == "powr":
    assert line.exponent is not None
    return line.exponent.denominator != 1 or (line.exponent < 0 and x[0].contains(0.0))
  return line.op not in _SAME and kind_of(line.op) is not Kind.PREVIOUS
