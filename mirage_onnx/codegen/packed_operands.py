"""Operands of the depth loop that memory holds packed, or once for a block of the depth.

Of packed integers a lane takes 16 bytes or more of one row at once, all that it needs of a step
(``device/packed.cuh``). Of what is one element for ``repeat`` neighbours along the depth (scales and
zero points) it takes one for each block that it meets. Beyond the depth both are zero.

A product of integers with their scale that is rounded to 16 bits is made in 16 bits: an integer of 8
bits, and the difference of two, is exact there, so the product is the fp32 one, rounded once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.codegen.index_text import subscript
from mirage_onnx.codegen.loads import TensorView, tag
from mirage_onnx.codegen.plan import StreamPlan, operands
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, DType, Kernel, UGraph


@dataclass(frozen=True, slots=True)
class PackedOperand:
  """One load of such an operand. ``view`` counts elements, pointers are to bytes where it is packed."""

  view: TensorView
  lane: int
  repeat: int
  depth: int

  @classmethod
  def of(cls, plan: StreamPlan, view: TensorView) -> "PackedOperand":
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


@dataclass(frozen=True, slots=True)
class Scaled:
  """Values that are integers, less their zero points, times their scales: the loads of the three.

  Without scales they are the integers, which 16 bits hold exactly; a scale of one leaves them so.
  """

  integers: int
  half: DType
  scales: int | None = None
  zeros: int | None = None

  @property
  def loads(self) -> tuple[int, ...]:
    return tuple(i for i in (self.integers, self.scales, self.zeros) if i is not None)


def scaled_integers(graph: UGraph, ops: Sequence[BlockOp]) -> dict[int, Scaled]:
  """Operands of 16 bits that are such products, by index."""
  found = {}
  for index, op in enumerate(ops):
    if op.op != "cast" or not op.dtype.is_half:
      continue
    pairs: list[tuple[int | None, int]] = [(None, op.args[0])]
    if ops[op.args[0]].op == "mul":
      pairs += _both(ops[op.args[0]].args)
    made = (_scaled(graph, ops, op, *pair) for pair in pairs)
    if (first := next((m for m in made if m), None)) is not None:
      found[index] = first
  return found


def one(half: DType) -> str:
  """The bits of 1 in a type of 16 bits."""
  return f"static_cast<unsigned short>({'0x3c00' if half is DType.F16 else '0x3f80'})"


def _both(args: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
  return (args[0], args[1]), (args[1], args[0])


def _scaled(
  graph: UGraph, ops: Sequence[BlockOp], op: BlockOp, scale: int | None, integer: int
) -> Scaled | None:
  scales = None
  if scale is not None:
    scales = cast_load(ops, scale)
    if scales is None or ops[scales].dtype is not op.dtype or graph.tensor(ops[scales].tensor).repeat == 1:
      return None
  pair = _difference(ops, integer)
  if pair is None:
    return None
  tensors = [graph.tensor(ops[i].tensor) for i in pair if i is not None]
  if not all(t.dtype is tensors[0].dtype and t.dtype.is_packed for t in tensors):
    return None
  if tensors[0].repeat > 1 or any(t.repeat == 1 for t in tensors[1:]):
    return None
  if scales is None and op.dtype is DType.BF16 and tensors[0].dtype.bits > 4 and tensors[1:]:
    return None  # differences of two bytes are no bf16
  return Scaled(pair[0], op.dtype, scales, pair[1])


def cast_load(ops: Sequence[BlockOp], index: int) -> int | None:
  """The load that a value is, in fp32."""
  op = ops[index]
  while op.op == "cast" and not op.dtype.is_half:
    index, op = op.args[0], ops[op.args[0]]
  return index if op.op == "load" else None


def _difference(ops: Sequence[BlockOp], index: int) -> tuple[int, int | None] | None:
  """The loads a and b of a value a - b, or a alone."""
  if (alone := cast_load(ops, index)) is not None:
    return alone, None
  op = ops[index]
  if op.op == "sub":
    a, b = (cast_load(ops, i) for i in op.args)
    return (a, b) if a is not None and b is not None else None
  if op.op == "add":
    for x, y in _both(op.args):
      a, b = cast_load(ops, x), _negated(ops, y)
      if a is not None and b is not None:
        return a, b
  return None


def _negated(ops: Sequence[BlockOp], index: int) -> int | None:
  op = ops[index]
  if op.op == "neg":
    return cast_load(ops, op.args[0])
  if op.op == "mul":
    for x, y in _both(op.args):
      if ops[x].op == "const" and ops[x].value == -1:
        return cast_load(ops, y)
  return None


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
