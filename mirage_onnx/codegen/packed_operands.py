"""Operands of the depth loop that memory holds packed, or once for a block of the depth.

Of packed integers a lane takes 16 bytes or more of one row at once, all that it needs of a step
(``device/packed.cuh``). Of what is one element for ``repeat`` neighbours along the depth (scales and
zero points) it takes one for each block that it meets. Beyond the depth both are zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.codegen.index_text import subscript
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.ir import BlockOp, DType
from mirage_onnx.lower.packed_operand import PackedOperand
from mirage_onnx.lower.scaled_integers import Scaled


@dataclass(frozen=True, slots=True)
class PackedText(PackedOperand):
  """Such an operand as text; ``view`` is one of ``TensorText``."""

  view: TensorText

  def address(self, index: Mapping[str, str]) -> str:
    """Where a row begins."""
    return self.view.address(index)

  def declaration(self) -> tuple[str, str]:
    """The type of a stage of one tile, and its own dimension."""
    if self.repeat == 1:
      return f"Lane<{self.view.tag}, {self.lane // 8}>", ""
    return self.view.storage, subscript([str(self.blocks)]) if self.blocks > 1 else ""

  def fetches(self, slot: str, row: str, depth: str, path: str, valid: str) -> list[str]:
    """Statements that load a lane's part at ``depth`` of the row that begins at ``row``.

    ``valid``: the condition that it exists, "" where it does. What is one for a block is read in any
    case, at the last place that there is: a branch around each load would keep them apart.
    """
    kind = f"{self.view.tag}, {self.lane // 8}, {path}"
    if self.repeat == 1:
      per_byte = 8 // self.view.tensor.dtype.bits
      at = f"{row} + ({depth})" + (f" / {per_byte}" if per_byte > 1 else "")
      if not valid:
        return [f"{slot} = load_lane<{kind}>({at});"]
      return [f"load_lane_if<{kind}>({slot}, {at}, {valid});"]
    found = []
    first = f"at_most({depth}, {self.depth - self.lane})" if valid else f"({depth})"
    for b in range(self.blocks):
      place = f"{first} / {self.repeat}" + (f" + {b}" if b else "")
      if self.view.tensor.dtype.is_packed:
        load, none = f"load_packed<{self.view.tag}, {path}>({row}, {place})", f"{self.view.tag}::kZero"
      else:
        load, none = f"load_bits<{self.view.tag}, {path}>({row} + {place})", "0"
      to = f"{slot}[{b}]" if self.blocks > 1 else slot
      found.append(f"{to} = {load};")
      if valid and valid != "more":  # what is read for no round is not used
        found.append(f"if (!({valid})) {to} = {none};")
    return found

  def cleared(self, slot: str) -> list[str]:
    """Statements before a load that may not happen."""
    return [f"{slot} = {{}};"] if self.repeat == 1 else []

  def element(self, slot: str, part: str) -> str:
    """What is one for a block, as memory has it, in part ``part`` of the lane's."""
    if self.blocks == 1:
      return slot
    return f"{slot}[{part} / {self.repeat // 8}]" if self.repeat > 8 else f"{slot}[{part}]"

  def floats(self, slot: str, part: str, to: str) -> str:
    """A statement that makes fp32 numbers of part ``part``: eight, or one where that is all."""
    if self.repeat == 1:
      return f"unpack8<{self.view.tag}>({slot}, {part}, {to});"
    element = self.element(slot, part)
    is_wide = self.view.tensor.dtype is DType.F32
    return f"{to} = {element};" if is_wide else f"{to} = {self.view.tag}::widen({element});"


def one(half: DType) -> str:
  """The bits of 1 in a type of 16 bits."""
  return f"static_cast<unsigned short>({'0x3c00' if half is DType.F16 else '0x3f80'})"


def statement(
  scaled: Scaled, ops: Sequence[BlockOp], to: str, texts: Mapping[int, str], part: str, *, apart: bool,
  behind: bool,
) -> str:  # fmt: skip
  """Makes eight values at ``to`` of ``texts``, loads as memory has them; ``behind``: scales come later."""
  scale = one(scaled.half) if behind or scaled.scales is None else texts[scaled.scales]
  found = [texts[scaled.integers], part, scale]
  found += [texts[scaled.zeros]] if scaled.zeros is not None else []
  half = tag(scaled.half)
  call = f"scaled8_apart<{half}>" if apart else f"scaled8<{half}, {tag(ops[scaled.integers].dtype)}>"
  if apart and behind:
    call = f"integers8_apart<{half}>"
    found.remove(scale)
  return f"{to} = {call}({', '.join(found)});"
