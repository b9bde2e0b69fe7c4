"""Operands of the depth loop that memory holds packed, or once for a block of the depth.

Of packed integers a lane takes 16 bytes or more of one row at once, all that it needs of a step
(``device/packed.cuh``). Of what is one element for ``repeat`` neighbours along the depth (scales and
zero points) it takes one for each block that it meets. Beyond the depth both are zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.codegen.index_text import subscript
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, DType, Kernel
from mirage_onnx.lower.scaled_integers import Scaled
from mirage_onnx.lower.stream_plan import StreamPlan, operands


@dataclass(frozen=True, slots=True)
class PackedOperand:
  """One load of such an operand. ``view`` counts elements, pointers are to bytes where it is packed."""

  view: TensorText
  lane: int
  repeat: int
  depth: int

  @classmethod
  def of(cls, plan: StreamPlan, view: TensorText) -> "PackedOperand":
    """Of a load of the loop over the depth.

    Raises:
        RejectionError: LAYOUT, lanes meet blocks in a way that no rule is for.
    """
    tensor, repeat = view.tensor, view.tensor.repeat
    lane, name = plan.lane, view.tensor.name
    if plan.depth_extent % lane:
      raise RejectionError("LAYOUT", f"lanes take {lane} of the depth, {plan.depth_extent}, at once")
    if view.stride(plan.depth) != 1:
      raise RejectionError("LAYOUT", f"the depth is not the last dimension of {name}")
    if repeat == 1 and (view.aligned % lane or lane * tensor.dtype.bits % 128):
      raise RejectionError("LAYOUT", f"rows of {name} do not begin at 16 bytes")
    if plan.depth_extent % repeat:
      raise RejectionError("LAYOUT", f"the depth, {plan.depth_extent}, ends inside a block of {repeat}")
    if repeat > 1 and (repeat % 8 or (lane % repeat and repeat % lane)):
      raise RejectionError("LAYOUT", f"lanes of {lane} share blocks of {repeat}")
    if repeat > 1 and view.aligned * tensor.dtype.bits % 8:
      raise RejectionError("LAYOUT", f"rows of {name} begin inside a byte")
    return cls(view, lane, repeat, plan.depth_extent)

  @property
  def blocks(self) -> int:
    """Elements that a lane meets in one step, of what is one for a block."""
    return max(1, self.lane // self.repeat)

  def bytes_apart(self, stride: int) -> int:
    """``stride`` elements as the pointer counts."""
    return stride * self.view.tensor.dtype.bits // 8 if self.view.tensor.dtype.is_packed else stride

  def address(self, index: Mapping[str, str]) -> str:
    """Where a row begins."""
    return self.view.address(index)

  def declaration(self, name: str) -> tuple[str, str]:
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
    return f"{to} = {self.view.tag}::widen({self.element(slot, part)});"


def one(half: DType) -> str:
  """The bits of 1 in a type of 16 bits."""
  return f"static_cast<unsigned short>({'0x3c00' if half is DType.F16 else '0x3f80'})"


def apart_operands(kernel: Kernel, scaled: Mapping[int, Scaled], used: Sequence[int]) -> frozenset[int]:
  """Operands of products whose eights are in the order in which four bits come out of a word.

  Those with nothing but 4-bit integers on the other side, and these; both as operands only.
  """
  ops = kernel.ops
  made = {i for i, s in scaled.items() if ops[s.integers].dtype.bits == 4}
  products = [op for i in used if (op := ops[i]).op == "matmul"]
  found = {a for op in products for a in op.args}
  others = {a for i in used if ops[i].op != "matmul" for a in ops[i].args}
  while True:
    whole = [op for op in products if set(op.args) <= found]
    pairs = [operands(kernel, op) for op in whole]
    left = {a for pair in pairs for a in pair if pair[0] in made}
    split = {a for op in products if op not in whole for a in op.args}
    computed_twice = {a for a in left if a in others and ops[a].op != "load"}
    kept = frozenset(left - split - computed_twice - {b for a, b in pairs if a not in made})
    if kept == found:
      return kept
    found = set(kept)


def statement(
  scaled: Scaled, ops: Sequence[BlockOp], to: str, texts: Mapping[int, str], part: str, *, apart: bool
) -> str:
  """Makes eight values at ``to``; ``texts``: of the loads, as memory has them."""
  types = [tag(scaled.half), tag(ops[scaled.integers].dtype)]
  scale = one(scaled.half) if scaled.scales is None else texts[scaled.scales]
  found = [texts[scaled.integers], part, scale]
  found += [texts[scaled.zeros]] if scaled.zeros is not None else []
  call = f"scaled8_apart<{types[0]}>" if apart else f"scaled8<{', '.join(types)}>"
  return f"{to} = {call}({', '.join(found)});"
