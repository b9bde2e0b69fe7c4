"""Operands of the depth loop that memory holds packed, or once for a block of it: what a lane takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Kernel
from mirage_onnx.lower.scaled_integers import Scaled
from mirage_onnx.lower.stream_plan import StreamPlan, operands
from mirage_onnx.lower.tensor_view import TensorView


@dataclass(frozen=True, slots=True)
class PackedOperand:
  """One load of such an operand. ``view`` counts elements, pointers are to bytes where it is packed."""

  view: TensorView
  lane: int
  repeat: int
  depth: int

  @classmethod
  def of(cls, plan: StreamPlan, view: TensorView) -> Self:
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
    # Where a block is all of the depth, rows may be neighbours in memory: ``aligned`` says nothing of these.
    strides = (s for a, s in zip(tensor.axes, view.strides, strict=True) if a != plan.depth)
    begins = (view.aligned, *(s for s in strides if isinstance(s, int)))
    if repeat > 1 and any(n * tensor.dtype.bits % 8 for n in begins):
      raise RejectionError("LAYOUT", f"rows of {name} begin inside a byte")
    return cls(view, lane, repeat, plan.depth_extent)

  @property
  def blocks(self) -> int:
    """Elements that a lane meets in one step, of what is one for a block."""
    return max(1, self.lane // self.repeat)

  def bytes_apart(self, stride: int) -> int:
    """``stride`` elements as the pointer counts."""
    return stride * self.view.tensor.dtype.bits // 8 if self.view.tensor.dtype.is_packed else stride


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
