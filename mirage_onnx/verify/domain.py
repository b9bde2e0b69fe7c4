"""What a value is: a residue, a float64, or a float64 rounded to its element type.

One interpreter serves all three (abstract interpretation). Arrays have one leading axis of
independent runs (random draws, or numeric cases); all other axes belong to the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import prod
from typing import Any, Protocol

import numpy as np

from mirage_onnx.ir.dtype import DType, round_to
from mirage_onnx.ir.ops import ELEMENTWISE, HALF, IRRATIONAL
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
        return np.asarray(self.xp.full(self.rows, 0.0 if kind == "sum" else -np.inf))

    def lowest(self) -> np.ndarray:
        return np.asarray(self.xp.full(self.rows, LOWEST))

    def constant(self, value: Fraction | str) -> np.ndarray:
        number = IRRATIONAL[value] if isinstance(value, str) else float(value)
        return np.full(self.rows, number)

    def extent(self, sizes: Mapping[str, int]) -> np.ndarray:
        return self.constant(Fraction(prod(sizes.values())))

    def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return ELEMENTWISE[op].fn(*args)

    def power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
        return real_power(x, e)

    def total(self, x: np.ndarray, axis: Axes) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(x.sum(axis=axis))

    def highest(self, x: np.ndarray, axis: Axes) -> np.ndarray:
        return np.asarray(x.max(axis=axis, initial=-np.inf))

    def matmul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(x, y))

    def round(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        return x


class Rounded(Float64):
    """Every value is rounded to its element type; sums inside one operation round once."""

    def round(self, x: np.ndarray, dtype: DType) -> np.ndarray:
        return round_to(x, dtype)


def real_power(x: np.ndarray, e: Fraction) -> np.ndarray:
    """``x ** e`` with the two cases that numpy does better by name."""
    with np.errstate(all="ignore"):
        if e == 2:
            return np.asarray(np.square(x))
        return np.asarray(np.sqrt(x) if e == HALF else np.power(x, float(e)))


class Field:
    """Z_p with random functions (see ``field``), one set of random functions per draw.

    x ** (n/d) is root_d(x) ** n, where root_d is a random function: so 1/sqrt(x), rsqrt(x) and
    powr[-1/2](x) agree by construction. sqrt(x) ** 2 = x and sqrt(1/x) = 1/sqrt(x) do not hold
    here: terms normalise both, and a candidate that spells them so is rejected.
    """

    def __init__(self, runs: int, rng: np.random.Generator) -> None:
        self.rows = runs
        self.xp: Any = np
        self.oracle = field.Oracle(rng.integers(0, 1 << 64, size=runs, dtype=np.uint64))
        self._irrational = {name: self.random(rng, ()) for name in sorted(IRRATIONAL)}
        self._voids = False

    def neutral(self, kind: str) -> np.ndarray:
        zero = np.zeros(self.rows, dtype=np.uint64)
        return zero if kind == "sum" else self.oracle.permute("max", zero, backwards=True)

    def lowest(self) -> np.ndarray:
        return self.neutral("max")

    def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform residues [run, *shape]."""
        return rng.integers(0, field.P, size=(self.rows, *shape), dtype=np.uint64)

    def constant(self, value: Fraction | str) -> np.ndarray:
        if isinstance(value, str):
            return self._irrational[value]
        return np.full(self.rows, field.residue(*value.as_integer_ratio()), dtype=np.uint64)

    def extent(self, sizes: Mapping[str, int]) -> np.ndarray:
        """A random element per axis and draw: no literal number can pass for an extent."""
        result = np.ones(self.rows, dtype=np.uint64)
        for axis in sizes:
            size = self.oracle.call(f"extent {axis}", np.zeros(self.rows, dtype=np.uint64))
            result = field.mul(result, size)
        return result

    def elementwise(self, op: str, *args: np.ndarray) -> np.ndarray:
        return self._lift(lambda *a: self._apply(op, *a), *args)

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
        back = self.total(images, axis)
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

    def _power(self, x: np.ndarray, e: Fraction) -> np.ndarray:
        n, d = e.as_integer_ratio()
        base = x if d == 1 else self.oracle.call(f"root{d}", x)
        if n >= 0:
            return field.power(base, n)
        result = field.power(field.inverse(base), -n)
        if not base.all():
            self._voids = True
            result = np.where(base == 0, field.VOID, result)
        return result

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
                return self.elementwise("mul", x, self._power(y, Fraction(-1)))
            case "neg", (x,):
                return field.sub(np.zeros_like(x), x)
            case "recip" | "square" | "sqrt" | "rsqrt", (x,):
                return self._power(x, _EXPONENT[op])
            case "sigmoid", (x,):
                e = self.oracle.call("exp", field.sub(np.zeros_like(x), x))
                return self._power(field.add(np.ones_like(e), e), Fraction(-1))
            case "relu", (x,):
                return self._extreme("max", np.zeros_like(x), x)
            case "max" | "min", (x, y):
                return self._extreme(op, x, y)
            case _, (x,) if ELEMENTWISE[op].algebra is None:
                return self.oracle.call(op, x)
        raise ValueError(f"{op} of {len(args)} arguments has no meaning in the field")


_EXPONENT = {"recip": Fraction(-1), "square": Fraction(2), "sqrt": HALF, "rsqrt": -HALF}
