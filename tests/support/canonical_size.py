"""The size of canonical programs: heavy values and the operations of their chains as they stand.

A sum of n terms is n - 1 operations (one more if all are subtracted), so is a product (a factor 1/y
divides); x^n is n - 1 products, x^(1/2) one root. What occurs twice counts once.
"""

from dataclasses import dataclass
from fractions import Fraction

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term

#: A whole factor up to this one is a repeated sum.
MOST_ADDED = 1000


@dataclass(frozen=True)
class Step:
  """How a normal form stands: the operations (names of ``ir/functions.py``) on its ``parts``."""

  ops: tuple[str, ...]
  parts: tuple[Term, ...]


def step(x, known):
  """The last operations of a chain; of a heavy value its own."""
  if x.op == t.INPUT:
    made = known[x]
    return Step((), ()) if made.op.op == "load" else Step((made.op.op,), made.args)
  if x.op in (t.CONST, t.EXTENT):
    return Step((x.op,), ())
  if x.op == t.ADD:
    return _signed("add", "sub", "neg", [_unsigned(a) for a in x.args])
  if x.op == t.MUL:
    c = t.rational(x.args[0])
    if c is None:
      return _signed("mul", "div", "recip", [_divided(a) for a in x.args])
    return Step(_times(c), (t.mul(*x.args[1:]),))
  if x.op == t.POW:
    e = x.attr
    if e < 0:
      return Step(("recip",), (t.power(x.args[0], -e),))
    roots = ("sqrt",) * (e.denominator.bit_length() - 1)
    return Step(("mul",) * (e.numerator - 1) + roots, x.args)
  return Step((x.op,), x.args)


def _times(c):
  sign = ("neg",) if c < 0 else ()
  if c.denominator == 1 and abs(c) <= MOST_ADDED:
    return (*sign, *["add"] * (abs(c.numerator) - 1))
  return (*sign, "const", "mul")


def _signed(plus, minus, lone, parts):
  """An n-ary operation on parts, of which some are (True) subtracted or divide."""
  inverse = sum(i for i, _ in parts)
  straight = len(parts) - inverse
  ops = [plus] * (straight - 1) + [minus] * inverse
  if not straight:
    ops = [plus] * (inverse - 1) + [lone]
  return Step(tuple(ops), tuple(p for _, p in parts))


def _unsigned(x):
  c = t.rational(x.args[0]) if x.op == t.MUL else t.rational(x)
  return (True, t.mul(t.const(-1), x)) if c is not None and c < 0 else (False, x)


def _divided(x):
  if x.op == t.POW and isinstance(x.attr, Fraction) and x.attr < 0:
    return True, t.power(x.args[0], -x.attr)
  return False, x


class Sizes:
  """Units: numbers of single operations; the size of values together is that of their union."""

  def __init__(self):
    self._units = {}
    self._count = 0

  def units(self, x, known):
    """The units of a chain over the heavy values ``known``, with all that is below them."""
    if x not in self._units:
      found = step(x, known)
      own = frozenset(range(self._count, self._count + len(found.ops)))
      self._count += len(own)
      self._units[x] = own.union(*(self.units(p, known) for p in found.parts))
    return self._units[x]


def operations(x, known):
  found = step(x, known)
  yield from found.ops
  for part in found.parts:
    yield from operations(part, known)
