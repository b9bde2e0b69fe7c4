"""Terms: exact algebra over named axes, hash-consed, in a normal form.

A term denotes an array whose dimensions are *named axes* (an unordered set); elementwise operations
broadcast by name and ``sum[k](x)`` removes axis ``k``. So transposes, unsqueezes and broadcasts
vanish, and the side condition of most axioms is "axis k does not occur in x".

Normal form, held by the constructors below (no other code builds terms):
    x - y          = add(x, mul(-1, y))          x / y     = mul(x, pow[-1](y))
    sqrt(x)        = pow[1/2](x)                 rsqrt(x)  = pow[-1/2](x)
    x * x          = pow[2](x)                   mean[k](x) = mul(pow[-1](extent[k]), sum[k](x))
    add, mul: flat, constants folded exactly, arguments sorted, equal summands collected
There is no cancellation: x * pow[-1](x) stays (it is not 1 where x = 0). Nested powers merge
(sqrt(x)^2 = x, (x^3)^(1/3) = x) except under an even inner power (sqrt(x^2) is |x|): a merged form
is defined wherever the written one is, and has its value there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

Attr = Fraction | str | tuple[str, ...] | None

#: Heads besides the elementwise functions.
INPUT, CONST, EXTENT, ADD, MUL, POW, SUM, MAXR = (
  "input", "const", "extent", "add", "mul", "pow", "sum", "rmax",
)  # fmt: skip
REDUCTIONS = (SUM, MAXR)
#: Sums and products that are not made again: the regions of a program share most of theirs.
KEPT_SUMS = 1 << 16
COMMUTATIVE = frozenset({ADD, MUL, "max", "min"})


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Term:
  """One node; equal terms are the same object, so ``is`` and ``==`` agree.

  ``op`` is a head above or an elementwise function of ``ir/functions.py``. ``attr`` holds the name of
  an input, the value of a constant (a Fraction, or the name of an irrational such as ``pi``),
  the exponent of a power, or the axes of a reduction or extent. ``axes`` is the sorted tuple of
  axes that the value varies over.
  """

  op: str
  args: tuple[Term, ...]
  attr: Attr
  axes: tuple[str, ...]
  #: (depth, head, attribute, digest): a total order that no process or history changes.
  order: tuple[int, str, str, str] = field(repr=False)

  def __repr__(self) -> str:
    return to_text(self)

  def __reduce__(self) -> tuple[object, ...]:
    """Pickled terms are made anew, so that equal terms are one object again."""
    return _make, (self.op, self.args, self.attr, self.axes)

  def __lt__(self, other: Term) -> bool:
    return self.order < other.order


_TABLE: dict[tuple[object, ...], Term] = {}


def _make(op: str, args: tuple[Term, ...], attr: Attr, axes: Iterable[str]) -> Term:
  key: tuple[object, ...] = (op, tuple(map(id, args)), attr)
  if op == INPUT:
    key = (*key, tuple(axes))
  found = _TABLE.get(key)
  if found is None:
    ordered = tuple(sorted(set(axes)))
    depth = 1 + max((a.order[0] for a in args), default=-1)
    content = "|".join((op, str(attr), ",".join(ordered), *(a.order[3] for a in args)))
    digest = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
    order = (depth, op, str(attr), digest)
    found = _TABLE[key] = Term(op, args, attr, ordered, order)
  return found


def to_text(t: Term) -> str:
  """Written-out form of a term, for people and small tests (sharing is repeated)."""
  inner = ", ".join(map(to_text, t.args))
  if t.op == INPUT:
    return f"{t.attr}[{','.join(t.axes)}]"
  if t.op == CONST:
    return str(t.attr)
  if t.op == EXTENT:
    return f"|{','.join(t.attr)}|"  # type: ignore[arg-type]
  if t.op in REDUCTIONS:
    return f"{t.op}[{','.join(t.attr)}]({inner})"  # type: ignore[arg-type]
  return f"pow[{t.attr}]({inner})" if t.op == POW else f"{t.op}({inner})"


def input_(name: str, axes: Iterable[str]) -> Term:
  return _make(INPUT, (), name, tuple(sorted(set(axes))))


def const(value: Fraction | int | str) -> Term:
  """An exact constant: a rational, or the name of an irrational (``pi``)."""
  return _make(CONST, (), Fraction(value) if isinstance(value, int) else value, ())


def extent(axes: Iterable[str]) -> Term:
  """The number of elements along ``axes``, a set: axes that become one count once; 1 for none."""
  ordered = tuple(sorted(set(axes)))
  return _make(EXTENT, (), ordered, ()) if ordered else const(1)


def rational(t: Term) -> Fraction | None:
  """The value of a rational constant, else None."""
  return t.attr if t.op == CONST and isinstance(t.attr, Fraction) else None


def _axes(args: Iterable[Term]) -> set[str]:
  return {a for t in args for a in t.axes}


@lru_cache(KEPT_SUMS)
def add(*args: Term) -> Term:
  """Sum of terms: flat, equal summands collected by their rational coefficient."""
  total = Fraction(0)
  parts: dict[Term, Fraction] = {}
  stack = list(args)
  while stack:
    t = stack.pop()
    if t.op == ADD:
      stack.extend(t.args)
    elif (c := rational(t)) is not None:
      total += c
    else:
      c, rest = _split_coefficient(t)
      parts[rest] = parts.get(rest, Fraction(0)) + c
  terms = [mul(const(c), t) if c != 1 else t for t, c in parts.items() if c]
  if total:
    terms.append(const(total))
  if not terms:
    return const(0)
  if len(terms) == 1:
    return terms[0]
  terms.sort()
  return _make(ADD, tuple(terms), None, _axes(terms))


def _split_coefficient(t: Term) -> tuple[Fraction, Term]:
  if t.op == MUL and (c := rational(t.args[0])) is not None:
    return c, mul(*t.args[1:])
  return Fraction(1), t


@lru_cache(KEPT_SUMS)
def mul(*args: Term) -> Term:
  """Product of terms: flat, rational factors folded, equal factors merged into powers."""
  coefficient = Fraction(1)
  powers: dict[tuple[Term, bool], Fraction] = {}
  fixed: list[Term] = []
  stack = list(args)
  while stack:
    t = stack.pop()
    if t.op == MUL:
      stack.extend(t.args)
      continue
    if (c := rational(t)) is not None:
      coefficient *= c
      continue
    base, e = (t.args[0], t.attr) if t.op == POW else (t, Fraction(1))
    assert isinstance(e, Fraction)
    # x^a * x^b = x^(a+b) only for exponents of one sign and both whole: never a cancellation,
    # never a change of the set of inputs where the value is defined.
    if e.denominator == 1:
      slot = (base, e > 0)
      powers[slot] = powers.get(slot, Fraction(0)) + e
    else:
      fixed.append(t)
  if coefficient == 0:
    return const(0)
  terms = [power(b, e) for (b, _), e in powers.items()] + fixed
  terms.sort()
  if coefficient != 1:
    terms.insert(0, const(coefficient))
  if not terms:
    return const(1)
  if len(terms) == 1:
    return terms[0]
  return _make(MUL, tuple(terms), None, _axes(terms))


def _root(c: Fraction, e: Fraction) -> Fraction | None:
  """``c ** e`` when it is rational, else None."""
  if c <= 0:
    return c**e.numerator if e.denominator == 1 and (c or e > 0) else None
  n, d = (round(v ** (1 / e.denominator)) for v in (c.numerator, c.denominator))
  if n**e.denominator == c.numerator and d**e.denominator == c.denominator:
    return Fraction(n, d) ** e.numerator
  return None


def power(x: Term, e: Fraction | int) -> Term:
  """``x ** e`` for a rational exponent; pow[a](pow[b](x)) = pow[ab](x) where b is not even."""
  e = Fraction(e)
  if e == 1:
    return x
  if e == 0:
    return const(1)
  if (c := rational(x)) is not None and (r := _root(c, e)) is not None:
    return const(r)
  if x.op == POW:
    inner = x.attr
    assert isinstance(inner, Fraction)
    # sqrt(x^2) = |x|, so an even inner power never meets a fractional outer one.
    if e.denominator == 1 or inner.numerator % 2 != 0:
      return power(x.args[0], inner * e)
  if x.op == MUL and e.denominator == 1:
    return mul(*(power(a, e) for a in x.args))
  return _make(POW, (x,), e, x.axes)


def apply(op: str, *args: Term) -> Term:
  """An elementwise function of ``ir/functions.py`` that has no algebra of its own (exp, erf, ...)."""
  if op in COMMUTATIVE:
    args = tuple(sorted(args))
  return _make(op, tuple(args), None, _axes(args))


def reduce_(op: str, axes: Iterable[str], x: Term) -> Term:
  """``sum`` or ``rmax`` over ``axes``; an axis that x does not have scales a sum by its size."""
  wanted = set(axes)
  inside = tuple(sorted(wanted & set(x.axes)))
  outside = wanted - set(x.axes)
  body = x
  if inside:
    if x.op == op:
      inside = tuple(sorted((*inside, *x.attr)))  # type: ignore[misc]
      body = x.args[0]
    body = _make(op, (body,), inside, set(body.axes) - set(inside))
  return mul(extent(outside), body) if op == SUM and outside else body


def rebuild(t: Term, args: tuple[Term, ...], rename: Callable[[str], str] = lambda a: a) -> Term:
  """The same node over other arguments (and renamed axes), normalised again."""
  if t.op == ADD:
    return add(*args)
  if t.op == MUL:
    return mul(*args)
  if t.op == POW:
    assert isinstance(t.attr, Fraction)
    return power(args[0], t.attr)
  if t.op in REDUCTIONS:
    return reduce_(t.op, map(rename, t.attr), args[0])  # type: ignore[arg-type]
  if t.op == EXTENT:
    return extent(map(rename, t.attr))  # type: ignore[arg-type]
  return apply(t.op, *args) if args else t


def substitute(
  roots: Iterable[Term], inputs: Mapping[str, Term], rename: Mapping[str, str] | None = None
) -> tuple[Term, ...]:
  """Replace inputs by name and rename axes, renormalising on the way up."""
  names = rename or {}
  memo: dict[Term, Term] = {}

  def visit(t: Term) -> Term:
    if t not in memo:
      if t.op == INPUT:
        memo[t] = inputs[str(t.attr)]
      else:
        memo[t] = rebuild(t, tuple(map(visit, t.args)), lambda a: names.get(a, a))
    return memo[t]

  return tuple(map(visit, roots))


def walk(roots: Iterable[Term]) -> tuple[Term, ...]:
  """All distinct terms under ``roots``, arguments before users."""
  seen: dict[Term, None] = {}

  def visit(t: Term) -> None:
    if t not in seen:
      for a in t.args:
        visit(a)
      seen[t] = None

  for r in roots:
    visit(r)
  return tuple(seen)
