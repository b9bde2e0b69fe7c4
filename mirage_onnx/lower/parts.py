"""Parts of a value in several lanes, warps or ranks, and how they combine."""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.ir.block_ops import merge_of
from mirage_onnx.lower.forms import Form, Side


def rule_of(op: str) -> str:
  """How parts of a value combine."""
  return merge_of(op).cuda


def nothing(op: str) -> str:
  """What no parts of a value are."""
  merge = merge_of(op)
  return f"{merge.cuda}::neutral()" if merge.neutral else "0.0f"


def lane_bits(form: Form, sides: Sequence[Side]) -> tuple[int, ...]:
  """The bits of the lane number in which lanes with other elements of these sides differ."""
  found: list[int] = []
  bit = 1
  for side, lanes in ((form.t, form.lanes.lanes), (form.g, form.lanes.groups)):
    while lanes > 1:
      found += [bit] if side and side in sides else []
      bit, lanes = bit * 2, lanes // 2
  return tuple(found)


@dataclass(frozen=True, slots=True)
class Parts:
  """Who has other parts of a value: lanes that differ in these bits, warps of these sides."""

  masks: tuple[int, ...] = ()
  sides: tuple[Side, ...] = ()

  def __bool__(self) -> bool:
    return bool(self.masks or self.sides)
