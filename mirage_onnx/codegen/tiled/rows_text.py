"""Rows as text: a thread has vectors of one row, which it loads first and stores last (``row_frame``)."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from mirage_onnx.codegen.grid_text import first_replica
from mirage_onnx.codegen.index_text import total
from mirage_onnx.codegen.source import conditional
from mirage_onnx.codegen.tiled.spot import Spot
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.ir.ugraph import Save
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.issued import in_vectors
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.steps import Held


def load_row(w: ValueWriter, held: Held) -> None:
  """What a thread has of a tensor.

  Threads behind the last row have that one: what they make of it, while it may change, is not stored.
  """
  view, own, form = w.view(w.ops[held.index].tensor), w.own(held.index).values(), held.form
  vectors = in_vectors(w.lowering, view, form)
  short = bool(form.t) and not w.lowering.warps.covers(form.t, form.lanes.inner)
  name = w.declare(held, "0.0f" if short else None)
  with _elements(w, form, own, vectors=vectors) as (spot, exists):
    to = f"{name}{spot.subscript(form, packed=vectors)}"
    at = w.global_index(view, w.own(held.index), spot)
    text = f"load_vector<{view.tag}, {view.path}>({view.address(at)}, {to});"
    w.writer.line(conditional(exists, text if vectors else f"{to} = {view.load(at)};"), held.index)


def store_row(w: ValueWriter, save: Save) -> None:
  """The same of what it saves, by one thread of those that have it."""
  view, own, form = w.view(save.tensor), w.own(save.arg), w.lowering.save_form(save.arg)
  held, rows = Held(save.arg, form), w.lowering.assignment.frames[0]
  vectors = in_vectors(w.lowering, view, form) and held in w.lowering.made
  conditions = first_replica(w.pieces.cut.grid, view.tensor.axes)
  if rows.g and not form.g:
    conditions.append(f"ptx::thread() < {rows.lanes.lanes}")
  elif rows.g and not w.pieces.rows_are_whole:
    conditions.append("exists")
  if not form.t:
    conditions.append("lane == 0" if rows.g else "ptx::thread() == 0")
  conditions += ["changes"] if w.changes else []
  w.writer.comment(f"%{save.arg} to {save.tensor}.")
  with w.writer.where(conditions), _elements(w, form, own.values(), vectors=vectors) as (spot, exists):
    at = w.global_index(view, own, spot)
    value = w.name(held) + spot.subscript(form, packed=True) if vectors else w.element(save.arg, spot)
    text = f"store_vector<{view.tag}>({view.address(at)}, {value});" if vectors else view.store(at, value)
    w.writer.line(conditional(exists, text), save.arg)


@contextmanager
def _elements(
  w: ValueWriter, form: Form, own: Collection[Piece], *, vectors: bool
) -> Iterator[tuple[Spot, list[str]]]:
  """A scope for every vector that a thread has, or element, and the conditions that it exists."""
  with w.walk(form, packed=True) as spot:
    first = spot.half(0)
    first.declare(own)
    if not form.t:
      yield first, []
      return
    (row,) = form.t
    w.writer.line(f"const int at = {first.known[row]};")
    exists = [f"at < {row.length}"] if first.held(own) else []
    with w.writer.loop("e", 1 if vectors else form.lanes.pack) as e:
      known = {**first.known, row: total("at", e)}
      yield Spot(w.writer, w.pieces, w.lowering.warps, form, {**spot.at, "e": e}, known=known), exists
