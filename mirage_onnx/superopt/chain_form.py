"""One normal form for all spellings of an elementwise chain.

``ir/term.py`` folds constants, sorts and collects; it keeps ``x * (y + z)`` and ``x*y + x*z``
apart, because the search must. Here the *function* counts, so on top of that

    products are distributed over sums, and whole powers of sums multiplied out
    exp(x) * exp(y) = exp(x + y), exp(x) ^ e = exp(e * x)
    powers of one base and one sign are one power: sqrt(x) * sqrt(x) = x

There is no cancellation but that of exponentials, which have no zero: x * y / y is not x.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import product

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term

#: A sum to a higher power than this stays a power.
MAX_POWER = 8


@lru_cache(maxsize=1 << 16)
def chain_form(x: Term) -> Term:
  """The normal form of a chain; inputs and reductions in it are its leaves."""
  if not x.args or x.op in t.REDUCTIONS:
    return x
  args = tuple(map(chain_form, x.args))
  if x.op == t.ADD:
    return t.add(*args)
  if x.op == t.MUL:
    return _product(args)
  if x.op == t.POW:
    assert isinstance(x.attr, Fraction)
    return _power(args[0], x.attr)
  return _exp(args[0]) if x.op == "exp" else t.rebuild(x, args)


def _exp(x: Term) -> Term:
  return t.const(1) if t.rational(x) == 0 else t.apply("exp", x)


def _product(factors: Iterable[Term]) -> Term:
  """Factors in normal form, multiplied out."""
  summands = [f.args if f.op == t.ADD else (f,) for f in factors]
  return t.add(*map(_monomial, product(*summands)))


def _monomial(factors: tuple[Term, ...]) -> Term:
  """A product of factors that are no sums."""
  coefficient = Fraction(1)
  powers: dict[tuple[Term, bool], Fraction] = {}
  exponents: list[Term] = []
  flat = (g for x in factors for g in (x.args if x.op == t.MUL else (x,)))
  for f in flat:
    if (c := t.rational(f)) is not None:
      coefficient *= c
    elif f.op == "exp":
      exponents.append(f.args[0])
    else:
      base, e = _base(f)
      powers[base, e > 0] = powers.get((base, e > 0), Fraction(0)) + e
  parts = [_power(base, e) for (base, _), e in powers.items()]
  moved = any(_base(p)[0] is not base for p, (base, _) in zip(parts, powers, strict=True))
  if exponents:
    parts.append(_exp(t.add(*exponents)))
  if moved:
    # A root of a power, a product or a sum, squared: what was below joins the other factors.
    return _product((t.const(coefficient), *parts))
  return t.mul(t.const(coefficient), *parts)


def _base(x: Term) -> tuple[Term, Fraction]:
  if x.op == t.POW:
    assert isinstance(x.attr, Fraction)
    return x.args[0], x.attr
  return x, Fraction(1)


def _power(x: Term, e: Fraction) -> Term:
  """``x ** e`` of a normal form."""
  if x.op == "exp":
    return _exp(_product((t.const(e), x.args[0])))
  if x.op == t.POW:
    inner = x.attr
    assert isinstance(inner, Fraction)
    # As in ``term.power``: sqrt(x^2) is |x|.
    if e.denominator == 1 or inner.numerator % 2 != 0:
      return _power(x.args[0], inner * e)
  if x.op == t.ADD and e.denominator == 1 and 1 < e <= MAX_POWER:
    return _product((x,) * e.numerator)
  if x.op == t.MUL and e.denominator == 1:
    return _product(_power(a, e) for a in x.args)
  return t.power(x, e)
