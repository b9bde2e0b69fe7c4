"""Parts of a value in several lanes, warps or ranks, and how they combine."""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.lower.forms import Form, Side


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
