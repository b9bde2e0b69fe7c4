"""Arithmetic on indices as CUDA text: sums, multiples and parts, without what is zero or one."""

from collections.abc import Sequence
from math import prod

from mirage_onnx.lower.sizes import Count


def subscript(indices: Sequence[str]) -> str:
  return "".join(f"[{i}]" for i in indices)


def total(*terms: str) -> str:
  """A sum without its zero terms."""
  return " + ".join(t for t in terms if t != "0") or "0"


def times(index: str, factor: int) -> str:
  return "0" if index == "0" or factor == 0 else index if factor == 1 else f"{index} * {factor}"


def scaled(index: str, stride: Count, *, wide: bool = False) -> str:
  """``index * stride``, in 64 bits if ``wide`` or if the stride is known to a launch only."""
  if index == "0" or stride == 0:
    return "0"
  if wide or isinstance(stride, str):
    index = f"static_cast<long long>({index})"
  return index if stride == 1 else f"{index} * {stride}"


def parts_of(flat: str, sizes: Sequence[int]) -> list[str]:
  """The indices that a flat index stands for, the last fastest: ``e / 4``, ``e % 4``."""
  found, whole = [], prod(sizes)
  step = whole
  for size in sizes:
    outermost = step == whole
    step //= size
    text = flat if step == 1 else f"{flat} / {step}"
    found.append(text if outermost else f"{text} % {size}")
  return found
