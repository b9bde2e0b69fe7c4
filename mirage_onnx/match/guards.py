"""Guards against NaN that nothing needs: ``where(isnan(p), 0, p)`` is p if p is a number.

torch's exporters write such a guard behind the softmax of every attention with a mask, for rows in
which all is masked by -inf; no single loop computes it. Here ``equal(x, x)`` is 1 where x is a number
for all inputs that may be taken to be finite, and what that decides is decided.

Those are truth values, integers, and what is contracted with something else (infinite activations
make NaN of whole rows, in ONNX as here). A float that joins a sum as it is may be a mask with -inf:
its guard stays.
"""

from collections.abc import Collection, Iterable
from fractions import Fraction

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term

#: Functions whose results are finite for finite arguments.
_BOUNDED = frozenset({"exp", "erf", "max", "min", "abs", "select", "equal", "less", "less_equal", t.MAXR})


def without_guards(roots: Iterable[Term], finite: Collection[str]) -> tuple[Term, ...]:
  """``roots`` without comparisons that are known; ``finite``: the inputs that no number is missing from."""
  memo: dict[Term, Term] = {}

  def visit(x: Term) -> Term:
    if x not in memo:
      args = tuple(map(visit, x.args))
      made = t.rebuild(x, args) if args != x.args else x
      memo[x] = _decided(made, finite)
    return memo[x]

  return tuple(map(visit, roots))


def _decided(x: Term, finite: Collection[str]) -> Term:
  if x.op == "equal" and x.args[0] == x.args[1] and is_number(x.args[0], finite):
    return t.const(1)
  if x.op == "select" and (chosen := t.rational(x.args[0])) is not None:
    taken = x.args[1] if chosen else x.args[2]
    return taken if set(taken.axes) == set(x.axes) else x
  return x


def is_number(x: Term, finite: Collection[str]) -> bool:
  """Whether a term is finite, and no NaN, if the inputs are that may be taken to be."""
  if x.op == t.INPUT:
    return x.attr in finite
  if x.op == t.POW:
    assert isinstance(x.attr, Fraction)
    whole = x.attr.denominator == 1
    return is_number(x.args[0], finite) and whole and (x.attr > 0 or _is_at_least_one(x.args[0]))
  if x.op == t.SUM and _is_contraction(x):
    return True
  known = not x.args or x.op in {t.ADD, t.MUL, t.SUM} or x.op in _BOUNDED
  return known and all(is_number(a, finite) for a in x.args)


def _is_contraction(x: Term) -> bool:
  """Whether two factors or more vary over what is summed, over different axes besides."""
  factors = x.args[0].args if x.args[0].op == t.MUL else ()
  return len({a.axes for a in factors if set(a.axes) & set(x.attr)}) > 1  # type: ignore[arg-type]


def _is_at_least_one(x: Term) -> bool:
  """Whether a sum has exp(0), because its exponent has its own largest subtracted."""
  if x.op != t.SUM or x.args[0].op != "exp" or x.args[0].args[0].op != t.ADD:
    return False
  parts = x.args[0].args[0].args
  for part in parts:
    largest = t.mul(t.const(-1), part)
    within = largest.op == t.MAXR and set(largest.attr) <= set(x.attr)  # type: ignore[arg-type]
    if within and t.add(*(p for p in parts if p != part)) == largest.args[0]:
      return True
  return False
