"""Z_p in which the shift of a softmax cancels: exp(x - m) = exp(x) / exp(m) for every maximum m.

A value has the components t, r, s (and g with ``logs``) of docs/verification.md, "the free
exponential", each an array over the draws, stacked on axis 0. Constants are marked in s and hold
their residue modulo q there, so that they can scale s. Two values are the same if their residues
are, or if their exponentials are.
"""

from fractions import Fraction
from math import prod

import numpy as np

from mirage_onnx.ir.functions import DEFINED, EXPONENTS, EXTREMES
from mirage_onnx.verify import field
from mirage_onnx.verify.domain import Axes, Field

#: Bit of ``s``: a constant, and ``s`` holds its residue modulo q. Bit of ``g``: positive.
MARK = np.uint64(1 << 62)
#: Multiples of a logarithm that stay a logarithm.
MOST_MULTIPLE = 16

_ZERO, _ONE = np.uint64(0), np.uint64(1)


class FreeExponential(Field):
  """Arrays are [components x draws, *axes], all draws of one component together."""

  def __init__(self, draws: int, rng: np.random.Generator, *, logs: bool = False) -> None:
    super().__init__(draws, rng)
    self._logs = logs
    self.rows = draws * (4 if logs else 3)

  # -- components

  def residues(self, x: np.ndarray) -> np.ndarray:
    return x[: self.draws]

  def _part(self, x: np.ndarray, i: int) -> np.ndarray:
    return x[i * self.draws : (i + 1) * self.draws]

  def _join(
    self,
    t: np.ndarray,
    r: np.ndarray | None = None,
    s: np.ndarray | None = None,
    g: np.ndarray | np.uint64 | None = None,
  ) -> np.ndarray:
    """The value of the components; what is left out is that of a value without maxima."""
    x = np.empty((self.rows, *t.shape[1:]), dtype=np.uint64)
    self._part(x, 0)[...] = t
    self._part(x, 1)[...] = t if r is None else r
    self._part(x, 2)[...] = _ZERO if s is None else s
    if self._logs:
      self._part(x, 3)[...] = _ONE if g is None else g
    return x

  def _scalar(self, value: int, ndim: int) -> np.ndarray:
    return self.constant(Fraction(value)).reshape(-1, *[1] * (ndim - 1))

  def _atom(self, t: np.ndarray) -> np.ndarray:
    """A maximum."""
    image = self.oracle.call("shift", np.where(t == field.VOID, _ZERO, t), m=field.Q)
    return self._join(t, np.where(t == field.VOID, t, _ZERO), image)

  # -- the domain

  def neutral(self, kind: str) -> np.ndarray:
    t = super().neutral(kind)
    return self._join(t, g=_ONE | MARK) if kind == "sum" else self._atom(t)

  def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return self._join(super().random(rng, shape))

  def constant(self, value: Fraction | str) -> np.ndarray:
    t = super().constant(value)
    if isinstance(value, str):
      name = f"constant {value}"
      image = self.oracle.call(name, np.zeros(self.draws, dtype=np.uint64), m=field.Q)
    else:
      q = field.residue(*value.as_integer_ratio(), field.Q)
      image = np.full(self.draws, q, dtype=np.uint64)
    positive = isinstance(value, str) or value > 0
    return self._join(t, s=image | MARK, g=_ONE | MARK if positive else None)

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
    if op in DEFINED:
      return self.defined(op, *args)
    match op:
      case "add" | "sub":
        return self._sum(op, *args)
      case "neg":
        return self._sum("sub", self._scalar(0, args[0].ndim), *args)
      case "mul":
        return self._product(*args)
      case "div":
        return self._product(args[0], self.power(args[1], Fraction(-1)))
      case "exp":
        return self._exp(args[0])
      case "log":
        return self._log(args[0])
      case _ if op in EXPONENTS:
        return self.power(args[0], EXPONENTS[op])
    t = super().elementwise(op, *map(self.residues, args))
    return self._atom(t) if op in EXTREMES else self._join(t)

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    t = super().power(self.residues(x), e)
    g = self._part(x, 3) & MARK | _ONE if self._logs else None
    s = self._part(x, 2)
    if not (s & MARK).any():
      return self._join(t, g=g)
    n, d = e.as_integer_ratio()
    image = s & ~MARK
    image = image if d == 1 else self.oracle.call(f"exponent of root{d}", image, m=field.Q)
    image = field.inverse(image, field.Q) if n < 0 else image
    image = field.power(image, abs(n), field.Q)
    return self._join(t, s=np.where(s & MARK, image | MARK, _ZERO), g=g)

  def total(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    s = self._part(x, 2)
    marked = s & MARK
    if marked.any():
      # A sum of constants is one; any other has what its maxima say.
      all_marked = marked.all(axis=axis)
      image = field.total(s & ~MARK, axis, field.Q) | MARK
      maxima = field.total(np.where(marked, _ZERO, s), axis, field.Q)
      exponent = np.where(all_marked, image, maxima)
    else:
      exponent = field.total(s, axis, field.Q)
    g = None
    if self._logs:
      g = _over(self._part(x, 3), axis)
    t, r = (Field.total(self, self._part(x, i), axis) for i in (0, 1))
    return self._join(t, r, exponent, g)

  def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    return self._atom(super().highest(self.residues(x), axis))

  def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return self._join(super().matmul(self.residues(x), self.residues(y)))

  def unequal(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    differs = np.asarray(self.residues(x) != self.residues(y))
    if self._logs and differs.any():
      differs &= self.residues(self._exp(x)) != self.residues(self._exp(y))
    return differs

  # -- operations on components

  def _sum(self, op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y or x - y."""
    t, r = (Field.elementwise(self, op, self._part(x, i), self._part(y, i)) for i in (0, 1))
    u, v = self._part(x, 2), self._part(y, 2)
    fn = field.add if op == "add" else field.sub
    if ((u | v) & MARK).any():
      image = fn(u & ~MARK, v & ~MARK, field.Q) | MARK
      s = np.where(u & v & MARK, image, fn(_exponent(u), _exponent(v), field.Q))
    else:
      s = fn(u, v, field.Q)
    if not self._logs:
      return self._join(t, r, s)
    a, b = self._part(x, 3), self._part(y, 3)
    positive = a & b & MARK if op == "add" else _ZERO
    a, b = a & ~MARK, b & ~MARK
    if op == "sub" and (b != _ONE).any():
      b = field.inverse(b)
    return self._join(t, r, s, field.mul(a, b) | positive)

  def _product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    t = Field.elementwise(self, "mul", self.residues(x), self.residues(y))
    a, b = self._part(x, 2), self._part(y, 2)
    p, q = (a & MARK) != 0, (b & MARK) != 0
    g = self._part(x, 3) & self._part(y, 3) & MARK | _ONE if self._logs else None
    if not (p.any() or q.any()):
      return self._join(t, g=g)
    left = np.where(q, self._part(x, 1), self.residues(x))
    right = np.where(p, self._part(y, 1), self.residues(y))
    r = Field.elementwise(self, "mul", left, right)
    scaled = field.mul(a & ~MARK, b & ~MARK, field.Q)
    s = np.where(p | q, np.where(p & q, scaled | MARK, scaled), _ZERO)
    if self._logs and g is not None:
      r, s, g = self._scaled_logs(x, y, t, r, s, g)
    return self._join(t, r, s, g)

  def _scaled_logs(
    self,
    x: np.ndarray,
    y: np.ndarray,
    t: np.ndarray,
    r: np.ndarray,
    s: np.ndarray,
    g: np.ndarray,
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n log(y) is log(y^n) for a small whole n; any other product holds no logarithm."""
    for c, v in ((x, y), (y, x)):
      logs = self._part(v, 3) & ~MARK
      if not (logs != _ONE).any():
        continue
      n = _small(self.residues(c)) if (self._part(c, 2) & MARK).all() else None
      if n is None:
        bare = logs == _ONE
        return np.where(bare, r, t), np.where(bare, s, _ZERO), g
      return r, s, field.power(field.inverse(logs) if n < 0 else logs, abs(n)) | (g & MARK)
    return r, s, g

  def _exp(self, x: np.ndarray) -> np.ndarray:
    value = self._lift(self._free, self._part(x, 1))
    shift = field.omega_power(_exponent(self._part(x, 2)))
    t = self._lift(field.mul, value, shift)
    if not self._logs:
      return self._join(t)
    t = self._lift(field.mul, t, self._part(x, 3) & ~MARK)
    return self._join(t, g=_ONE | MARK)

  def _free(self, r: np.ndarray) -> np.ndarray:
    return np.where(r == 0, _ONE, self.oracle.call("exp", r))

  def _log(self, x: np.ndarray) -> np.ndarray:
    y = self.residues(x)
    t = Field.elementwise(self, "log", y)
    if not self._logs:
      return self._join(t)
    known = (self._part(x, 3) & MARK) != 0
    known &= (y != field.VOID) & (y != 0)
    return self._join(t, np.where(known, _ZERO, t), g=np.where(known, y, _ONE))


def _exponent(s: np.ndarray) -> np.ndarray:
  """A constant has no maxima."""
  return np.where(s & MARK, _ZERO, s)


def _over(g: np.ndarray, axis: Axes) -> np.ndarray:
  """What a sum over ``axis`` makes of the logarithms: their product."""
  positive = (g & MARK).all(axis=axis)
  logs = g & ~MARK
  if (logs == _ONE).all():
    return np.where(positive, _ONE | MARK, _ONE)
  moved = np.moveaxis(logs, axis, tuple(range(len(axis))))
  flat = moved.reshape(prod(moved.shape[: len(axis)]), *moved.shape[len(axis) :])
  return field.product(flat) | np.where(positive, MARK, _ZERO)


def _small(c: np.ndarray) -> int | None:
  """The small whole number that a residue is in all draws, with its sign."""
  first = int(c.flat[0])
  n = first if first <= MOST_MULTIPLE else first - field.P
  return n if abs(n) <= MOST_MULTIPLE and (c == c.flat[0]).all() else None
