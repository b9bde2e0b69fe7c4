"""Bounds of terms: interval arithmetic, and the relations that plain intervals lose.

``x / sqrt(mean(x^2) + eps)`` is bounded though x is not, because the denominator knows the
numerator. The rules here see that on the term DAG; K are axes, |x|_K the 2-norm over them, N >= 0.

    shift       c y - c max_K(y) <= 0;  m_t - m_last <= 0 of a maximum over parts
    attained    sum_K exp(y - max_K(y)) >= 1
    Cauchy      |sum_K x y| <= |x|_K |y|_K
    quotient    N^p (c sum_K N + r)^-p <= c^-p  for p > 0, r >= 0  (p = 1/2: |x| <= |x|_K)
    mean        sum_K(N y) (c sum_K N + r)^-1  lies in the hull of y / c (and of 0 unless r = 0)
    projection  |sum_K(x y)| (c sum_K x^2 + r)^-1/2 <= c^-1/2 |y|_K
    cosine      |sum_K(x y z)| (c sum_K x^2 + r)^-1/2 (d sum_K y^2 + q)^-1/2 <= (c d)^-1/2 max|z|
    centring    c sum_K x^2 - (c sum_K x)^2 = c sum_K (x - c sum_K x)^2 and
                sum_K(x y) - c sum_K(x) sum_K(y) = sum_K((x - c sum_K x) y),  c = 1/|K|

A sum over part of its axis lies in the hull of 0 and the bounds of the whole sum, because each rule
that gives those bounds holds for every subset of the summands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, prod

import numpy as np

from mirage_onnx.ir import interval as iv
from mirage_onnx.ir import term as t
from mirage_onnx.ir.functions import ELEMENTWISE, HALF, IRRATIONAL
from mirage_onnx.ir.interval import Interval
from mirage_onnx.ir.term import Term
from mirage_onnx.verify.domain import LOWEST
from mirage_onnx.verify.extremes import Extremes, extremes
from mirage_onnx.verify.symbolic import PART
from mirage_onnx.verify.term_patterns import (
  Power,
  centre,
  factors_of,
  find_shift,
  innermost,
  power_of,
  take_power,
  term_of,
)

#: A quotient rule distributes over sums this deep: (x + b) / |x| is x / |x| + b / |x|.
_DEPTH = 2


#: Does the numerator keep its sign -> the interval of its ratio to the denominator.
UNIT_OF = {True: iv.UNIT, False: iv.SIGNED_UNIT}


@dataclass(frozen=True, slots=True)
class Fact:
  """What is known of an input: its range, and its largest 2-norm over each axis."""

  range: Interval
  norms: Mapping[str, float] = field(default_factory=dict)


def measured(data: np.ndarray, axes: tuple[str, ...]) -> Fact:
  """The fact of real values over ``axes``."""
  return fact_of(extremes(data), axes)


def fact_of(x: Extremes, axes: tuple[str, ...]) -> Fact:
  """The fact of a weight with these extremes over ``axes``."""
  return Fact(x.range, dict(zip(axes, x.norms, strict=True)))


@dataclass(frozen=True, slots=True)
class Mass:
  """A denominator c sum_K(N) + r: ``body`` is N, ``rest`` whether there may be an r > 0."""

  axes: tuple[str, ...]
  body: Term
  coefficient: float
  rest: bool


class Bounds:
  """The intervals of terms over inputs of which ``facts`` are known.

  ``marks``: the parts (``symbolic``) that the elements of a value are in.
  """

  def __init__(
    self,
    extents: Mapping[str, int],
    facts: Mapping[str, Fact],
    marks: frozenset[str] = frozenset(),
  ) -> None:
    self.extents = extents
    self.facts = facts
    self.marks = marks
    self._inside: dict[frozenset[str], Bounds] = {marks: self}
    self._memo: dict[Term, Interval] = {}
    self._norms: dict[tuple[Term, tuple[str, ...]], float] = {}

  def interval(self, x: Term) -> Interval:
    """The bounds of ``x``."""
    return self._interval(centre(x))

  def within(self, marks: Iterable[str]) -> Bounds:
    """The bounds of values whose elements are in these parts as well."""
    more = self.marks | frozenset(marks)
    if more not in self._inside:
      self._inside[more] = Bounds(self.extents, self.facts, more)
    return self._inside[more]

  def _interval(self, x: Term) -> Interval:
    if x not in self._memo:
      self._memo[x] = self._find(x)
    return self._memo[x]

  def _find(self, x: Term) -> Interval:
    match x.op:
      case t.INPUT:
        return self.facts[str(x.attr)].range
      case t.CONST:
        c = IRRATIONAL[x.attr] if isinstance(x.attr, str) else float(x.attr)  # type: ignore[arg-type]
        return Interval(c, c)
      case t.EXTENT:
        n = float(self._count(x.attr))
        return Interval(n, n)
      case t.ADD:
        return self._sum_of(x)
      case t.MUL:
        return self._quotient([power_of(f) for f in x.args], _DEPTH)
      case t.POW:
        assert isinstance(x.attr, Fraction)
        return self._quotient([power_of(x)], _DEPTH)
      case t.SUM:
        return self._total(x)
      case t.MAXR | "run":
        return self._interval(x.args[0])
      case "prev":
        return self._interval(x.args[0]) | Interval(LOWEST, LOWEST)
    if x.op.startswith(PART):
      whole = self.within([x.op])._interval(x.args[0])
      return whole if innermost(x).op == t.MAXR else whole | iv.ZERO
    return ELEMENTWISE[x.op].interval(*(self._interval(a) for a in x.args))

  def _count(self, axes: object) -> int:
    assert isinstance(axes, tuple)
    return prod(self.extents[a] for a in axes)

  def _sum_of(self, x: Term) -> Interval:
    total = iv.ZERO
    for a in x.args:
      total = total + self._interval(a)
    shifted = find_shift(x, self.marks)
    if shifted is None:
      return total
    rest = iv.ZERO
    for a in shifted.rest:
      rest = rest + self._interval(a)
    return total & (rest + Interval(-inf, 0.0))

  def _total(self, x: Term) -> Interval:
    axes = x.attr
    assert isinstance(axes, tuple)
    factors = [power_of(f) for f in factors_of(x.args[0])]
    inner = [p for p in factors if set(p[0].axes) & set(axes)]
    outer = [p for p in factors if not set(p[0].axes) & set(axes)]
    if outer and inner:
      core = t.reduce_(t.SUM, axes, t.mul(*map(term_of, inner)))
      return self._quotient([*outer, (core, Fraction(1))], _DEPTH)
    result = self._sum_over(axes, inner)
    if x.args[0].op == "exp":
      # Somewhere along K the maximum is attained, and the exponential there is 1.
      shift = find_shift(x.args[0].args[0], self.marks)
      attained = shift is not None and shift.attained and not shift.rest
      inside = shift is not None and set(shift.axes) <= set(axes)
      result = result & Interval(1.0 if attained and inside else 0.0, inf)
    return result

  def _sum_over(self, axes: tuple[str, ...], body: list[Power]) -> Interval:
    """n times the body, and Cauchy's inequality for each factor and the rest."""
    each = self._quotient(body, _DEPTH)
    n = self._count(axes)
    result = Interval(n * each.lo if each.lo else 0.0, n * each.hi if each.hi else 0.0)
    for p in body:
      others = [q for q in body if q is not p]
      both = self._norm([p], axes) * self._norm(others, axes) if others else inf
      if both < inf:
        result = result & iv.symmetric(both)
    return result

  def _norm(self, factors: list[Power], axes: tuple[str, ...]) -> float:
    """The best of: sqrt(n) max|x|, |x|_K max|y| for each factor x, the triangle inequality."""
    x = t.mul(*map(term_of, factors))
    key = (x, axes)
    if key not in self._norms:
      sups = [self._interval(term_of(p)).magnitude for p in factors]
      best = iv.root_of_sum(self._count(axes), self._interval(x).magnitude)
      for n, (base, e) in enumerate(factors):
        others = prod(s for m, s in enumerate(sups) if m != n)
        if e == 1:
          own = self._own_norm(base, axes)
          best = min(best, own * others if own and others else 0.0)
        elif e <= -HALF and (mass := self._mass(base)) and mass.axes == axes:
          best = min(best, self._unit_norm(mass, base, e, factors[:n] + factors[n + 1 :]))
      self._norms[key] = best
    return self._norms[key]

  def _own_norm(self, x: Term, axes: tuple[str, ...]) -> float:
    if x.op == t.INPUT and len(axes) == 1:
      return self.facts[str(x.attr)].norms.get(axes[0], inf)
    if x.op == t.ADD and all(set(axes) <= set(a.axes) for a in x.args):
      return sum(self._norm([power_of(f) for f in factors_of(a)], axes) for a in x.args)
    return inf

  def _unit_norm(self, mass: Mass, base: Term, e: Fraction, others: list[Power]) -> float:
    """|x y|_K (c sum_K x^2 + r)^-1/2 <= c^-1/2 max|y|."""
    taken = take_power(mass.body, others, HALF)
    if taken is None or taken[0] != HALF:
      return inf
    _, scale, y = taken
    rest = [*y, (base, e + HALF)] if e != -HALF else y
    return float((mass.coefficient * scale) ** -0.5 * self._quotient(rest, 0).magnitude)

  def _quotient(self, factors: list[Power], depth: int) -> Interval:
    """The product of powers, by the quotient rules where a denominator is a ``Mass``."""
    plain = iv.product(iv.power(self._interval(b), e) for b, e in factors)
    for n, (base, e) in enumerate(factors):
      if e >= 0:
        continue
      mass = self._mass(base)
      if mass is None:
        continue
      others = factors[:n] + factors[n + 1 :]
      for rule in (self._by_element, self._by_sum, self._inside_sum):
        plain = plain & rule(mass, -e, base, others)
      if depth:
        plain = plain & self._distributed(others, (base, e), depth)
    return plain

  def _distributed(self, others: list[Power], mass: Power, depth: int) -> Interval:
    """(a + b) c / d is a c / d + b c / d."""
    result = iv.REALS
    for n, (base, e) in enumerate(others):
      if base.op == t.ADD and e == 1:
        rest = [*others[:n], *others[n + 1 :], mass]
        total = iv.ZERO
        for a in base.args:
          product = t.mul(*map(term_of, rest), a)
          total = total + self._quotient([power_of(f) for f in factors_of(product)], depth - 1)
        result = result & total
    return result

  def _mass(self, x: Term) -> Mass | None:
    """``x`` as c sum_K(N) + r with N, r >= 0, or None."""
    addends = x.args if x.op == t.ADD else (x,)
    sums = [(a, [f for f in factors_of(a) if f.op == t.SUM]) for a in addends]
    for addend, inner in sums:
      if len(inner) != 1:
        continue
      core = inner[0]
      c = iv.product(self._interval(f) for f in factors_of(addend) if f is not core)
      if not 0 < c.lo < inf or any(f.axes for f in factors_of(addend) if f is not core):
        continue
      rest = [a for a in addends if a is not addend]
      if self._interval(core.args[0]).lo < 0 or any(self._interval(a).lo < 0 for a in rest):
        continue
      axes = core.attr
      assert isinstance(axes, tuple)
      # Constants belong in front of the sum: sum_K(x^2 / n) = sum_K(x^2) / n.
      body = factors_of(core.args[0])
      known = {f: self._interval(f) for f in body if not f.axes}
      fixed = [f for f, value in known.items() if 0 < value.lo == value.hi]
      c = iv.product([c, *(known[f] for f in fixed)])
      summed = t.mul(*(f for f in body if f not in fixed))
      return Mass(axes, summed, c.lo, bool(rest))
    return None

  def _by_element(self, mass: Mass, q: Fraction, base: Term, factors: list[Power]) -> Interval:
    """N^p (c sum N + r)^-q with p <= q."""
    taken = take_power(mass.body, factors, q)
    if taken is None:
      return iv.REALS
    p, scale, left = taken
    bound = (mass.coefficient * scale) ** float(-p)
    signs = self._sign(mass.body, p)
    rest = [*left, (base, p - q)] if q > p else left
    return (UNIT_OF[signs] * Interval(bound, bound)) * self._quotient(rest, 0)

  def _sign(self, body: Term, p: Fraction) -> bool:
    """True if N^p is the magnitude of what the numerator has, False if that has either sign."""
    return all(
      (e * p) % 2 == 0 or self._interval(b).lo >= 0
      for b, e in map(power_of, factors_of(body))
      if t.rational(b) is None
    )

  def _by_sum(self, mass: Mass, q: Fraction, base: Term, factors: list[Power]) -> Interval:
    """sum_K(N^p y) (c sum_K N + r)^-q for p = 1 (mean) or 1/2 (projection, cosine)."""
    result = iv.REALS
    for n, (core, e) in enumerate(factors):
      if core.op != t.SUM or e != 1 or core.attr != mass.axes:
        continue
      others = factors[:n] + factors[n + 1 :]
      body = [power_of(f) for f in factors_of(core.args[0])]
      for p in (Fraction(1), HALF):
        taken = take_power(mass.body, body, p) if p <= q else None
        if taken is None or taken[0] != p:
          continue
        _, scale, y = taken
        bound = (mass.coefficient * scale) ** float(-p)
        rest = [*others, (base, p - q)] if q > p else others
        if p == 1:
          hull = self._quotient(y, 0) * Interval(bound, bound)
          found = hull | iv.ZERO if mass.rest else hull
        else:
          found = iv.symmetric(bound * self._norm(y, mass.axes))
          result = result & self._cosine(mass, bound, y, rest)
        result = result & (found * self._quotient(rest, 0))
    return result

  def _inside_sum(self, mass: Mass, q: Fraction, base: Term, factors: list[Power]) -> Interval:
    """sum_L(y) d^-q = sum_L(y d^-q) where d does not vary over L."""
    result = iv.REALS
    for n, (core, e) in enumerate(factors):
      axes = core.attr
      if core.op != t.SUM or e != 1 or axes == mass.axes or not isinstance(axes, tuple):
        continue
      if set(axes) & set(base.axes):
        continue
      inner = [*map(power_of, factors_of(core.args[0])), (base, -q)]
      others = factors[:n] + factors[n + 1 :]
      result = result & (self._sum_over(axes, inner) * self._quotient(others, 0))
    return result

  def _cosine(self, mass: Mass, bound: float, y: list[Power], others: list[Power]) -> Interval:
    """A second denominator takes half of what is left under the sum."""
    result = iv.REALS
    for n, (base, e) in enumerate(others):
      second = self._mass(base) if e <= -HALF else None
      if second is None or second.axes != mass.axes:
        continue
      taken = take_power(second.body, y, HALF)
      if taken is None or taken[0] != HALF:
        continue
      _, scale, z = taken
      both = bound * (second.coefficient * scale) ** -0.5 * self._quotient(z, 0).magnitude
      rest = others[:n] + others[n + 1 :] + ([(base, e + HALF)] if e != -HALF else [])
      result = result & (iv.symmetric(both) * self._quotient(rest, 0))
    return result
