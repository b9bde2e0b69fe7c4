"""Elementwise functions: one table with arity, meaning on the reals, and algebra.

``algebra`` rewrites a function into terms; functions without it (exp, erf, max, ...) are heads of
terms themselves and are opaque to the axioms that do not name them. ``fn`` is the meaning on
float64 arrays, which the interpreters use. Truth values are the numbers 0 and 1, so "and" is a
product and "not x" is 1 - x.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term

HALF = Fraction(1, 2)
MINUS = t.const(-1)


@dataclass(frozen=True, slots=True)
class Elementwise:
  """``arity`` arguments, ``fn`` on float64 arrays, ``algebra`` on terms (None: opaque head)."""

  arity: int
  fn: Callable[..., np.ndarray]
  algebra: Callable[..., Term] | None = None


def _rsqrt(x: np.ndarray) -> np.ndarray:
  return 1.0 / np.sqrt(x)


def _select(c: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
  chosen: np.ndarray = np.where(c != 0, x, y)
  return chosen


def _sigmoid(x: np.ndarray) -> np.ndarray:
  from scipy.special import expit  # takes half a second

  return expit(x)


def _erf(x: np.ndarray) -> np.ndarray:
  from scipy.special import erf

  return erf(x)


ELEMENTWISE: dict[str, Elementwise] = {
  # name            arity  reals                       algebra
  "add":     Elementwise(2, np.add,                    t.add),
  "sub":     Elementwise(2, np.subtract,               lambda a, b: t.add(a, t.mul(MINUS, b))),
  "mul":     Elementwise(2, np.multiply,               t.mul),
  "div":     Elementwise(2, np.divide,                 lambda a, b: t.mul(a, t.power(b, -1))),
  "neg":     Elementwise(1, np.negative,               lambda a: t.mul(t.const(-1), a)),
  "recip":   Elementwise(1, np.reciprocal,             lambda a: t.power(a, -1)),
  "square":  Elementwise(1, np.square,                 lambda a: t.power(a, 2)),
  "sqrt":    Elementwise(1, np.sqrt,                   lambda a: t.power(a, HALF)),
  "rsqrt":   Elementwise(1, _rsqrt,                    lambda a: t.power(a, -HALF)),
  # sigmoid(x) = 1 / (1 + exp(-x))
  "sigmoid": Elementwise(1, _sigmoid,                  lambda a: t.power(
    t.add(t.const(1), t.apply("exp", t.mul(t.const(-1), a))), -1)),
  # relu(x) = max(0, x)
  "relu":    Elementwise(1, lambda a: np.maximum(a, 0), lambda a: t.apply("max", t.const(0), a)),
  "exp":     Elementwise(1, np.exp),
  "log":     Elementwise(1, np.log),
  "erf":     Elementwise(1, _erf),
  "tanh":    Elementwise(1, np.tanh),
  "abs":     Elementwise(1, np.abs),
  "sin":     Elementwise(1, np.sin),
  "cos":     Elementwise(1, np.cos),
  "max":     Elementwise(2, np.maximum),
  "min":     Elementwise(2, np.minimum),
  # comparisons are 0 where an operand is NaN; select(c, x, y) is x where c is not 0
  "less":       Elementwise(2, lambda a, b: (a < b) * 1.0),
  "less_equal": Elementwise(2, lambda a, b: (a <= b) * 1.0),
  "equal":      Elementwise(2, lambda a, b: (a == b) * 1.0),
  "select":     Elementwise(3, _select),
}  # fmt: skip

#: Named irrational constants of terms.
IRRATIONAL: dict[str, float] = {"pi": float(np.pi)}


def to_term(op: str, *args: Term) -> Term:
  """The term of ``op`` applied to ``args``."""
  entry = ELEMENTWISE[op]
  return entry.algebra(*args) if entry.algebra else t.apply(op, *args)
