"""The thread level: where each block value lives.

Two families of kernels have layouts of their own. A *streaming* kernel contracts two tiles over the
loop's axis with tensor-core instructions: the operand with the wider free axis (a weight, if one
is) is the 16-row A operand and is read along the loop's axis, the other is the 8-column B operand.
A *row* kernel has no loop and spreads one axis over the threads of a block. All others are *tiled*
(``tiled_layouts.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.block_ops import ACCUMULATORS, CLUSTER, OVER_AXES
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Layout, Phase
from mirage_onnx.lower.lanes import streamed_of_values
from mirage_onnx.lower.tiled_layouts import Chosen, lay_out_tiled


class Family(StrEnum):
  """What holds the values of a kernel."""

  STREAMING = "streaming"
  ROW = "row"
  TILED = "tiled"


class Laid(NamedTuple):
  """Block operations with their layouts; ``lanes``: of a tiled kernel with contractions."""

  family: Family
  ops: tuple[BlockOp, ...]
  lanes: Chosen | None = None


def lay_out(kernel: Kernel, tensors: Mapping[str, KTensor], *, general: bool = True) -> Laid:
  """The block operations with their layouts (and the contractions' operands as (A, B)).

  ``general``: a kernel of no other family gets the layouts of a tiled one.

  Raises:
      RejectionError: LAYOUT.
  """
  few_bits = frozenset(o.tensor for o in kernel.loads if tensors[o.tensor].few_bits)
  try:
    if kernel.loop is None:
      if few_bits:
        raise _refuse("weights of few bits are operands of contractions in a loop")
      return Laid(Family.ROW, _row_layouts(kernel))
    laid = Laid(Family.STREAMING, _streaming_layouts(kernel, tensors))
  except RejectionError:
    if not general or few_bits:
      raise
    return Laid(Family.TILED, *lay_out_tiled(kernel, tensors))
  fragments = (Layout.A_FRAG, Layout.B_FRAG)
  crossed = (o for o in laid.ops if o.op != "matmul" and o.layout is Layout.A_FRAG)
  # A sum of products beside a contraction has no text, and such programs hid those with two contractions.
  if any(o.tensor in few_bits and o.layout not in fragments for o in laid.ops) or (
    few_bits and any(laid.ops[a].layout is Layout.B_FRAG for o in crossed for a in o.args)
  ):
    raise _refuse("weights of few bits are operands of contractions in a loop")
  return laid


def _refuse(reason: str) -> RejectionError:
  return RejectionError("LAYOUT", reason)


def _row_layouts(kernel: Kernel) -> tuple[BlockOp, ...]:
  if any(op.op == "matmul" for op in kernel.ops):
    raise _refuse("a contraction needs a loop over its axis")
  free = {a for op in kernel.ops for a in op.axes} - set(kernel.grid)
  if len(free) != 1:
    raise _refuse(f"a row kernel spreads one axis over the threads, not {len(free)}")
  (vector,) = free
  return tuple(op.laid(Layout.VECTOR if vector in op.axes else Layout.UNIFORM) for op in kernel.ops)


@dataclass(frozen=True, slots=True)
class _Axes:
  depth: str
  row: str | None
  columns: frozenset[str]


def _streaming_axes(kernel: Kernel, tensors: Mapping[str, KTensor]) -> tuple[_Axes, dict[int, int]]:
  """The roles of the axes, and for each contraction in the loop which argument is operand A."""
  depth = kernel.loop
  assert depth is not None
  ops = kernel.ops
  streamed = streamed_of_values(kernel, tensors)
  row: set[str] = set()
  columns: set[str] = set()
  side_a: dict[int, int] = {}
  for i, op in enumerate(ops):
    if op.op != "matmul" or op.phase is not Phase.LOOP:
      continue
    if op.reduced != (depth,):
      raise _refuse("a contraction inside the loop over an axis other than the loop's")
    free = [tuple(a for a in ops[k].axes if a != depth) for k in op.args]
    weights = [streamed[k] for k in op.args]
    if weights[0] == weights[1]:
      raise _refuse("one operand of a contraction must be made of weights, the other not")
    a = 0 if weights[0] > weights[1] else 1
    if len(free[a]) != 1 or len(free[1 - a]) > 1:
      raise _refuse("contraction operands have one free axis each")
    side_a[i] = a
    columns.update(free[a])
    row.update(free[1 - a])
  if not side_a:
    raise _refuse("a loop without a contraction: a row kernel computes the same")
  if len(row) > 1 or row & columns:
    raise _refuse("the contractions of a kernel share one row axis")
  return _Axes(depth, next(iter(row), None), frozenset(columns)), side_a


def _streaming_layouts(kernel: Kernel, tensors: Mapping[str, KTensor]) -> tuple[BlockOp, ...]:
  axes, side_a = _streaming_axes(kernel, tensors)
  streamed = streamed_of_values(kernel, tensors)
  # What is computed of operands that loops do not walk is no weight.
  least = min(streamed[kernel.ops[i].args[1 - a]] for i, a in side_a.items())
  staged = {
    a
    for op in kernel.ops
    if op.phase is Phase.POST and op.op in OVER_AXES
    for a in op.args
    if kernel.ops[a].op != "load"
  }
  known = {axes.depth, axes.row, *axes.columns, *kernel.grid}
  done: list[BlockOp] = []
  for i, op in enumerate(kernel.ops):
    if not set(op.axes) <= known:
      raise _refuse("a value varies over an axis that is neither row, column nor depth")
    far = op.op == "load" and tensors[op.tensor].inner != axes.depth
    if far and axes.depth in op.axes:
      raise _refuse(f"{op.tensor} is not contiguous along the loop's axis")
    if op.phase is Phase.LOOP:
      layout = _loop_layout(op, axes, streamed[i] > least)
    elif op.op in ACCUMULATORS and len(op.axes) == 2:
      layout = Layout.C_FRAG
    elif i in staged or (op.op in CLUSTER and len(op.axes) == 2):
      layout = Layout.SHARED
    else:
      layout = _post_layout(op, axes)
    args = op.args
    if i in side_a and side_a[i] == 1:
      args = (op.args[1], op.args[0])
    done.append(replace(op, layout=layout, args=args))
  return tuple(done)


def _loop_layout(op: BlockOp, axes: _Axes, from_weights: bool) -> Layout:
  own = set(op.axes)
  if op.op == "matmul":
    return Layout.C_FRAG
  if axes.depth not in own:
    return _post_layout(op, axes, loop=True)
  rest = own - {axes.depth}
  if rest and rest == {axes.row}:
    return Layout.B_FRAG
  if len(rest) == 1 and rest <= axes.columns:
    return Layout.A_FRAG
  if not rest:
    # Without a row axis the B operand is a vector itself; weights stay replicated vectors.
    return Layout.DEPTH if axes.row is not None or from_weights else Layout.B_FRAG
  raise _refuse("a value in the loop varies over rows and columns")


def _post_layout(op: BlockOp, axes: _Axes, *, loop: bool = False) -> Layout:
  own = set(op.axes)
  if not own:
    return Layout.UNIFORM
  if own == {axes.row}:
    return Layout.ROW
  if len(own) == 1 and own <= axes.columns:
    return Layout.COLUMN
  if loop:
    raise _refuse("a value in the loop varies over rows and columns")
  return Layout.ELEMENT
