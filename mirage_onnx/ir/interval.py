"""Intervals of the extended reals, and what the operations of programs do to them.

An end of ``Interval(lo, hi)`` at infinity means "no bound", or, for floating point values, "may be
infinite" (``ranges`` tells the two apart). Operations return an interval that holds every result
that exists: where an argument makes it undefined (a root of a negative number) the others are
bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import exp, inf, isinf, log, sqrt

#: exp(x) overflows float64 beyond this; no bound is needed there.
_MOST_EXPONENT = 709.0


@dataclass(frozen=True, slots=True)
class Interval:
  """All reals from ``lo`` to ``hi``."""

  lo: float
  hi: float

  @property
  def magnitude(self) -> float:
    """The largest absolute value."""
    return max(abs(self.lo), abs(self.hi))

  @property
  def bounded(self) -> bool:
    return not isinf(self.lo) and not isinf(self.hi)

  def contains(self, x: float) -> bool:
    return self.lo <= x <= self.hi

  def __and__(self, other: Interval) -> Interval:
    """Both hold, so what they share does; rounding of the ends must not make it empty."""
    lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
    return Interval(lo, hi) if lo <= hi else Interval(min(lo, hi), max(lo, hi))

  def __or__(self, other: Interval) -> Interval:
    """The hull."""
    return Interval(min(self.lo, other.lo), max(self.hi, other.hi))

  def __add__(self, other: Interval) -> Interval:
    return Interval(self.lo + other.lo, self.hi + other.hi)

  def __neg__(self) -> Interval:
    return Interval(-self.hi, -self.lo)

  def __mul__(self, other: Interval) -> Interval:
    ends = [_times(a, b) for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
    return Interval(min(ends), max(ends))

  def scaled(self, most: float) -> Interval:
    """n times the value, for any n from 0 to ``most``: a sum over part of an axis."""
    return Interval(_times(min(self.lo, 0.0), most), _times(max(self.hi, 0.0), most))


REALS = Interval(-inf, inf)
ZERO, ONE = Interval(0.0, 0.0), Interval(1.0, 1.0)
UNIT, SIGNED_UNIT = Interval(0.0, 1.0), Interval(-1.0, 1.0)


def symmetric(bound: float) -> Interval:
  return Interval(-bound, bound)


def _times(a: float, b: float) -> float:
  """0 times an unbounded value is 0: the value itself is a real number."""
  return 0.0 if a == 0.0 or b == 0.0 else a * b


def product(factors: Iterable[Interval]) -> Interval:
  result = ONE
  for f in factors:
    result = result * f
  return result


def power(x: Interval, e: Fraction) -> Interval:
  """``x ** e``; a root of a negative number does not exist."""
  if e < 0:
    return reciprocal(power(x, -e))
  if e.denominator != 1 or e.numerator % 2 == 0:
    if e.denominator != 1:
      x = Interval(max(x.lo, 0.0), max(x.hi, 0.0))
    low = 0.0 if x.contains(0.0) else min(abs(x.lo), abs(x.hi))
    return Interval(_raise(low, e), _raise(x.magnitude, e))
  return Interval(_raise(x.lo, e), _raise(x.hi, e))


def _raise(x: float, e: Fraction) -> float:
  try:
    return float(x ** (e.numerator if e.denominator == 1 else float(e)))
  except OverflowError:
    return inf if x > 0 or e.numerator % 2 == 0 else -inf


def reciprocal(x: Interval) -> Interval:
  if x.lo > 0 or x.hi < 0:
    return Interval(1 / x.hi, 1 / x.lo)
  if x.lo == 0 and x.hi > 0:
    return Interval(1 / x.hi, inf)
  if x.hi == 0 and x.lo < 0:
    return Interval(-inf, 1 / x.lo)
  return REALS


def exponential(x: Interval) -> Interval:
  return Interval(*(exp(v) if v < _MOST_EXPONENT else inf for v in (x.lo, x.hi)))


def logarithm(x: Interval) -> Interval:
  return Interval(*(log(v) if 0 < v < inf else (inf if v > 0 else -inf) for v in (x.lo, x.hi)))


def sigmoid(v: float) -> float:
  """1 / (1 + exp(-v))."""
  return 1 / (1 + exp(-v)) if v > -_MOST_EXPONENT else 0.0


def monotone(fn: Callable[[float], float]) -> Callable[[Interval], Interval]:
  """Of a function that never falls, which ``fn`` says at infinity too."""
  return lambda x: Interval(fn(x.lo), fn(x.hi))


def absolute(x: Interval) -> Interval:
  return Interval(max(x.lo, -x.hi, 0.0), x.magnitude)


def larger(a: Interval, b: Interval) -> Interval:
  return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


def smaller(a: Interval, b: Interval) -> Interval:
  return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


def within(bounds: Interval) -> Callable[..., Interval]:
  """Of a function that is never outside of ``bounds``."""
  return lambda *_: bounds


def root_of_sum(count: float, magnitude: float) -> float:
  """The 2-norm of ``count`` values of at most ``magnitude``."""
  return sqrt(count) * magnitude if magnitude else 0.0
