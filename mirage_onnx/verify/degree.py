"""Degrees: how large the polynomials are that a program evaluates, element by element.

An element of a program is a quotient of two polynomials. A ``Size`` bounds four degrees from above:

    value   of numerator and denominator in the variables of Z_p; a function value is a variable of
            degree 1, a maximum too;
    shift   of numerator and denominator, the largest sum over a monomial's maxima of |exponent|.

``Linear`` describes what exp makes of the value in ``free_exponential``: the monomial of its maxima
and the quotient that its logarithms are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from mirage_onnx.ir import term as t
from mirage_onnx.ir.block_ops import SUM, Merge
from mirage_onnx.ir.functions import DEFINED, EXPONENTS, EXTREMES, by_definition, to_term
from mirage_onnx.ir.term import Term


@dataclass(frozen=True, slots=True)
class Ratio:
  """Degrees of a quotient of polynomials."""

  n: int = 0
  d: int = 0

  def plus(self, other: Ratio) -> Ratio:
    return Ratio(max(self.n + other.d, other.n + self.d), self.d + other.d)

  def times(self, other: Ratio) -> Ratio:
    return Ratio(self.n + other.n, self.d + other.d)

  def power(self, e: int) -> Ratio:
    n, d = self.n * abs(e), self.d * abs(e)
    return Ratio(n, d) if e > 0 else Ratio(d, n)

  def total(self, denominators: int) -> Ratio:
    """The sum of values that have ``denominators`` different denominators."""
    return Ratio(self.n + (denominators - 1) * self.d, denominators * self.d)

  @property
  def larger(self) -> int:
    return max(self.n, self.d)


@dataclass(frozen=True, slots=True)
class Size:
  """Degrees in Z_p and in the powers of omega."""

  value: Ratio = Ratio()
  shift: Ratio = Ratio()

  def plus(self, other: Size) -> Size:
    return Size(self.value.plus(other.value), self.shift.plus(other.shift))

  def times(self, other: Size) -> Size:
    return Size(self.value.times(other.value), self.shift.times(other.shift))

  def power(self, e: int) -> Size:
    return Size(self.value.power(e), self.shift.power(e))

  def total(self, denominators: int) -> Size:
    return Size(self.value.total(denominators), self.shift.total(denominators))


ONE = Size()
VARIABLE = Size(Ratio(1, 0))


@dataclass(frozen=True, slots=True)
class Linear:
  """exp of the maxima and logarithms of a value.

  ``weight``: sum over the maxima of |whole coefficient|; ``scales``: the constants that multiply
  them, each with its degree; ``logs``: size of exp of the logarithms.
  """

  weight: int = 0
  scales: frozenset[tuple[Term, int]] = frozenset()
  logs: Size = ONE

  def plus(self, other: Linear, sign: int = 1) -> Linear:
    logs = self.logs.times(other.logs.power(sign))
    return Linear(self.weight + other.weight, self.scales | other.scales, logs)

  def scaled(self, c: Degree) -> Linear:
    assert c.constant is not None
    factor = t.rational(c.constant)
    if factor is not None and factor.denominator == 1 and factor != 0:
      n = int(factor)
      return Linear(self.weight * abs(n), self.scales, self.logs.power(n))
    degree = c.size.value.larger
    scales = frozenset((_unsigned(t.mul(c.constant, s)), degree + d) for s, d in self.scales)
    return Linear(self.weight, scales, ONE)

  def total(self, count: int) -> Linear:
    return Linear(self.weight * count, self.scales, self.logs.power(count))


def _unsigned(c: Term) -> Term:
  factor = t.rational(c.args[0] if c.op == t.MUL else c)
  return t.mul(t.const(-1), c) if factor is not None and factor < 0 else c


PLAIN = Linear()
A_MAXIMUM = Linear(1, frozenset({(t.const(1), 0)}))


@dataclass(frozen=True, slots=True)
class Past:
  """What the functions under a value were called with.

  ``value``, ``shift``: the largest degree of numerator or denominator of an argument; ``scales``:
  the constants that multiplied maxima in exponents, each with its degree.
  """

  value: int = 0
  shift: int = 0
  scales: frozenset[tuple[Term, int]] = frozenset()

  def union(self, other: Past) -> Past:
    value, shift = max(self.value, other.value), max(self.shift, other.shift)
    return Past(value, shift, self.scales | other.scales)


@dataclass(frozen=True, slots=True)
class Degree:
  """One element of a value.

  ``varies``: the axes over which the denominator varies. ``constant``: the value, where it is
  one.
  """

  size: Size
  axes: frozenset[str] = frozenset()
  past: Past = Past()
  linear: Linear = PLAIN
  varies: frozenset[str] = frozenset()
  constant: Term | None = field(default=None, compare=False)

  def call(self, size: Size = VARIABLE, linear: Linear = PLAIN) -> Degree:
    """A function of the value, of this size."""
    here = Past(max(self.size.value.larger, 1), self.size.shift.larger)
    return Degree(size, self.axes, self.past.union(here), linear)


class DegreeAlgebra:
  """Degrees of all values of a program (``fold``); ``shifts``: in the free exponential."""

  def __init__(self, *, shifts: bool = True) -> None:
    self._shifts = shifts

  def input(self, name: str, axes: tuple[str, ...]) -> Degree:
    return Degree(VARIABLE, frozenset(axes))

  def constant(self, value: Fraction | str) -> Degree:
    size = VARIABLE if isinstance(value, str) else ONE
    return Degree(size, constant=t.const(value))

  def extent(self, axes: tuple[str, ...]) -> Degree:
    return Degree(ONE, constant=t.extent(axes))

  def elementwise(self, op: str, args: Sequence[Degree]) -> Degree:
    if op in DEFINED:
      return by_definition(op, args, self, lambda name, *values: self.elementwise(name, values))
    if op == "div":
      return self.elementwise("mul", (args[0], self.power(args[1], Fraction(-1))))
    if op in EXPONENTS:
      return self.power(args[0], EXPONENTS[op])
    result = self._elementwise(op, args)
    linear = result.linear if self._shifts else PLAIN
    constants = [a.constant for a in args]
    known = [c for c in constants if c is not None]
    constant = to_term(op, *known) if len(known) == len(args) else None
    return replace(result, linear=linear, constant=constant)

  def _elementwise(self, op: str, args: Sequence[Degree]) -> Degree:
    x = args[0]
    if op in ("add", "sub"):
      linear = x.linear.plus(args[1].linear, 1 if op == "add" else -1)
      return _joined(args, x.size.plus(args[1].size), linear)
    if op == "mul":
      linear = PLAIN
      for c, v in (args, args[::-1]):
        if c.constant is not None:
          linear = v.linear.scaled(c)
      return _joined(args, x.size.times(args[1].size), linear)
    if op == "neg":
      return _joined(args, x.size, PLAIN.plus(x.linear, -1))
    if op == "exp":
      return self._exp(x)
    if op == "log":
      return x.call(linear=Linear(logs=x.size))
    result = x.call(linear=A_MAXIMUM if op in EXTREMES else PLAIN)
    for a in args[1:]:
      past = result.past.union(a.call().past)
      result = replace(result, axes=result.axes | a.axes, past=past)
    return result

  def _exp(self, x: Degree) -> Degree:
    linear = x.linear if self._shifts else PLAIN
    result = x.call(exponential_size(linear))
    return replace(result, past=result.past.union(Past(scales=linear.scales)))

  def power(self, x: Degree, e: Fraction) -> Degree:
    constant = None if x.constant is None else t.power(x.constant, e)
    if e.denominator != 1:
      root = x.call()
      return replace(self.power(root, Fraction(e.numerator)), constant=constant)
    varies = x.varies | (x.axes if e < 0 else frozenset())
    return Degree(x.size.power(int(e)), x.axes, x.past, PLAIN, varies, constant)

  def total(self, x: Degree, axes: Mapping[str, int]) -> Degree:
    different = prod(n for a, n in axes.items() if a in x.varies)
    size = x.size.total(different)
    gone = frozenset(axes)
    linear = x.linear.total(prod(axes.values()))
    return replace(x, size=size, axes=x.axes - gone, linear=linear, varies=x.varies - gone, constant=None)

  def highest(self, x: Degree, axes: Mapping[str, int]) -> Degree:
    top = self._elementwise("max", (x,))
    return replace(top, axes=x.axes - frozenset(axes))

  def repeated(self, merge: Merge, x: Degree, times: int) -> Degree:
    if merge is SUM:
      return replace(x, size=x.size.total(times), linear=x.linear.total(times), constant=None)
    return self._elementwise("max", (x,))

  def rescaled(self, x: Degree, f: Degree, times: int) -> Degree:
    result = x
    for _ in range(times - 1):
      result = self.elementwise("add", (self.elementwise("mul", (result, f)), x))
    return replace(result, constant=None)


def exponential_size(linear: Linear) -> Size:
  """exp of a value: a random function of the rest, times its maxima and logarithms."""
  return VARIABLE.times(Size(Ratio(), Ratio(linear.weight, 0))).times(linear.logs)


def _joined(args: Sequence[Degree], size: Size, linear: Linear) -> Degree:
  axes = frozenset[str]().union(*(a.axes for a in args))
  varies = frozenset[str]().union(*(a.varies for a in args))
  past = Past()
  for a in args:
    past = past.union(a.past)
  return Degree(size, axes, past, linear, varies)
