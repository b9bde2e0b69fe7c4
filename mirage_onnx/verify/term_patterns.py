"""Patterns of terms that the rules of ``term_bounds`` look for."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term
from mirage_onnx.verify.symbolic import PART, PREV, RUN

#: A factor of a product: base and exponent.
Power = tuple[Term, Fraction]


def factors_of(x: Term) -> tuple[Term, ...]:
  return x.args if x.op == t.MUL else (x,)


def power_of(x: Term) -> Power:
  if x.op == t.POW:
    assert isinstance(x.attr, Fraction)
    return x.args[0], x.attr
  return x, Fraction(1)


def term_of(p: Power) -> Term:
  return t.power(*p)


def innermost(x: Term) -> Term:
  while x.op.startswith(PART) or x.op in (RUN, PREV):
    x = x.args[0]
  return x


def take_power(
  body: Term, factors: list[Power], most: Fraction
) -> tuple[Fraction, float, list[Power]] | None:
  """``factors`` = (N / scale)^p * left with the largest p <= ``most``, for N = ``body``."""
  scale = Fraction(1)
  wanted: dict[Term, Fraction] = {}
  for b, e in map(power_of, factors_of(body)):
    if (c := t.rational(b)) is not None:
      scale *= c**e.numerator if e.denominator == 1 else Fraction(float(c) ** float(e))
    else:
      wanted[b] = wanted.get(b, Fraction(0)) + e
  have: dict[Term, Fraction] = {}
  for b, e in factors:
    have[b] = have.get(b, Fraction(0)) + e
  ratios = [have.get(b, Fraction(0)) / e for b, e in wanted.items()]
  p = min([most, *ratios])
  if p <= 0 or not wanted or scale <= 0:
    return None
  for b, e in wanted.items():
    have[b] -= p * e
  return p, float(scale), [(b, e) for b, e in have.items() if e]


@dataclass(frozen=True, slots=True)
class Shift:
  """An ADD that holds c y - c m for a maximum m >= y and c > 0; ``rest``: its other addends.

  ``attained``: m is the maximum of y over ``axes``, so that y = m somewhere along them.
  """

  rest: tuple[Term, ...]
  axes: tuple[str, ...]
  attained: bool


def find_shift(x: Term, marks: frozenset[str]) -> Shift | None:
  """The shift that leaves the fewest other addends, or None.

  ``marks``: the parts that the elements of ``x`` are in; a maximum over such a part covers them.
  """
  if x.op == t.MUL and (c := t.rational(x.args[0])) is not None and c > 0:
    return find_shift(t.mul(*x.args[1:]), marks)
  if x.op != t.ADD:
    return None
  found = []
  for addend in x.args:
    factors = factors_of(addend)
    c = t.rational(factors[0])
    if c is None or c >= 0 or len(factors) != 2 or innermost(factors[1]).op != t.MAXR:
      continue
    top = factors[1]
    maximum = innermost(top)
    assert isinstance(maximum.attr, tuple)
    others = [a for a in x.args if a is not addend]
    below = [b for a in others if _is_below(b := factors_of(a)[-1], top)]
    covered = PREV not in _heads(top) and _parts(top) <= marks
    for y in [maximum.args[0]] * covered + below:
      addends = y.args if y.op == t.ADD else (y,)
      parts = {t.mul(t.const(-c), a) for a in addends}
      if parts <= set(others):
        rest = tuple(a for a in others if a not in parts)
        attained = top is maximum and y is maximum.args[0]
        found.append(Shift(rest, maximum.attr, attained))
  return min(found, key=lambda s: (len(s.rest), not s.attained), default=None)


def _is_below(y: Term, top: Term) -> bool:
  """Is ``y`` the maximum of part of what ``top`` is the maximum of?"""
  if y is top or y.op in (t.CONST, t.MAXR) or innermost(y) is not innermost(top):
    return False
  if RUN in _heads(top):
    # m_(t-1) <= m_t, and the maximum of this iteration is part of m_t.
    return top.op == RUN and (y is t.apply(PREV, top) or y is top.args[0])
  loops = any(m.startswith(f"{PART}loop/") for m in _heads(top))
  return not loops and _parts(top) <= _parts(y)


def _heads(x: Term) -> frozenset[str]:
  """The marks over a reduction, ``RUN`` and ``PREV``."""
  heads = set()
  while x.op.startswith(PART) or x.op in (RUN, PREV):
    heads.add(x.op)
    x = x.args[0]
  return frozenset(heads)


def _parts(x: Term) -> frozenset[str]:
  return _heads(x) - {RUN, PREV}


@lru_cache(maxsize=1 << 14)  # a term is asked about once for every range of the inputs
def centre(x: Term) -> Term:
  """``x`` with the centring rules of ``term_bounds`` applied everywhere.

  Of the two ways to centre a sum of products, the one whose centred factor occurs in ``x``, or in
  a variance of ``x``, is taken: there it can meet its norm.
  """
  squared = _everywhere(x, lambda node: _centred(node, None))
  present = frozenset(t.walk([squared]))
  return _everywhere(squared, lambda node: _centred(node, present))


def _everywhere(x: Term, rule: Callable[[Term], Term]) -> Term:
  known: dict[Term, Term] = {}

  def visit(node: Term) -> Term:
    if node not in known:
      args = tuple(map(visit, node.args))
      made = node if args == node.args else t.rebuild(node, args)
      known[node] = rule(made) if made.op == t.ADD else made
    return known[node]

  return visit(x)


def _centred(x: Term, present: frozenset[Term] | None) -> Term:
  """One pair of addends c1 sum_K(x y) - c2 sum_K(x) sum_K(y), c2 = c1 / |K|, as one sum.

  ``present`` None: only squares (y = x); else x - mean(x) is preferably one of these terms.
  """
  found = []
  for first in x.args:
    for core in (f for f in factors_of(first) if f.op == t.SUM):
      assert isinstance(core.attr, tuple)
      mean = t.power(t.extent(core.attr), -1)
      outer = t.mul(*(f for f in factors_of(first) if f is not core))
      for left, right in _splits(core.args[0]):
        if (present is None) != (left is right):
          continue
        a, b = (t.reduce_(t.SUM, core.attr, s) for s in (left, right))
        second = t.mul(t.const(-1), outer, mean, a, b)
        if second in x.args:
          shifted = t.add(left, t.mul(t.const(-1), mean, a))
          body = t.power(shifted, 2) if left is right else t.mul(shifted, right)
          whole = t.mul(outer, t.reduce_(t.SUM, core.attr, body))
          rest = (p for p in x.args if p not in (first, second))
          found.append((present is None or shifted in present, t.add(*rest, whole)))
  return max(found, key=lambda f: f[0], default=(True, x))[1]


def _splits(body: Term) -> list[tuple[Term, Term]]:
  """The body of a sum as x * x, or as x * y with x one of its factors."""
  if body.op == t.POW and body.attr == 2:
    return [(body.args[0], body.args[0])]
  factors = factors_of(body)
  if len(factors) < 2:
    return []
  return [(f, t.mul(*(g for g in factors if g is not f))) for f in factors]
