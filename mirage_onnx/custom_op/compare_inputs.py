"""Inputs that two models are compared on: given in a file, or random and hard for float kernels."""

import ast
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
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
  f"tensor({sign}int{bits})": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
}
_BOOLS = {"tensor(bool)": np.dtype(np.bool_)}


def draw_inputs(
  arguments: Sequence[Any],
  seed: int,
  draws: int,
  dims: Mapping[str, int | Sequence[int]],
  int_limits: Mapping[str, int],
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """``(kind, arrays by name)``: ``draws`` normal ones, then each of ``KINDS``.

  ``arguments`` are onnxruntime's ``get_inputs()``. Where ``dims`` has several sizes of a name,
  all are drawn at the first ones, and one normal one at every other combination.

  Raises:
      MirageError: OPTION_INVALID for an input whose type cannot be drawn.
  """
  lists = {n: [v] if isinstance(v, int) else list(v) for n, v in dims.items()}
  first, *others = (dict(zip(lists, some, strict=True)) for some in product(*lists.values()))
  cases = [(kind, first) for kind in (*(f"normal {i}" for i in range(draws)), *KINDS)]
  for some in others:
    cases.append((f"normal at {' '.join(f'{n}={v}' for n, v in some.items())}", some))
  for index, (kind, sizes) in enumerate(cases):
    rng = np.random.default_rng([seed, index])
    yield (
      kind,
      {
        value.name: _draw(
          rng,
          kind,
          value,
          tuple(size_of(dim, sizes) for dim in value.shape),
          int_limits.get(value.name, DEFAULT_INT_LIMIT),
        )
        for value in arguments
      },
    )


def read_inputs(path: str | Path) -> dict[str, np.ndarray]:
  """The arrays of an ``.npz`` file, by name.

  Raises:
      MirageError: FILE_MISSING; INPUTS_INVALID when it is no such file.
  """
  try:
    file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
      raise MirageError("INPUTS_INVALID", f"{str(path)!r} holds one array without a name")
    with file:
      return {name: file[name] for name in file.files}
  except FileNotFoundError as error:
    raise MirageError("FILE_MISSING", f"{str(path)!r} does not exist") from error
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
    why = next(iter(str(error).splitlines()), type(error).__name__)
    raise MirageError("INPUTS_INVALID", f"{str(path)!r} is no .npz file: {why}") from error


def check_inputs(arguments: Sequence[Any], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """``given`` in the order of ``arguments``, onnxruntime's ``get_inputs()``.

  numpy has no bfloat16: such an input may come as its 16 bits (``uint16``, or ``V2`` as
  ``numpy.savez`` writes ml_dtypes).

  Raises:
      MirageError: INPUTS_INVALID, naming every input that is missing, unknown or ill-typed.
  """
  names = [value.name for value in arguments]
  problems = [f"'{n}' is missing" for n in names if n not in given]
  problems += [f"'{n}' is no input of the model" for n in given if n not in names]
  found = {}
  for value in arguments:
    if value.name in given:
      array = given[value.name]
      wanted = _FLOATS.get(value.type) or _INTEGERS.get(value.type) or _BOOLS.get(value.type)
      if wanted == ml_dtypes.bfloat16 and array.dtype in (np.dtype("V2"), np.uint16):
        array = array.view(ml_dtypes.bfloat16)
      if wanted is not None and array.dtype != wanted:
        problems.append(f"'{value.name}' is {array.dtype}, not {wanted}")
      elif not _fits(array.shape, value.shape):
        problems.append(f"'{value.name}' is {list(array.shape)}, not {value.shape}")
      found[value.name] = np.ascontiguousarray(array).reshape(array.shape)
  if problems:
    raise MirageError("INPUTS_INVALID", "; ".join(problems))
  return found


def _fits(shape: tuple[int, ...], wanted: Sequence[int | str | None]) -> bool:
  sizes = zip(shape, wanted, strict=False)
  known = all(n == size for n, size in sizes if isinstance(size, int))
  return known and (len(shape) == len(wanted) or not wanted)


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


def _draw(rng: np.random.Generator, kind: str, value: Any, shape: tuple[int, ...], limit: int) -> np.ndarray:
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
