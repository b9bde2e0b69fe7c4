"""Z_p x Z_q, where exp(a) exp(b) = exp(a + b): tier 2 of docs/verification.md.

A value is a pair of independent residues, stacked on axis 0: x_p for what stands outside of
exponentials, x_q for what stands inside. Functions but exp, and maxima, are pairs of random
functions of x_p.
"""

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.functions import DEFINED, EXPONENTS, EXTREMES
from mirage_onnx.verify import field
from mirage_onnx.verify.domain import Axes, Field

#: In x_q: the value is made from an exponential, and cannot stand in one.
OUTSIDE = field.VOID


class ExponentPair(Field):
  """Arrays are [2 x draws, *axes]: all x_p, then all x_q."""

  def __init__(self, draws: int, rng: np.random.Generator) -> None:
    super().__init__(draws, rng)
    self.rows = 2 * draws
    self._generator = rng.integers(1, field.Q, size=draws, dtype=np.uint64)

  def residues(self, x: np.ndarray) -> np.ndarray:
    return x[: self.draws]

  def unequal(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(self.residues(x) != self.residues(y))

  def neutral(self, kind: str) -> np.ndarray:
    x = super().neutral(kind)
    zero = np.zeros_like(x)
    return np.concatenate([x, zero if kind == "sum" else self._image("max", x)])

  def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    inside = rng.integers(0, field.Q, size=(self.draws, *shape), dtype=np.uint64)
    return np.concatenate([super().random(rng, shape), inside])

  def constant(self, value: Fraction | str) -> np.ndarray:
    x = super().constant(value)
    if isinstance(value, str):
      return np.concatenate([x, self._image(f"constant {value}", np.zeros_like(x))])
    inside = field.residue(*value.as_integer_ratio(), field.Q)
    return np.concatenate([x, np.full(self.draws, inside, dtype=np.uint64)])

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
    if op in DEFINED:
      return self.defined(op, *args)
    outer, inner = [list(parts) for parts in zip(*map(self._parts, args), strict=True)]
    match op:
      case "add" | "sub" | "mul" | "neg":
        x = super().elementwise(op, *outer)
        return self._join(x, _inside(_RING[op], *inner))
      case "div":
        return self.elementwise("mul", args[0], self.power(args[1], Fraction(-1)))
      case "exp":
        return self._exp(args[0])
      case _ if op in EXPONENTS:
        return self.power(args[0], EXPONENTS[op])
    x = super().elementwise(op, *outer)
    if op in EXTREMES:
      return self._opaque(x, "max", x)
    return self._opaque(outer[0] if len(outer) == 1 else x, op, x)

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    n, d = e.as_integer_ratio()
    outer, inner = self._parts(x)
    if d != 1:
      root = self._opaque(outer, f"root{d}", super().power(outer, Fraction(1, d)))
      return self.power(root, Fraction(n))
    return self._join(super().power(outer, e), _inside(lambda v: _power(v, n), inner))

  def total(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    outer, inner = self._parts(x)
    gone = inner == OUTSIDE
    sums = field.total(np.where(gone, np.uint64(0), inner), axis, field.Q)
    inside = np.where(gone.any(axis=axis), OUTSIDE, sums)
    return self._join(Field.total(self, outer, axis), inside)

  def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    top = super().highest(self.residues(x), axis)
    return self._opaque(top, "max", top)

  def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (a, u), (b, v) = self._parts(x), self._parts(y)
    zero = np.uint64(0)
    no_u, no_v = u == OUTSIDE, v == OUTSIDE
    inner = field.matmul(np.where(no_u, zero, u), np.where(no_v, zero, v), field.Q)
    gone = no_u.any(axis=-1)[..., :, None] | no_v.any(axis=-2)[..., None, :]
    return self._join(super().matmul(a, b), np.where(gone, OUTSIDE, inner))

  def _parts(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x[: self.draws], x[self.draws :]

  def _join(self, outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    return np.concatenate([outer, np.broadcast_to(inner, outer.shape)])

  def _image(self, name: str, x: np.ndarray) -> np.ndarray:
    """A random function into Z_q."""
    known = np.where(x == field.VOID, 0, x)
    return self.oracle.call(f"exponent of {name}", known, m=field.Q)

  def _opaque(self, argument: np.ndarray, op: str, value: np.ndarray) -> np.ndarray:
    return self._join(value, self._image(op, argument))

  def _exp(self, x: np.ndarray) -> np.ndarray:
    outer, inner = self._parts(x)
    if (inner == OUTSIDE).any():
      raise RejectionError(
        "INCONCLUSIVE",
        "an exponential stands inside another one, so exp(a) exp(b) = exp(a + b) cannot be "
        "tested; write the candidate without this law",
      )
    scale = self._generator.reshape(-1, *[1] * (inner.ndim - 1))
    value = field.omega_power(field.mul(inner, scale, field.Q))
    value = np.where(outer == field.VOID, field.VOID, value)
    return self._join(value, np.full_like(inner, OUTSIDE))


def _power(x: np.ndarray, n: int) -> np.ndarray:
  """x^n in Z_q; 1/0 cannot stand in an exponential."""
  if n >= 0:
    return field.power(x, n, field.Q)
  value = field.power(field.inverse(x, field.Q), -n, field.Q)
  return np.where(x == 0, OUTSIDE, value)


_RING: dict[str, Callable[..., np.ndarray]] = {
  "add": lambda x, y: field.add(x, y, field.Q),
  "sub": lambda x, y: field.sub(x, y, field.Q),
  "mul": lambda x, y: field.mul(x, y, field.Q),
  "neg": lambda x: field.sub(np.zeros_like(x), x, field.Q),
}


def _inside(fn: Callable[..., np.ndarray], *args: np.ndarray) -> np.ndarray:
  """``fn`` where no argument is made from an exponential."""
  gone = [a == OUTSIDE for a in args]
  if not any(g.any() for g in gone):
    return np.asarray(fn(*args))
  zero = np.uint64(0)
  value = fn(*(np.where(g, zero, a) for g, a in zip(gone, args, strict=True)))
  for g in gone:
    value = np.where(g, OUTSIDE, value)
  return np.asarray(value)
