"""Loads to registers that are issued before they are needed, and those that take two elements at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.steps import Fetch, Held, ThreadStep, ThreadSteps
from mirage_onnx.lower.tensor_view import TensorView

#: Registers of a lane that loads may take before an iteration waits, and through all of the loop.
MOST_ISSUED, MOST_THROUGH = 48, 16


@dataclass(frozen=True, slots=True)
class Issued:
  """Loads that are issued early: of an iteration, and of what is behind the loop."""

  body: tuple[Held, ...] = ()
  after: tuple[Held, ...] = ()

  @classmethod
  def of(cls, lowering: Lowered, graph: ThreadSteps, room: int) -> Issued:
    """As many as ``room`` registers of a lane hold."""
    if not graph.body:
      return cls()
    most = min(room, MOST_ISSUED)
    body, left = _fitting(lowering, graph.body, most)
    return cls(body, _fitting(lowering, graph.after, min(room - most + left, MOST_THROUGH))[0])


def _fitting(lowering: Lowered, steps: Sequence[ThreadStep], room: int) -> tuple[tuple[Held, ...], int]:
  """The first fetches that ``room`` has registers for, and what is left of it."""
  found = []
  ops, tensors = lowering.ops, lowering.tensors
  for held in (s.to for s in steps if isinstance(s, Fetch) and not tensors[ops[s.index].tensor].places):
    size = lowering.warps.registers(held.form) // (1 + in_pairs(lowering, held))
    if size <= room:
      found.append(held)
      room -= size
  return tuple(found), room


def _paired(own: Mapping[str, Piece], form: Form) -> Piece | None:
  """The piece of which a lane has two neighbours at a time, if they are pairs by their index in the axis."""
  if len(form.t) != 1:
    return None
  (p,) = form.t
  return p if own.get(p.axis) == p and p.length % 2 == 0 and p.aligned % 2 == 0 else None


def pair_together(lowering: Lowered, view: TensorView, own: Mapping[str, Piece], form: Form) -> bool:
  """Whether the two elements of a pair are neighbours in memory that exist together."""
  p = _paired(own, form)
  if p is None or is_runtime(lowering.extents, p.axis):
    return False
  return lowering.extents[p.axis] % 2 == 0 and view.together(p.axis, 2)


def in_vectors(lowering: Lowered, view: TensorView, form: Form) -> bool:
  """Whether the neighbours of a row that a lane has are one vector in memory."""
  if not lowering.warps.in_rows or not form.t or form.lanes.pack == 1 or view.tensor.places:
    return False
  return view.together(form.t[0].axis, form.lanes.pack)


def in_pairs(lowering: Lowered, held: Held) -> bool:
  """Whether a load to these registers takes two neighbours at a time."""
  op, own = lowering.ops[held.index], lowering.own(held.index)
  if held.form.lanes.pack != 2 or not op.dtype.is_half:
    return False
  view = TensorView.of(lowering.tensors[op.tensor], lowering.extents)
  return pair_together(lowering, view, own, held.form) or bool(even_axis(lowering, held))


def even_axis(lowering: Lowered, held: Held) -> str:
  """The axis, counted by a launch, whose neighbours are loaded together if they are an even number."""
  op, p = lowering.ops[held.index], _paired(lowering.own(held.index), held.form)
  if p is None or not is_runtime(lowering.extents, p.axis):
    return ""
  view = TensorView.of(lowering.tensors[op.tensor], lowering.extents, {p.axis: 2})
  return p.axis if view.together(p.axis, 2) else ""
