"""Extents of axes as a kernel may use them: numbers, or parameters of the kernel."""

import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_onnx.errors import RejectionError

#: The most elements of an axis that is counted at run time: index arithmetic is in int.
MOST_AT_RUNTIME = 2**28

#: A number, or the parameter that holds it.
Count = int | str


@dataclass(frozen=True, slots=True)
class LaunchSizes(Mapping[str, int]):
  """Extents of which those of ``runtime`` axes are known to a launch only.

  Asking for one as a number refuses the kernel, so that no text can depend on it.
  """

  extents: Mapping[str, int]
  runtime: frozenset[str]

  def __getitem__(self, axis: str) -> int:
    if axis in self.runtime:
      why = f"neither grid nor loop splits {axis}, whose size is known only at run time"
      raise RejectionError("DYNAMIC_DIM", why)
    return self.extents[axis]

  def __iter__(self) -> Iterator[str]:
    return iter(self.extents)

  def __len__(self) -> int:
    return len(self.extents)


def is_runtime(extents: Mapping[str, int], axis: str) -> bool:
  """Whether the size of an axis is known to a launch only."""
  return isinstance(extents, LaunchSizes) and axis in extents.runtime


def identifier(name: str) -> str:
  """A name from a model as the tail of a C identifier; always used behind a prefix."""
  clean = re.sub(r"\W", "_", name, flags=re.ASCII)
  return clean + "_" if keyword.iskeyword(clean) else clean


def axis_variable(axis: str) -> str:
  """The variable that holds an index into an axis."""
  return axis if re.fullmatch(r"a\d+", axis) else f"x_{identifier(axis)}"


def count(extents: Mapping[str, int], axis: str) -> Count:
  """How many elements an axis has."""
  return f"n_{axis_variable(axis)}" if is_runtime(extents, axis) else extents[axis]


def product(counts: Sequence[Count]) -> Count:
  """The product: a number, or an expression whose first factor is a parameter."""
  names = [c for c in counts if isinstance(c, str)]
  number = prod(c for c in counts if isinstance(c, int))
  return " * ".join([*names, *([str(number)] if number != 1 else [])]) if names else number
