"""What there is no rule for in a streaming kernel: found here, so that its text refuses nothing.

The walk is the one of the text (``codegen/ring.py``, ``loop.py``, ``epilogue.py``, ``scalar.py``), with
places that are only the axes which they know.
"""

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, DType, KTensor
from mirage_onnx.ir.block_ops import CLUSTER, merge_of
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.packed_operand import PackedOperand
from mirage_onnx.lower.steps import Fetch, Stage, Store, ThreadRun, ThreadStep, Total
from mirage_onnx.lower.stream_behind import ACCUMULATIONS, StreamBehind, formula
from mirage_onnx.lower.stream_loop import StreamLoop
from mirage_onnx.lower.tensor_view import TensorView

#: The axes that a place in the block's tile has positions of.
Place = frozenset[str]


def check_stream(loop: StreamLoop, behind: StreamBehind) -> None:
  """Refuses a kernel that has no text.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or DYNAMIC_DIM.
  """
  for name in loop.graph.args_of(loop.plan.kernel):
    TensorView.of(loop.graph.tensor(name), loop.plan.extents, packed=True)
  # Packed operands first: what they lack says more of a depth than what the others read beside them.
  for index in sorted(loop.loads, key=lambda i: not loop.few_bits(i)):
    _check_operand(loop, index)
  for step in (*loop.before, *loop.body):
    _check_step(loop, step)
  _Behind(behind).check()


def _check_operand(loop: StreamLoop, index: int) -> None:
  """A load that the ring holds."""
  plan, op = loop.plan, loop.ops[index]
  view = TensorView.of(loop.graph.tensor(op.tensor), plan.extents, packed=True)
  for axis in {*plan.columns, plan.row.axis if plan.row else ""} & set(op.axes):
    view.stride(axis)
  if loop.few_bits(index):
    PackedOperand.of(plan, view)
    return
  if not (op.dtype.is_float or op.dtype.is_byte):
    raise RejectionError("EMIT_UNSUPPORTED", f"{op.tensor} is read in the loop as {op.dtype}")
  if plan.parts > 1 and (not view.together(plan.depth, 8) or plan.depth_extent % plan.lane):
    raise RejectionError("LAYOUT", f"lanes do not find {plan.lane} of the depth of {op.tensor} at once")
  if isinstance(stride := view.stride(plan.depth), str):
    raise RejectionError("DYNAMIC_DIM", f"steps of {stride} elements through an operand")


def _check_step(loop: StreamLoop, step: ThreadStep) -> None:
  """Whether tiles of results have an element of each of their arguments."""
  match step:
    case Fetch():
      TensorView.of(loop.graph.tensor(loop.ops[step.index].tensor), loop.plan.extents)
    case ThreadRun():
      for index in step.ops:
        for a in loop.ops[index].args:
          if constant(loop.ops[a], loop.plan.extents) is None:
            loop.check_use(a, loop.ops[index])


class _Behind:
  """``there``: staged values that are in shared memory by now."""

  def __init__(self, behind: StreamBehind) -> None:
    self.behind, self.plan, self.ops, self.there = behind, behind.plan, behind.ops, set[int]()

  def check(self) -> None:
    """All steps behind the loop, in their order."""
    for step in self.behind.steps:
      match step:
        case Total() | Stage():
          root, at = step.index, Place(a.axis for a in self.behind.span(step.index).axes)
          if isinstance(step, Total):
            op = self.ops[root]
            root, at = op.args[0], at | {self._whole(op, op.op)}
          self._value(root, at, set())
          self.there.add(step.index)
        case Store():
          space, saves = self.behind.spaces[step.index]
          at, known = Place(a.axis for a in space.axes), set[int]()
          for save in saves:
            self._value(save.arg, at, known)
            self._reach(self.behind.graph.tensor(save.tensor), at)

  def _reach(self, tensor: KTensor, at: Place) -> None:
    """An element of a tensor at a place."""
    for axis in TensorView.of(tensor, self.plan.extents).tensor.axes:
      if axis not in at and self.behind.tile(axis).tile > 1:
        raise RejectionError("LAYOUT", f"axis {axis} is not an axis of this output")

  def _whole(self, op: BlockOp, what: str) -> str:
    """The one axis that is reduced, which the block has all of."""
    if len(op.reduced) != 1 or op.dtype is not DType.F32:
      raise RejectionError("EMIT_UNSUPPORTED", f"{what} over {op.reduced} to {op.dtype}")
    tile = self.behind.tile(op.reduced[0])
    if tile.split or tile.axis == self.plan.depth:
      raise RejectionError("LAYOUT", f"{what} over {tile.axis}, which is not in the block")
    return tile.axis

  def _value(self, root: int, at: Place, known: set[int]) -> None:
    """A value at a place; ``known``: what the scope has, which gets the new ones."""
    for index in formula(self.ops, root, known, self.there.__contains__):
      if constant(self.ops[index], self.plan.extents) is None and index not in self.there:
        self._formula(index, self.ops[index], at)
      known.add(index)

  def _formula(self, index: int, op: BlockOp, at: Place) -> None:
    if op.op in ACCUMULATIONS:
      if self.plan.grid.cluster > 1 and not self._reduced(index):
        raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} is used without a reduction over the cluster")
    elif op.op in CLUSTER:
      own = self.ops[op.args[0]].op
      if own not in ACCUMULATIONS or merge_of(own) is not merge_of(op.op):
        raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} of {own!r}")
    else:
      self._own(op, at)

  def _own(self, op: BlockOp, at: Place) -> None:
    """What is made behind the loop, and not of parts."""
    if op.op == "load":
      self._reach(self.behind.graph.tensor(op.tensor), at)
    if self.plan.depth in op.axes:
      raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} over the depth after the loop")
    if op.op == "matmul":
      inside, known = at | {self._whole(op, "matmul")}, set[int]()
      for a in op.args:
        self._value(a, inside, known)
    elif op.op != "load" and not is_elementwise(op.op):
      raise RejectionError("EMIT_UNSUPPORTED", f"no rule for {op.op!r} after the loop")

  def _reduced(self, index: int) -> bool:
    """Every use of an accumulator after the loop is a reduction over the cluster."""
    saved = any(s.arg == index for s in self.plan.kernel.saves)
    uses = [o for o in self.ops if index in o.args]
    return not saved and all(o.op in CLUSTER for o in uses)
