"""The numbers that values of a kernel are: attributes, and numbers of elements."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from mirage_onnx.ir.ugraph import BlockOp
from mirage_onnx.lower.sizes import Count, count, is_runtime


@dataclass(frozen=True, slots=True)
class RunCount:
  """A number that only a launch knows: a product of ``counts``."""

  counts: tuple[Count, ...]


def constant(op: BlockOp, extents: Mapping[str, int]) -> Fraction | str | RunCount | None:
  """The number that a ``const`` or ``extent`` op is; None for other ops."""
  if op.op == "const":
    return op.value
  if op.op == "extent":
    if any(is_runtime(extents, a) for a in op.reduced):
      return RunCount(tuple(count(extents, a) for a in op.reduced))
    return Fraction(prod(extents[a] for a in op.reduced))
  return None
