"""The sizes that a model is declared to be run at: ``--shapes batch=1,8 seq=1,128..2048:128``.

A kernel is right at every size; these are where it has to be faster. What is not declared is taken
to be ``DEFAULT``, but for a name that is a formula of others (``past + seq``), which has what these make.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mirage_onnx.argument_kinds import check_kinds
from mirage_onnx.errors import MirageError
from mirage_onnx.ir.program import Program
from mirage_onnx.ir.size_names import names_in, size_by_name

#: Sizes of a dimension of which nothing is said, and the most points that are looked at.
DEFAULT, MOST_POINTS = (1, 16, 256), 64
_LARGEST, _MOST_SIZES = 1 << 31, 4096
_PART = re.compile(r"(\d+)(?:\.\.(\d+)(?::(\d+))?)?")

#: Name of a dimension -> its size.
Sizes = Mapping[str, int]


def parse_sizes(words: Iterable[str]) -> dict[str, tuple[int, ...]]:
  """Name -> sizes, ascending, from words such as ``batch=1,8`` and ``seq=1,128..2048:128``.

  Raises:
      MirageError: OPTION_INVALID.
  """
  found: dict[str, tuple[int, ...]] = {}
  for word in " ".join(words).split():
    name, _, text = word.rpartition("=")
    values: set[int] = set()
    for part in text.split(","):
      match = _PART.fullmatch(part)
      low, high, step = map(int, match.groups("0")) if match else (0, 0, 0)
      high = high if match and match[2] else low
      step = step if match and match[3] else max(1, high - low)
      if not name or not 0 < low <= high <= _LARGEST or not step:
        raise MirageError("OPTION_INVALID", f"{word!r} is not of the form {_EXAMPLE}")
      if high - low > _MOST_SIZES * step:
        raise MirageError("OPTION_INVALID", f"{word!r} has more than {_MOST_SIZES} sizes")
      values |= {*range(low, high + 1, step)}
    if name in found:
      raise MirageError("OPTION_INVALID", f"the sizes of {name!r} are given twice")
    found[name] = tuple(sorted(values))
  return found


def checked_sizes(given: Mapping[str, int | Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
  """``given`` in order, one size as a list of it.

  Raises:
      MirageError: OPTION_INVALID for a name without sizes, or one that is no positive number.
  """
  check_kinds("a mapping", shapes=given)
  found = {}
  for name, sizes in (given or {}).items():
    listed = list(sizes) if isinstance(sizes, Iterable) else [sizes]
    if not listed or not all(type(n) is int and 0 < n <= _LARGEST for n in listed):
      raise MirageError("OPTION_INVALID", f"the sizes of {name!r} are {listed}")
    found[name] = tuple(sorted(set(listed)))
  return found


_EXAMPLE = "name=1,8,128..2048:128 (numbers, and ranges with a step)"


@dataclass(frozen=True, slots=True)
class Declared:
  """``points``: the sizes of all names, each together; ``typical``: one of them.

  ``sizes``: what each name is looked at, ascending.
  """

  points: tuple[Sizes, ...]
  typical: Sizes
  sizes: Mapping[str, tuple[int, ...]]


def declared_sizes(program: Program, given: Mapping[str, Sequence[int]]) -> Declared:
  """Every combination of sizes, or of fewer of each where these are too many.

  Names that no input has vary together.

  Raises:
      MirageError: OPTION_INVALID for a name that the program does not have.
  """
  names = tuple(program.primes.values())
  if unknown := sorted(set(given) - set(names)):
    have = ", ".join(names) or "none"
    reason = f"no dynamic dimension is called {unknown[0]!r}; there are: {have}"
    raise MirageError("OPTION_INVALID", reason)
  outer = {d for i in program.inputs for d in program.tensors[i].shape or ()}
  every = names
  computed = [n for n in every if n not in given and names_in(n) and names_in(n) <= set(every)]
  names = tuple(n for n in every if n not in computed)
  free = [n for n in names if n in outer or n in given]
  sizes = {n: sorted(given.get(n, DEFAULT)) for n in names}
  if 2 ** sum(len(sizes[n]) > 1 for n in free) > MOST_POINTS:
    free = []  # two of each are too many: all together
  counts = {n: len(sizes[n]) for n in free}
  while _total(counts.values()) > MOST_POINTS and max(counts.values()) > 2:
    counts[max(counts, key=lambda n: counts[n])] -= 1
  axes = [[(n, v) for v in _spread(sizes[n], counts[n])] for n in free]
  rest = [n for n in names if n not in free]
  steps = max((len(sizes[n]) for n in rest), default=1)
  points = [
    {**dict(some), **{n: sizes[n][k * (len(sizes[n]) - 1) // max(1, steps - 1)] for n in rest}}
    for some in product(*axes)
    for k in range(steps)
  ]
  typical = {n: sizes[n][len(sizes[n]) // 2] for n in names}
  if typical not in points:
    points.insert(1, typical)
  for point in (*points, typical):
    point |= {n: min(max(1, size_by_name(n, point) or 1), _LARGEST) for n in computed}
  seen = {n: tuple(sizes[n]) if n in sizes else tuple(sorted({p[n] for p in points})) for n in every}
  return Declared(tuple(points), typical, seen)


def _total(counts: Iterable[int]) -> int:
  total = 1
  for n in counts:
    total *= n
  return total


def _spread(values: Sequence[int], count: int) -> list[int]:
  """``count`` of the values, the first and the last among them."""
  if count >= len(values):
    return list(values)
  return [values[k * (len(values) - 1) // (count - 1)] for k in range(count)]


def sizes_text(sizes: Sizes, names: Iterable[str]) -> str:
  """As ``batch=1 seq=128``, for the names that matter."""
  return " ".join(f"{n}={sizes[n]}" for n in names)
