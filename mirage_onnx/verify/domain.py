"""What a value is: a residue, a float64, or a float64 rounded to its element type.

One interpreter serves all three (abstract interpretation). Arrays have one leading axis of
independent runs (random draws, or numeric cases); all other axes belong to the program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from math import prod
from typing import Any, Protocol

import numpy as np

from mirage_onnx.ir.dtype import DType, round_to
from mirage_onnx.ir.functions import (
  DEFINED,
  ELEMENTWISE,
  EXPONENTS,
  EXTREMES,
  HALF,
  IRRATIONAL,
  Scipy,
  by_definition,
)
from mirage_onnx.verify import field

Axes = tuple[int, ...]

#: The lowest finite fp32 number: a running maximum starts here, so that x - max is never NaN.
LOWEST = -float(np.finfo(np.float32).max)


class Domain(Protocol):
  """Operations on arrays ``[rows, ...]``. ``elementwise`` takes arrays that broadcast.

  Axis 0 belongs to the domain: independent runs, times the components of a value.
  """

  @property
  def rows(self) -> int: ...

  @property
  def xp(self) -> Any:
    """The array module: numpy, or cupy."""
    ...

  def neutral(self, kind: str) -> np.ndarray:
    """[rows]: what a ``sum``, or a ``max``, ignores."""
    ...

  def lowest(self) -> np.ndarray:
    """[rows]: where a running maximum starts."""
    ...

  def constant(self, value: Fraction | str) -> np.ndarray: ...

  def extent(self, sizes: Mapping[str, int]) -> np.ndarray:
    """The number of elements along some axes, as a scalar of the program."""
    ...

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray: ...

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray: ...

  def total(self, x: np.ndarray, axis: Axes) -> np.ndarray: ...

  def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    """The maximum over ``axis``; over no elements, what no maximum changes."""
    ...

  def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray: ...

  def round(self, x: np.ndarray, dtype: DType) -> np.ndarray: ...


class Float64:
  """Real arithmetic, as far as float64 goes: casts change nothing."""

  def __init__(self, runs: int = 1, xp: Any = np) -> None:
    self.rows = runs
    self.xp = xp

  def neutral(self, kind: str) -> np.ndarray:
    return self._full(0.0 if kind == "sum" else -np.inf)

  def lowest(self) -> np.ndarray:
    return self._full(LOWEST)

  def constant(self, value: Fraction | str) -> np.ndarray:
    return self._full(IRRATIONAL[value] if isinstance(value, str) else float(value))

  def _full(self, number: float) -> np.ndarray:
    result: np.ndarray = self.xp.full((self.rows,), number)
    return result

  def extent(self, sizes: Mapping[str, int]) -> np.ndarray:
    return self.constant(Fraction(prod(sizes.values())))

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
      return real_function(op, self.xp)(*args)

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    return real_power(x, e)

  def total(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    with np.errstate(all="ignore"):
      result: np.ndarray = x.sum(axis=axis)
    return result

  def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    # cupy's maximum has no ``initial``; the empty sum is 0.
    result: np.ndarray = x.sum(axis=axis) - np.inf if 0 in x.shape else x.max(axis=axis)
    return result

  def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
      result: np.ndarray = x @ y
    return result

  def round(self, x: np.ndarray, dtype: DType) -> np.ndarray:
    return x


class Rounded(Float64):
  """Every value is rounded to its element type; sums inside one operation round once."""

  def round(self, x: np.ndarray, dtype: DType) -> np.ndarray:
    return round_to(x, dtype)


def real_function(op: str, xp: Any) -> Callable[..., np.ndarray]:
  """The elementwise function on float64 arrays of the module ``xp``.

  numpy's ufuncs serve cupy arrays too, scipy's and ``where`` do not.
  """
  if op == "select":
    return lambda c, x, y: xp.where(c != 0, x, y)
  function = ELEMENTWISE[op].reals
  if xp is np or not isinstance(function, Scipy):
    return function
  result: Callable[..., np.ndarray] = getattr(import_module(f"{xp.__name__}x.scipy.special"), function.name)
  return result


def real_power(x: np.ndarray, e: Fraction) -> np.ndarray:
  """``x ** e`` with the two cases that numpy does better by name."""
  with np.errstate(all="ignore"):
    result: np.ndarray = x * x if e == 2 else np.sqrt(x) if e == HALF else x ** float(e)
  return result


class Field:
  """Z_p with random functions (see ``field``), one set of random functions per draw.

  x ** (n/d) is root_d(x) ** n, where root_d is a random function: so 1/sqrt(x), rsqrt(x) and
  powr[-1/2](x) agree by construction. sqrt(x) ** 2 = x and sqrt(1/x) = 1/sqrt(x) do not hold
  here; ``square_root`` has a field in which they do.

  Random numbers are numpy's, whatever the array module ``xp``: all modules see the same draws.
  """

  def __init__(self, draws: int, rng: np.random.Generator, *, xp: Any = np) -> None:
    self.draws = self.rows = draws
    self.xp = xp
    keys = rng.integers(0, 1 << 64, size=draws, dtype=np.uint64)
    self.oracle = field.FieldOracle(xp.asarray(keys))
    self._irrational = {name: Field.random(self, rng, ()) for name in sorted(IRRATIONAL)}
    self._voids = False

  def neutral(self, kind: str) -> np.ndarray:
    zero: np.ndarray = self.xp.zeros((self.draws,), dtype=np.uint64)
    return zero if kind == "sum" else self.oracle.permute("max", zero, backwards=True)

  def lowest(self) -> np.ndarray:
    return self.neutral("max")

  def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values [rows, *shape] of an input: uniform residues."""
    drawn = rng.integers(0, field.P, size=(self.draws, *shape), dtype=np.uint64)
    result: np.ndarray = self.xp.asarray(drawn)
    return result

  def residues(self, x: np.ndarray) -> np.ndarray:
    """[draws, ...]: the residue that a value is, or ``VOID``."""
    return x

  def unequal(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[draws, ...]: where two values that exist are not the same."""
    result: np.ndarray = x != y
    return result

  def constant(self, value: Fraction | str) -> np.ndarray:
    if isinstance(value, str):
      return self._irrational[value]
    number = field.residue(*value.as_integer_ratio())
    result: np.ndarray = self.xp.full((self.draws,), number, dtype=np.uint64)
    return result

  def extent(self, sizes: Mapping[str, int]) -> np.ndarray:
    return self.constant(Fraction(prod(sizes.values())))

  def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
    if op in DEFINED:
      return self.defined(op, *args)
    return self._lift(lambda *a: self._apply(op, *a), *args)

  def defined(self, op: str, *args: np.ndarray) -> np.ndarray:
    """A function that others are the definition of."""
    return by_definition(op, args, _Scalars(self, args[0].ndim), self.elementwise)

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    return self._lift(lambda a: self._power(a, e), x)

  def total(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    if not self._voids:
      return field.total(x, axis)
    void = x == field.VOID
    clean = field.total(np.where(void, np.uint64(0), x), axis)
    return np.where(void.any(axis=axis), field.VOID, clean)

  def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
    images = self._lift(lambda a: self.oracle.permute("max", a), x)
    back = Field.total(self, images, axis)
    return self._lift(lambda a: self.oracle.permute("max", a, backwards=True), back)

  def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if not self._voids:
      return field.matmul(x, y)
    xv, yv = x == field.VOID, y == field.VOID
    zero = np.uint64(0)
    clean = field.matmul(np.where(xv, zero, x), np.where(yv, zero, y))
    void = xv.any(axis=-1)[..., :, None] | yv.any(axis=-2)[..., None, :]
    return np.where(void, field.VOID, clean)

  def round(self, x: np.ndarray, dtype: DType) -> np.ndarray:
    return x

  def _lift(self, fn: Callable[..., np.ndarray], *args: np.ndarray) -> np.ndarray:
    """Apply ``fn`` where every argument exists; everywhere else the result is void."""
    if not self._voids:
      return fn(*args)
    void = [a == field.VOID for a in args]
    result = fn(*(np.where(v, np.uint64(0), a) for v, a in zip(void, args, strict=True)))
    for v in void:
      result = np.where(v, field.VOID, result)
    return result

  def _void_where(self, missing: np.ndarray, x: np.ndarray) -> np.ndarray:
    if not missing.any():
      return x
    self._voids = True
    return np.where(missing, field.VOID, x)

  def _power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    n, d = e.as_integer_ratio()
    if d != 1:
      return self._lift(lambda r: self._power(r, Fraction(n)), self._root(x, d))
    if n >= 0:
      return field.power(x, n)
    return self._void_where(x == 0, field.power(field.inverse(x), -n))

  def _root(self, x: np.ndarray, d: int) -> np.ndarray:
    return self.oracle.call(f"root{d}", x)

  def _extreme(self, op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    images = field.add(self.oracle.permute(op, x), self.oracle.permute(op, y))
    return self.oracle.permute(op, images, backwards=True)

  def _apply(self, op: str, *args: np.ndarray) -> np.ndarray:
    match op, args:
      case "add", (x, y):
        return field.add(x, y)
      case "sub", (x, y):
        return field.sub(x, y)
      case "mul", (x, y):
        return field.mul(x, y)
      case "div", (x, y):
        return self._lift(field.mul, x, self._power(y, Fraction(-1)))
      case "neg", (x,):
        return field.sub(np.zeros_like(x), x)
      case _, (x,) if op in EXPONENTS:
        return self._power(x, EXPONENTS[op])
      case _, (x, y) if op in EXTREMES:
        return self._extreme(op, x, y)
      case _ if ELEMENTWISE[op].algebra is None:
        return self.oracle.call(op, *args)
    raise ValueError(f"{op} of {len(args)} arguments has no meaning in the field")


@dataclass(frozen=True, slots=True)
class _Scalars:
  """The rules of a field where constants have as many axes as a value."""

  domain: Field
  ndim: int

  def constant(self, value: Fraction | str) -> np.ndarray:
    return self.domain.constant(value).reshape(-1, *[1] * (self.ndim - 1))

  def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
    return self.domain.power(x, e)
