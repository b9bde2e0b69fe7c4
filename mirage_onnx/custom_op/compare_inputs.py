"""Inputs that two models are compared on: random ones and ones that are hard for float kernels."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mirage_onnx.errors import MirageError

#: Adversarial kinds; every one is drawn once, after the normal ones.
KINDS = ("small", "large", "constant_rows", "outliers", "offset", "zeros")
#: Size of a dynamic dimension that nothing sets. Equal ones always broadcast.
DEFAULT_DIM = 4
#: Exclusive upper end of integer inputs that nothing sets: valid as id, mask and position.
DEFAULT_INT_LIMIT = 2

_SCALE = 2.0**8
_CLIP = 2.0**10  # sums of products of such values overflow late even in float16
_OUTLIER = 2.0**6
_FLOATS = {
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
}
_INTEGERS = {
    f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}


def draw_inputs(
    arguments: Sequence[Any],
    seed: int,
    draws: int,
    dims: Mapping[str, int],
    int_limits: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """``(kind, arrays by name)``: ``draws`` normal ones, then each of ``KINDS``.

    ``arguments`` are onnxruntime's ``get_inputs()``.

    Raises:
        MirageError: OPTION_INVALID for an input whose type cannot be drawn.
    """
    for index, kind in enumerate([*(f"normal {i}" for i in range(draws)), *KINDS]):
        rng = np.random.default_rng([seed, index])
        yield (
            kind,
            {
                value.name: _draw(
                    rng,
                    kind,
                    value,
                    tuple(size_of(dim, dims) for dim in value.shape),
                    int_limits.get(value.name, DEFAULT_INT_LIMIT),
                )
                for value in arguments
            },
        )


def size_of(dim: int | str | None, dims: Mapping[str, int]) -> int:
    """A dimension as a number; torch writes sums of symbols, as in ``past + 1``."""
    if isinstance(dim, int):
        return dim
    if dim is None or dim in dims:
        return dims[dim] if dim else DEFAULT_DIM
    try:
        return _evaluate(ast.parse(dim, mode="eval").body, dims)
    except (SyntaxError, ValueError):
        return DEFAULT_DIM


def _evaluate(tree: ast.expr, dims: Mapping[str, int]) -> int:
    match tree:
        case ast.Name(name):
            return dims.get(name, DEFAULT_DIM)
        case ast.Constant(int(value)):
            return value
        case ast.BinOp(left, ast.Add(), right):
            return _evaluate(left, dims) + _evaluate(right, dims)
        case ast.BinOp(left, ast.Sub(), right):
            return _evaluate(left, dims) - _evaluate(right, dims)
        case ast.BinOp(left, ast.Mult(), right):
            return _evaluate(left, dims) * _evaluate(right, dims)
    raise ValueError(ast.dump(tree))


def _draw(
    rng: np.random.Generator, kind: str, value: Any, shape: tuple[int, ...], limit: int
) -> np.ndarray:
    rows = (*shape[:-1], 1) if shape and kind == "constant_rows" else shape
    if value.type in _FLOATS:
        found = _shaped(rng, kind, rng.standard_normal(rows))
        return np.broadcast_to(found, shape).astype(_FLOATS[value.type])
    if value.type == "tensor(bool)":
        dtype, limit = np.dtype(np.bool_), 2
    elif value.type in _INTEGERS:
        dtype = _INTEGERS[value.type]
    else:
        raise MirageError("OPTION_INVALID", f"no way to draw input {value.name!r}: {value.type}")
    numbers = np.zeros(rows) if kind == "zeros" else rng.integers(0, limit, rows)
    return np.broadcast_to(numbers, shape).astype(dtype)


def _shaped(rng: np.random.Generator, kind: str, x: np.ndarray) -> np.ndarray:
    match kind:
        case "small":
            return x / _SCALE
        case "large":
            return np.clip(x * _SCALE, -_CLIP, _CLIP)
        case "outliers" if x.ndim:
            return x * np.where(rng.random(x.shape[-1]) < 1 / 16, _OUTLIER, 1.0)
        case "offset":
            return x + _OUTLIER
        case "zeros":
            return np.zeros(x.shape)
    return x
