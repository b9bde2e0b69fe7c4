"""Elementwise functions: one table with all that any stage knows of one.

What a function is on numbers (``reals``), in terms (``algebra``) and as CUDA text, how an interval
and an error go through it, what it costs, and its name in ONNX. ``algebra`` rewrites a function into
terms; functions without it (exp, erf, max, ...) are heads of terms themselves and are opaque to the
axioms that do not name them; in a finite field they are random functions of their exact argument.
The rest follows (below the table): which functions are powers, which divide, of which others one is
made. Truth values are the numbers 0 and 1, so "and" is a product and "not x" is 1 - x.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cache, reduce
from math import inf
from typing import Any, Protocol, TypeVar

import numpy as np

from mirage_onnx.ir import interval as iv
from mirage_onnx.ir import term as t
from mirage_onnx.ir.interval import Interval
from mirage_onnx.ir.term import Term

HALF = Fraction(1, 2)
MINUS = t.const(-1)
_SLOPE_OF_ERF = 2 / float(np.sqrt(np.pi))


class Price(Enum):
  """What the CUDA text of a function keeps busy, for the cost model and the tuner."""

  LANE = "an instruction or two of a lane"
  SPECIAL = "the special function unit"
  LONG = "many instructions, the special function unit among them"


@dataclass(frozen=True, slots=True)
class Scipy:
  """A function of ``scipy.special`` (cupy has them under the same names), which takes half a second."""

  name: str

  def __call__(self, x: np.ndarray) -> np.ndarray:
    import scipy.special

    result: np.ndarray = getattr(scipy.special, self.name)(x)
    return result


def _never(*_: Interval) -> bool:
  return False


def _always(*_: Interval) -> bool:
  return True


def _inf(a: Interval) -> bool:
  return a.hi == inf or a.lo == -inf


def _alike(a: Interval, b: Interval) -> bool:
  """Both may be infinite on one side: their difference is NaN, two of them compare as equal."""
  return (a.hi == inf and b.hi == inf) or (a.lo == -inf and b.lo == -inf)


def _zero_times_inf(a: Interval, b: Interval) -> bool:
  return (_inf(a) and b.contains(0.0)) or (_inf(b) and a.contains(0.0))


def _quotient_of_inf(a: Interval, b: Interval) -> bool:
  return (_inf(a) and _inf(b)) or b.contains(0.0)


def _rsqrt(x: np.ndarray) -> np.ndarray:
  return 1.0 / np.sqrt(x)


def _select(c: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
  chosen: np.ndarray = np.where(c != 0, x, y)
  return chosen


def _same(*_: np.ndarray) -> float:
  return 1.0


def _none(*_: np.ndarray) -> float:
  """A comparison that rounding turns is seen by the empirical checks, not to first order."""
  return 0.0


#: A partial derivative, of (result, *arguments).
Partial = Callable[..., np.ndarray | float]


@dataclass(frozen=True, slots=True)
class Elementwise:
  """One function.

  ``cuda``: an expression in fp32 of operands {0}, {1}, ..., each a name (never evaluated twice) or a
  literal, so they need no parentheses. ``price``: what that costs. ``reals``: on float64 arrays, for
  the interpreters. ``interval``: holds every value that exists. ``partials``: a derivative by each
  argument, of (result, *arguments): there are as many as arguments.

  ``algebra``: the function in terms (None: an opaque head). ``onnx``: the operator of ONNX that is
  this function of its operands. ``keeps_zero``: it sends zeros (of all arguments) to zero. ``loses``:
  whether the result can be NaN or far from the truth if arguments in these intervals may be infinite.
  ``steady``: a relative error of its argument is no larger one of the result (of exp it is x times as large).
  """

  cuda: str
  price: Price
  reals: Callable[..., np.ndarray]
  interval: Callable[..., Interval]
  partials: tuple[Partial, ...]
  algebra: Callable[..., Term] | None = None
  onnx: str = ""
  keeps_zero: bool = False
  loses: Callable[..., bool] = _always
  steady: bool = False

  @property
  def arity(self) -> int:
    return len(self.partials)


_LANE, _SPECIAL, _LONG = Price

ELEMENTWISE: dict[str, Elementwise] = {
  "add": Elementwise(
    "{0} + {1}", _LANE, np.add, lambda a, b: a + b, (_same, _same),
    t.add, "Add", keeps_zero=True, loses=lambda a, b: _alike(a, -b)),
  "sub": Elementwise(
    "{0} - {1}", _LANE, np.subtract, lambda a, b: a + -b, (_same, lambda v, a, b: -1.0),
    lambda a, b: t.add(a, t.mul(MINUS, b)), "Sub", keeps_zero=True, loses=_alike),
  "mul": Elementwise(
    "{0} * {1}", _LANE, np.multiply, lambda a, b: a * b, (lambda v, a, b: b, lambda v, a, b: a),
    t.mul, "Mul", keeps_zero=True, loses=_zero_times_inf),
  "div": Elementwise(
    "{0} / {1}", _SPECIAL, np.divide, lambda a, b: a * iv.reciprocal(b),
    (lambda v, a, b: 1 / b, lambda v, a, b: -v / b),
    lambda a, b: t.mul(a, t.power(b, -1)), "Div", loses=_quotient_of_inf),
  "neg": Elementwise(
    "-{0}", _LANE, np.negative, lambda a: -a, (lambda v, a: -1.0,),
    lambda a: t.mul(MINUS, a), "Neg", keeps_zero=True, loses=_never),
  "recip": Elementwise(
    "ptx::rcp({0})", _SPECIAL, np.reciprocal, iv.reciprocal, (lambda v, a: -v * v,),
    lambda a: t.power(a, -1), "Reciprocal", loses=lambda a: a.contains(0.0)),
  "square": Elementwise(
    "square({0})", _LANE, np.square, lambda a: iv.power(a, Fraction(2)), (lambda v, a: 2 * a,),
    lambda a: t.power(a, 2), keeps_zero=True, loses=_never),
  "sqrt": Elementwise(
    "sqrtf({0})", _SPECIAL, np.sqrt, lambda a: iv.power(a, HALF), (lambda v, a: 0.5 / v,),
    lambda a: t.power(a, HALF), "Sqrt", keeps_zero=True),
  "rsqrt": Elementwise(
    "ptx::rsqrt({0})", _SPECIAL, _rsqrt, lambda a: iv.power(a, -HALF), (lambda v, a: -0.5 * v / a,),
    lambda a: t.power(a, -HALF)),
  # sigmoid(x) = 1 / (1 + exp(-x))
  "sigmoid": Elementwise(
    "sigmoid({0})", _LONG, Scipy("expit"), iv.monotone(iv.sigmoid), (lambda v, a: v * (1 - v),),
    lambda a: t.power(t.add(t.const(1), t.apply("exp", t.mul(MINUS, a))), -1), "Sigmoid", loses=_never),
  # relu(x) = max(0, x)
  "relu": Elementwise(
    "ptx::max_nan({0}, 0.0f)", _LANE, lambda a: np.maximum(a, 0),
    iv.monotone(lambda v: max(v, 0.0)), (lambda v, a: (a > 0) * 1.0,),
    lambda a: t.apply("max", t.const(0), a), "Relu", keeps_zero=True, loses=_never),
  "exp": Elementwise(
    "expf({0})", _LONG, np.exp, iv.exponential, (lambda v, a: v,), onnx="Exp", loses=_never),
  "log": Elementwise("logf({0})", _LONG, np.log, iv.logarithm, (lambda v, a: 1 / a,), onnx="Log"),
  "erf": Elementwise(
    "erff({0})", _LONG, Scipy("erf"), iv.monotone(math.erf), (lambda v, a: _SLOPE_OF_ERF * np.exp(-a * a),),
    onnx="Erf", keeps_zero=True, loses=_never, steady=True),
  "tanh": Elementwise(
    "tanhf({0})", _LONG, np.tanh, iv.monotone(math.tanh), (lambda v, a: 1 - v * v,),
    onnx="Tanh", keeps_zero=True, loses=_never, steady=True),
  "abs": Elementwise(
    "fabsf({0})", _LANE, np.abs, iv.absolute, (lambda v, a: np.sign(a),),
    onnx="Abs", keeps_zero=True, loses=_never),
  "sin": Elementwise(
    "sine({0})", _LONG, np.sin, iv.within(iv.SIGNED_UNIT), (lambda v, a: np.cos(a),),
    onnx="Sin", keeps_zero=True),
  "cos": Elementwise(
    "cosine({0})", _LONG, np.cos, iv.within(iv.SIGNED_UNIT), (lambda v, a: -np.sin(a),), onnx="Cos"),
  "max": Elementwise(
    "ptx::max_nan({0}, {1})", _LANE, np.maximum, iv.larger,
    (lambda v, a, b: (a >= b) * 1.0, lambda v, a, b: (a < b) * 1.0), keeps_zero=True, loses=_never),
  "min": Elementwise(
    "ptx::min_nan({0}, {1})", _LANE, np.minimum, iv.smaller,
    (lambda v, a, b: (a <= b) * 1.0, lambda v, a, b: (a > b) * 1.0), keeps_zero=True, loses=_never),
  # comparisons are 0 where an operand is NaN, and two numbers beyond the type are equal
  "less": Elementwise(
    "({0} < {1} ? 1.0f : 0.0f)", _LANE, lambda a, b: (a < b) * 1.0, iv.within(iv.UNIT), (_none, _none),
    keeps_zero=True, loses=_alike),
  "less_equal": Elementwise(
    "({0} <= {1} ? 1.0f : 0.0f)", _LANE, lambda a, b: (a <= b) * 1.0, iv.within(iv.UNIT), (_none, _none),
    loses=_alike),
  "equal": Elementwise(
    "({0} == {1} ? 1.0f : 0.0f)", _LANE, lambda a, b: (a == b) * 1.0, iv.within(iv.UNIT), (_none, _none),
    loses=_alike),
  # select(c, x, y) is x where c is not 0
  "select": Elementwise(
    "({0} != 0.0f ? {1} : {2})", _LANE, _select, lambda c, a, b: a | b,
    (_none, lambda v, c, a, b: (c != 0) * 1.0, lambda v, c, a, b: (c == 0) * 1.0),
    keeps_zero=True, loses=_never),
}  # fmt: skip

#: Named irrational constants of terms.
IRRATIONAL: dict[str, float] = {"pi": float(np.pi)}
#: Operations that send zeros to zero (of all arguments).
KEEPS_ZERO = frozenset({op for op, f in ELEMENTWISE.items() if f.keeps_zero} | {"cast"})


#: x times the normal distribution, in no graph: the lowering makes it of several (``lower/near.py``).
TIMES_NORMAL = "times_normal"


def is_elementwise(op: str) -> bool:
  """Whether a block operation is one of these functions, or goes element by element as they do."""
  return op in ELEMENTWISE or op in ("cast", "powr", TIMES_NORMAL)


def to_term(op: str, *args: Term) -> Term:
  """The term of ``op`` applied to ``args``."""
  entry = ELEMENTWISE[op]
  return entry.algebra(*args) if entry.algebra else t.apply(op, *args)


# -- what follows from the table


@cache
def _argument(number: int) -> Term:
  return t.input_(f"argument {number}", ())


@cache
def definition(op: str) -> Term:
  """The function as a term over its arguments."""
  return to_term(op, *map(_argument, range(ELEMENTWISE[op].arity)))


def _exponent(op: str) -> Fraction | None:
  whole = definition(op)
  is_power = whole.op == t.POW and whole.args == (_argument(0),)
  return whole.attr if is_power and isinstance(whole.attr, Fraction) else None


#: The functions that are powers of their argument.
EXPONENTS = {op: e for op in ELEMENTWISE if (e := _exponent(op)) is not None}
#: What every domain of values has a rule for, beside powers; ``DEFINED`` are made of these and of
#: opaque functions.
RING = frozenset({"add", "sub", "mul", "div", "neg"})
DEFINED = frozenset(op for op, f in ELEMENTWISE.items() if f.algebra and op not in {*RING, *EXPONENTS})
#: One evaluation of these in a field takes two images under a permutation, a sum and one back.
EXTREMES = frozenset({"max", "min"})


@cache
def divides_by_last(op: str) -> bool:
  """Whether a function divides by its last argument, or by a root of it."""
  last = _argument(ELEMENTWISE[op].arity - 1)
  return any(n.op == t.POW and n.args == (last,) and n.attr < 0 for n in t.walk([definition(op)]))  # type: ignore[operator]


@cache
def opaque_parts(op: str) -> frozenset[str]:
  """The opaque functions that a function is made of: ``max`` for both extremes, ``sqrt`` for square roots."""
  found = set()
  for n in t.walk([definition(op)]):
    if n.op in ELEMENTWISE and ELEMENTWISE[n.op].algebra is None:
      found.add("max" if n.op in EXTREMES else n.op)
    elif n.op == t.POW and isinstance(n.attr, Fraction) and n.attr.denominator == 2:
      found.add("sqrt")
  return frozenset(found)


@cache
def evaluations(op: str) -> int:
  """Evaluations of random functions for one element, in a field."""
  count = 0
  for n in t.walk([definition(op)]):
    if n.op in ELEMENTWISE and ELEMENTWISE[n.op].algebra is None:
      count += 4 if n.op in EXTREMES else 1
    elif n.op == t.POW and isinstance(n.attr, Fraction) and n.attr.denominator != 1:
      count += 1
  return count


V = TypeVar("V")


class Values(Protocol[V]):
  """Values of any kind (residues, degrees, ...) with the rules that every kind has."""

  def constant(self, value: Fraction | str) -> V: ...
  def power(self, x: V, e: Fraction) -> V: ...


def by_definition(op: str, args: Sequence[V], values: Values[V], apply: Callable[..., V]) -> V:
  """What a function of ``DEFINED`` is on any kind of values; ``apply``: other functions by name."""

  def value(x: Term) -> V:
    if x.op == t.INPUT:
      return next(a for i, a in enumerate(args) if x is _argument(i))
    if x.op == t.CONST:
      constant: Any = x.attr
      return values.constant(constant)
    if x.op == t.MUL and x.args[0] is MINUS and len(x.args) == 2:
      return apply("neg", value(x.args[1]))
    if x.op in (t.ADD, t.MUL):
      return reduce(lambda a, b: apply(x.op, a, b), map(value, x.args))
    if x.op == t.POW and isinstance(x.attr, Fraction):
      return values.power(value(x.args[0]), x.attr)
    return apply(x.op, *map(value, x.args))

  return value(definition(op))
