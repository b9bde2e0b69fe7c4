"""Inputs that two models are compared on: given in a file, or random and hard for float kernels.

Those at the edge of what the original takes are in ``edge_inputs``; what the graph says of its inputs
(ends of ids, masks, lengths) is in ``input_facts``.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mirage_onnx.custom_op.input_facts import InputFacts
from mirage_onnx.errors import MirageError
from mirage_onnx.ir.size_names import size_by_name

#: Adversarial kinds; every one is drawn once, after the normal ones.
KINDS = ("small", "large", "constant_rows", "outliers", "offset", "zeros")
#: With which an original of 16 bits may overflow inside, where onnxruntime's CPU provider holds it in fp32.
HARD = ("large", "outliers", "offset")
#: Further kinds of models with masks: halves of rows and whole rows are hidden. Where the original
#: makes NaN of a row that is hidden throughout, it is no measure.
MASKED = ("masked rows", "masked rows -inf", "masked throughout")
#: The kind that is drawn first.
FIRST = "normal 0"
#: The kind with which a cache grows.
GROWS = "normal 1"
#: With which a cache holds fewer tokens than it has rows; with the last each sequence as many as it has.
SHORTER = ("normal 2", "normal 3")
#: Size of a dynamic dimension that nothing sets. Equal ones always broadcast. Of a dimension without a name
#: the size may be given under ``NAMELESS``.
DEFAULT_DIM = 4
NAMELESS = ""
#: Exclusive upper end of integer inputs that nothing sets: valid as id, mask and position.
DEFAULT_INT_LIMIT = 2

_SCALE = 2.0**8
#: Of the rows in turn where they are small: beside the epsilon of a norm each lies elsewhere.
_SMALL = 2.0 ** -np.array([8, 5, 9, 6, 7, 4])
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
_NOTHING = InputFacts()


def draw_inputs(
  arguments: Sequence[Any],
  seed: int,
  draws: int,
  dims: Mapping[str, int | Sequence[int]],
  int_limits: Mapping[str, int],
  facts: InputFacts = _NOTHING,
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
  """``(kind, arrays by name)``: ``draws`` normal ones, each of ``KINDS``, ``MASKED`` where there are masks.

  ``arguments`` are onnxruntime's ``get_inputs()``. Where ``dims`` has several sizes of a name,
  all are drawn at the first ones, and one normal one at every other combination.

  Raises:
      MirageError: OPTION_INVALID for an input whose type cannot be drawn.
  """
  first, *others = combinations(dims)
  kinds = (*(f"normal {i}" for i in range(draws)), *KINDS, *(MASKED if facts.masks else ()))
  cases = [(kind, first) for kind in kinds]
  for some in others:
    cases.append((f"normal at {' '.join(f'{n}={v}' for n, v in some.items())}", some))
  for index, (kind, sizes) in enumerate(cases):
    yield kind, draw_one(arguments, np.random.default_rng([seed, index]), kind, sizes, int_limits, facts)


def combinations(dims: Mapping[str, int | Sequence[int]]) -> list[dict[str, int]]:
  """Every choice of one size for each name."""
  lists = {n: [v] if isinstance(v, int) else list(v) for n, v in dims.items()}
  return [dict(zip(lists, some, strict=True)) for some in product(*lists.values())]


def draw_one(
  arguments: Sequence[Any],
  rng: np.random.Generator,
  kind: str,
  dims: Mapping[str, int],
  int_limits: Mapping[str, int],
  facts: InputFacts = _NOTHING,
) -> dict[str, np.ndarray]:
  """Arrays by name. Of a kind that is not known here they are normal, and no position is masked."""
  sizes, ends = {**facts.sizes, **dims}, _Ends.of(arguments, rng, kind)
  for total, parts in facts.totals().items():
    # A cache may have room for what is new: then it is as long as before.
    fits = kind != GROWS and any(least == total for _, _, least in facts.growing.values())
    whole = sum(size_of(part, sizes) for part in parts[: 1 if fits else None])
    ends = ends if fits and size_of(parts[1], sizes) == 1 else _Ends()
    sizes.setdefault(total, ends.longest(whole))
  shapes = {value.name: tuple(size_of(dim, sizes) for dim in value.shape) for value in arguments}
  longest = max((shapes[n][-1] for n in facts.masks if shapes.get(n)), default=0)
  found = {}
  for value in arguments:
    name, shape = value.name, shapes[value.name]
    limit = int_limits.get(name, facts.limits.get(name))
    if name in facts.masks and kind in MASKED:
      found[name] = _masked(rng, kind, dtype_of(value), shape, name in facts.padded)
    elif name in facts.padded and facts.totals() and ends.apart and shape:
      found[name] = ends.mask(shape).astype(dtype_of(value))
    elif name in facts.masks and _shows_all(kind, name in facts.padded):
      found[name] = np.full(shape, 0 if value.type in _FLOATS else 1, dtype_of(value))
    elif name in facts.lengths:
      length = facts.lengths[name]
      whole = size_of(length.past, sizes) + size_of(length.new, sizes)
      own = ends.rows(shape, whole) if length.free and length.minus else np.full(shape, whole - length.minus)
      found[name] = own.astype(dtype_of(value))
    elif name in facts.positions and shape:
      steps = max(0, longest - shape[-1]) + np.arange(shape[-1])
      seen = steps if limit is None else np.minimum(steps, limit - 1)
      found[name] = np.broadcast_to(seen, shape).astype(dtype_of(value))
    else:
      found[name] = _draw(rng, kind, value, shape, DEFAULT_INT_LIMIT if limit is None else limit)
  return found


@dataclass(frozen=True, slots=True)
class _Ends:
  """Where sequences end in a cache with room: with it, or anywhere (``rng``), each by itself (``apart``)."""

  rng: np.random.Generator | None = None
  apart: bool = False

  @classmethod
  def of(cls, arguments: Sequence[Any], rng: np.random.Generator, kind: str) -> _Ends:
    """Of a kind of inputs. What bfloat16 has behind an end is not told apart (``loose_rows.py``)."""
    if kind not in SHORTER or any(value.type == "tensor(bfloat16)" for value in arguments):
      return cls()
    return cls(rng.spawn(1)[0], kind == SHORTER[-1])

  def longest(self, room: int) -> int:
    """How long the longest is: less than all, which other kinds are."""
    return room if self.rng is None else int(self.rng.integers(1, max(2, room)))

  def rows(self, shape: tuple[int, ...], room: int) -> np.ndarray:
    """Of each its last row."""
    return np.full(shape, room - 1) if self.rng is None else self.rng.integers(0, room, shape)

  def mask(self, shape: tuple[int, ...]) -> np.ndarray:
    """True up to the end of each."""
    assert self.rng is not None
    ends = self.rng.integers(1, shape[-1] + 1, shape[:-1])
    return np.arange(shape[-1]) < ends[..., None]


def dtype_of(value: Any) -> np.dtype[Any]:
  """Of one of onnxruntime's ``get_inputs()``.

  Raises:
      MirageError: OPTION_INVALID for one that cannot be drawn.
  """
  found = _FLOATS.get(value.type) or _INTEGERS.get(value.type) or _BOOLS.get(value.type)
  if found is None:
    raise MirageError(
      "OPTION_INVALID", f"no way to draw input {value.name!r}: {value.type}; verify --inputs takes it"
    )
  return found


def is_float(value: Any) -> bool:
  """Whether one of onnxruntime's ``get_inputs()`` holds floats."""
  return value.type in _FLOATS


def _shows_all(kind: str, is_padded: bool) -> bool:
  """A mask that is summed up to lengths may not hide what comes before something."""
  return is_padded or kind == FIRST or not (kind.startswith("normal") or kind in KINDS)


def _masked(
  rng: np.random.Generator, kind: str, dtype: np.dtype[Any], shape: tuple[int, ...], is_padded: bool
) -> np.ndarray:
  """Of four rows: the first half hidden, the second, all, some; or all of every row."""
  n = shape[-1] if shape else 1
  count = int(np.prod(shape[:-1], dtype=np.int64))
  at, row = np.arange(n), np.arange(count)[:, None] % 4
  hidden = np.select([row == 0, row == 1, row == 2], [at < n // 2, at >= n - n // 2, at >= 0], 0).astype(bool)
  hidden |= (row == 3) & (rng.random((count, n)) < 0.5)
  if kind == "masked throughout":
    hidden[:] = True
  if is_padded:
    hidden = np.broadcast_to(at >= max(1, n - 1), hidden.shape)
  hidden = hidden.reshape(shape)
  if not np.issubdtype(dtype, np.integer) and dtype != np.bool_:
    least = -np.inf if kind.endswith("inf") else float(ml_dtypes.finfo(dtype).min)
    return np.where(hidden, least, 0.0).astype(dtype)
  return (~hidden).astype(dtype)


#: What numpy and zipfile raise of files that are damaged, ciphered, or that name huge arrays.
_NO_ARRAYS = (
  OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError, SyntaxError
)  # fmt: skip


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
  except _NO_ARRAYS as error:
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
  """A dimension as a number; torch writes formulas of other names, as in ``past + 1``."""
  if isinstance(dim, int):
    return dim
  if not dim or dim in dims:
    return dims.get(dim or NAMELESS, DEFAULT_DIM)
  found = size_by_name(dim, dims, DEFAULT_DIM)
  return DEFAULT_DIM if found is None else found


def _draw(rng: np.random.Generator, kind: str, value: Any, shape: tuple[int, ...], limit: int) -> np.ndarray:
  dtype = dtype_of(value)
  rows = (*shape[:-1], 1) if shape and kind == "constant_rows" else shape
  if value.type in _FLOATS:
    found = _shaped(rng, kind, rng.standard_normal(rows))
    return np.broadcast_to(found, shape).astype(dtype)
  numbers = np.zeros(rows) if kind == "zeros" else rng.integers(0, 2 if dtype == np.bool_ else limit, rows)
  return np.broadcast_to(numbers, shape).astype(dtype)


def _shaped(rng: np.random.Generator, kind: str, x: np.ndarray) -> np.ndarray:
  match kind:
    case "small":
      rows = _SMALL[np.arange(int(np.prod(x.shape[:-1], dtype=np.int64))) % len(_SMALL)]
      return x * (rows.reshape(*x.shape[:-1], 1) if x.ndim else _SMALL[0])
    case "large":
      return np.clip(x * _SCALE, -_CLIP, _CLIP)
    case "outliers" if x.ndim:
      return x * np.where(rng.random(x.shape[-1]) < 1 / 16, _OUTLIER, 1.0)
    case "offset":
      return x + _OUTLIER
    case "zeros":
      return np.zeros(x.shape)
  return x
