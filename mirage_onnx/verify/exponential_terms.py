"""How many exponentials stand side by side in one element of a program.

An element of a program without nested exponentials is sum_i f_i exp(g_i) / sum_j h_j exp(k_j).
``Terms`` bounds the two numbers of terms, and how many exponentials are multiplied in one term.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from mirage_onnx.ir.block_ops import SUM, Merge
from mirage_onnx.ir.functions import DEFINED, EXPONENTS, by_definition
from mirage_onnx.verify.degree import Ratio

#: Counts are cut off here: no number of draws decides so many.
MANY = 1 << 40


NONE = Ratio()


@dataclass(frozen=True, slots=True)
class Terms:
  """Terms of numerator and denominator; ``factors``: exponentials in one of them."""

  numerator: int = 1
  denominator: int = 1
  factors: Ratio = NONE
  axes: frozenset[str] = frozenset()
  varies: frozenset[str] = frozenset()

  @property
  def bare(self) -> bool:
    """There is no exponential in it."""
    return self.factors == NONE


def differences(x: Terms, y: Terms) -> tuple[int, int]:
  """Terms of the numerator of x - y, and exponentials in one of them."""
  count = x.numerator * y.denominator + y.numerator * x.denominator
  factors = max(x.factors.n + y.factors.d, y.factors.n + x.factors.d)
  return (min(count, MANY), factors) if factors else (1, 0)


class TermsAlgebra:
  """Counts the exponential terms of all values of a program (``fold``)."""

  def input(self, name: str, axes: tuple[str, ...]) -> Terms:
    return Terms(axes=frozenset(axes))

  def constant(self, value: Fraction | str) -> Terms:
    return Terms()

  def extent(self, axes: tuple[str, ...]) -> Terms:
    return Terms()

  def elementwise(self, op: str, args: Sequence[Terms]) -> Terms:
    if op in DEFINED:
      return by_definition(op, args, self, lambda name, *values: self.elementwise(name, values))
    axes = frozenset[str]().union(*(a.axes for a in args))
    varies = frozenset[str]().union(*(a.varies for a in args))
    x = args[0]
    match op:
      case "add" | "sub":
        count, _ = differences(x, args[1])
        bottom = min(x.denominator * args[1].denominator, MANY)
        return Terms(count, bottom, x.factors.plus(args[1].factors), axes, varies)
      case "mul":
        top = min(x.numerator * args[1].numerator, MANY)
        bottom = min(x.denominator * args[1].denominator, MANY)
        return Terms(top, bottom, x.factors.times(args[1].factors), axes, varies)
      case "div":
        return self.elementwise("mul", (x, self.power(args[1], Fraction(-1))))
      case "neg":
        return x
      case "exp":
        return Terms(1, 1, Ratio(1, 0), axes)
      case _ if op in EXPONENTS:
        return self.power(x, EXPONENTS[op])
    return Terms(axes=axes)

  def power(self, x: Terms, e: Fraction) -> Terms:
    if e.denominator != 1:
      return Terms(axes=x.axes)
    n = abs(int(e))
    top, bottom = (min(c**n, MANY) if n < 64 else MANY for c in (x.numerator, x.denominator))
    if x.bare:
      top = bottom = 1
    varies = x.varies | (x.axes if e < 0 else frozenset())
    top, bottom = (top, bottom) if e > 0 else (bottom, top)
    return Terms(top, bottom, x.factors.power(int(e)), x.axes, varies)

  def total(self, x: Terms, axes: Mapping[str, int]) -> Terms:
    different = prod(n for a, n in axes.items() if a in x.varies)
    gone = frozenset(axes)
    return replace(_sum(x, prod(axes.values()), different), axes=x.axes - gone, varies=x.varies - gone)

  def highest(self, x: Terms, axes: Mapping[str, int]) -> Terms:
    return Terms(axes=x.axes - frozenset(axes))

  def repeated(self, merge: Merge, x: Terms, times: int) -> Terms:
    return _sum(x, times, times) if merge is SUM else Terms(axes=x.axes)

  def rescaled(self, x: Terms, f: Terms, times: int) -> Terms:
    result = x
    for _ in range(times - 1):
      result = self.elementwise("add", (self.elementwise("mul", (result, f)), x))
    return result


def _sum(x: Terms, count: int, denominators: int) -> Terms:
  if x.bare:
    return x
  factors = x.factors.total(denominators)
  if x.denominator == 1:
    return replace(x, numerator=min(count * x.numerator, MANY), factors=factors)
  others = min(x.denominator ** min(denominators - 1, 64), MANY)
  top = min(count * x.numerator * others, MANY)
  return replace(x, numerator=top, denominator=min(others * x.denominator, MANY), factors=factors)
