"""The thread level of tiled kernels: general block graphs, neither streaming nor row kernels.

A kernel with contractions: ``lanes.py`` chooses how values lie over the lanes of a warp, and
``_NAMES`` is what that is called. Whether a loaded operand is copied to shared memory (and read
from there by ldmatrix) or goes to registers: the tile of every iteration is copied ahead, so it is
shared; so is operand B, because the warps of a block have different rows and the same columns, and
what is contracted in fp32; an operand A that stays the same through the loop is loaded to registers once.

A kernel without contractions spreads the elements of its tile over the threads, the last axis in
memory fastest: values over that axis are VECTOR, others over axes of the grid one per ROW of the
tile, scalars UNIFORM, and what varies over other axes of the tile is SHARED.

Every value has one layout; where a use wants another there is a ``Conversion``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirage_onnx.ir.block_ops import CLUSTER, REDUCTIONS
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KTensor, Layout, Phase
from mirage_onnx.lower.lanes import Contraction, Lanes, Use, choose_lanes, is_free_to_read

#: (an axis over the groups, an axis inside the quads, near a contraction's result) -> layout;
#: "operand" stands for the fragment of the side that the value belongs to.
_NAMES: dict[tuple[bool, bool, bool], Layout | None] = {
  (True, True, True): Layout.C_FRAG,
  (True, True, False): None,
  (True, False, True): Layout.ROW,
  (True, False, False): Layout.ROW,
  (False, True, True): Layout.COLUMN,
  (False, True, False): Layout.DEPTH,
}


#: The lanes of every value and the uses of values, by ``choose_lanes``.
Chosen = tuple[tuple[Lanes, ...], tuple[Use, ...]]


class Conversion(NamedTuple):
  """A use that wants ``value`` in another layout, or in another rank of the cluster.

  ``kind``: ``movmatrix`` (transposed inside the warp), ``shared`` (through shared memory), ``dsmem`` (through
  that of the whole cluster).
  """

  value: int
  kind: str


def lay_out_tiled(
  kernel: Kernel, tensors: Mapping[str, KTensor]
) -> tuple[tuple[BlockOp, ...], Chosen | None]:
  """The block operations with their layouts, the arguments of a contraction as (A, B).

  And where there are contractions the lanes that they stand for.
  """
  if not any(op.op == "matmul" for op in kernel.ops):
    return _vector_layouts(kernel, tensors), None
  lanes, uses = choose_lanes(kernel, tensors)
  # Arguments first, so that "A" is the first of them below.
  ordered = tuple(
    replace(op, args=(op.args[1], op.args[0]))
    if op.op == "matmul" and lanes[i] != Contraction.of(kernel, op).results[0]
    else op
    for i, op in enumerate(kernel.ops)
  )
  kernel = replace(kernel, ops=ordered)
  sides = _Sides.of(kernel, lanes)
  laid = tuple(
    op.laid(
      _load_layout(i, kernel, tensors, lanes, uses, sides)
      if op.op == "load"
      else _value_layout(i, kernel, lanes[i], sides)
    )
    for i, op in enumerate(kernel.ops)
  )
  again = tuple(sorted(uses, key=lambda u: (u.user, ordered[u.user].args.index(u.value))))
  return laid, (lanes, again)


def lanes_of(kernel: Kernel, known: Chosen | None = None) -> Chosen:
  """The lanes and uses of a kernel that has tiled layouts; ``known``: if it was just laid out."""
  return known or choose_lanes(kernel)


def conversions(kernel: Kernel, lanes: tuple[Lanes, ...], uses: tuple[Use, ...]) -> tuple[Conversion, ...]:
  """The conversions of a kernel with tiled layouts whose values have these lanes and uses."""
  ops = kernel.ops
  moved = ((u.value, lanes[u.value].move(u.wanted)) for u in uses if not is_free_to_read(ops[u.value]))
  found = [Conversion(value, kind) for value, kind in moved if kind != "free"]
  return (*found, *(Conversion(op.args[0], "dsmem") for op in ops if op.op in CLUSTER))


def is_wide(kernel: Kernel, op: BlockOp) -> bool:
  """Whether ``op`` contracts fp32 values: lanes multiply them, from shared memory."""
  return op.op == "matmul" and not any(kernel.ops[a].dtype.is_half for a in op.args)


def after_matmul(kernel: Kernel) -> list[bool]:
  """For each value, whether it is made of what a contraction leaves."""
  found: list[bool] = []
  for op in kernel.ops:
    found.append(op.op == "matmul" or any(found[a] for a in op.args))
  return found


@dataclass(frozen=True, slots=True)
class _Sides:
  """For each value: whether it is near results (or goes into them), and its operand's side."""

  result: tuple[bool, ...]
  operand: tuple[Layout | None, ...]

  @classmethod
  def of(cls, kernel: Kernel, lanes: tuple[Lanes, ...]) -> _Sides:
    ops = kernel.ops
    after = after_matmul(kernel)
    operand: list[Layout | None] = [None] * len(ops)
    result = list(after)
    for user in range(len(ops) - 1, -1, -1):
      op = ops[user]
      wanted = Contraction.of(kernel, op).operands if op.op == "matmul" else None
      for n, arg in enumerate(op.args):
        if wanted is not None:
          fits = wanted[n].of(ops[arg].axes) == lanes[arg] or ops[arg].op == "load"
          if fits and operand[arg] is not Layout.A_FRAG:
            operand[arg] = (Layout.A_FRAG, Layout.B_FRAG)[n]
        elif after[user]:
          result[arg] = True
        elif op.op not in REDUCTIONS and operand[arg] is not Layout.A_FRAG:
          operand[arg] = operand[user] or operand[arg]
    return cls(tuple(result), tuple(operand))


def _value_layout(i: int, kernel: Kernel, lanes: Lanes, sides: _Sides) -> Layout:
  op = kernel.ops[i]
  name = (bool(lanes.g), bool(lanes.t))
  if name == (False, False):
    if set(op.axes) <= set(kernel.grid):
      return Layout.UNIFORM
    return Layout.ELEMENT if op.phase is Phase.POST else Layout.SHARED
  side = sides.operand[i]
  near_result = sides.result[i] and not (side is not None and op.dtype.is_half)
  layout = _NAMES[(*name, near_result or side is None)]
  if layout is not None and (layout is not Layout.C_FRAG or sides.result[i]):
    return layout
  return side or _operand_fragment(kernel, lanes)


def _operand_fragment(kernel: Kernel, lanes: Lanes) -> Layout:
  """The fragment of a value beside an operand (its square, for a sum): the side that fits."""
  for op in kernel.ops:
    if op.op == "matmul":
      for wanted, side in zip(
        Contraction.of(kernel, op).operands, (Layout.A_FRAG, Layout.B_FRAG), strict=True
      ):
        if wanted == lanes:
          return side
  return Layout.C_FRAG


def _load_layout(
  i: int,
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  lanes: tuple[Lanes, ...],
  uses: tuple[Use, ...],
  sides: _Sides,
) -> Layout:
  op = kernel.ops[i]
  if len({u.wanted for u in uses if u.value == i}) > 1:
    return Layout.SHARED
  own = lanes[i]
  if not own.g and not own.t:
    return Layout.UNIFORM if set(op.axes) <= set(kernel.grid) else Layout.SHARED
  if not op.dtype.is_half and any(i in user.args and is_wide(kernel, user) for user in kernel.ops):
    return Layout.SHARED
  if own.g and own.t:
    layout = _value_layout(i, kernel, own, sides)
    # Neighbours in memory are neighbours in a quad, or the copy sorts them out.
    sorted_out = tensors[op.tensor].axes[-1] not in own.t
    copied_ahead = layout is Layout.A_FRAG and op.fmap is not None
    if sorted_out or copied_ahead or layout is Layout.B_FRAG:
      return Layout.SHARED
  return _value_layout(i, kernel, own, sides)


def spread_axis(kernel: Kernel, tensors: Mapping[str, KTensor]) -> str | None:
  """The axis that most of what a kernel without contractions moves is contiguous along.

  What has more axes is taken to be larger.
  """
  votes: dict[str, int] = {}
  for name in [o.tensor for o in kernel.loads] + [s.tensor for s in kernel.saves]:
    axes = tensors[name].axes
    if axes:
      votes[axes[-1]] = votes.get(axes[-1], 0) + 8 ** len(axes)
  return min(votes, key=lambda a: (-votes[a], a), default=None)


def _vector_layouts(kernel: Kernel, tensors: Mapping[str, KTensor]) -> tuple[BlockOp, ...]:
  spread = spread_axis(kernel, tensors)

  def layout(op: BlockOp) -> Layout:
    if spread in op.axes:
      transposed = op.op == "load" and tensors[op.tensor].axes[-1] != spread
      return Layout.SHARED if transposed else Layout.VECTOR
    if not op.axes:
      return Layout.UNIFORM
    return Layout.ROW if set(op.axes) <= set(kernel.grid) else Layout.SHARED

  return tuple(op.laid(layout(op)) for op in kernel.ops)
