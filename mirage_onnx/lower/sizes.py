"""Extents of axes as a kernel's text may use them: numbers, or parameters of the kernel."""

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


def product(counts: Sequence[Count]) -> Count:
  """The product: a number, or an expression whose first factor is a parameter."""
  names = [c for c in counts if isinstance(c, str)]
  number = prod(c for c in counts if isinstance(c, int))
  return " * ".join([*names, *([str(number)] if number != 1 else [])]) if names else number


def scaled(index: str, stride: Count, *, wide: bool = False) -> str:
  """``index * stride``, in 64 bits if ``wide`` or if the stride is known to a launch only."""
  if index == "0" or stride == 0:
    return "0"
  if wide or isinstance(stride, str):
    index = f"static_cast<long long>({index})"
  return index if stride == 1 else f"{index} * {stride}"
