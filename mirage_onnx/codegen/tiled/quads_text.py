"""Saves and loads of half types in rows of 16 bytes: the lanes of a quad exchange four tiles of 8 columns."""

from collections.abc import Mapping, Sequence

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.tiled.spot import Spot, digit
from mirage_onnx.codegen.tiled.values import ValueWriter, chosen, conditional
from mirage_onnx.lower.forms import MMA, Form
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.steps import Held

#: Tiles of columns that a quad has together, and columns of each.
QUAD_TILES, _COLUMNS = 4, 8


def in_quads(w: ValueWriter, form: Form, view: TensorText, own: Mapping[str, Piece]) -> bool:
  """Whether eight columns from a multiple of eight on lie together in the tensor, all or none there."""
  if form.lanes != MMA or len(form.t) != 1 or not form.g or not view.tensor.dtype.is_half:
    return False
  (p,), warps = form.t, w.lowering.warps
  axes = view.tensor.axes
  others = [view.stride(a) for a in axes if a != p.axis and not view.is_picked(a)]
  rows = not view.picked and all(not isinstance(s, int) or s % _COLUMNS == 0 for s in others)
  if is_runtime(w.lowering.extents, p.axis):
    return False
  whole = w.lowering.extents[p.axis] % _COLUMNS == 0 and p.aligned % _COLUMNS == 0
  there = bool(axes) and axes[-1] == p.axis and set(own) == set(axes) and view.together(p.axis, _COLUMNS)
  tiles = warps.tiles(form.t, 8) % QUAD_TILES == 0 and warps.covers(form.t, 8) and warps.covers(form.g, 8)
  return rows and whole and there and tiles


def is_own(w: ValueWriter, i: str, j: str, columns: int) -> str:
  """The condition that this rank has four tiles of columns, where ranks have parts (``apart_text.py``)."""
  at = total(times(i, columns), j)
  return f"ptx::cluster_rank() == {at}" if w.apart == 1 else f"ptx::cluster_rank() == ({at}) / {w.apart}"


def load_quads(w: ValueWriter, held: Held, view: TensorText, own: Mapping[str, Piece]) -> None:
  """Registers of a load, widened; all 16 bytes of a lane are under way before any is turned."""
  if held not in w.fetched:
    issue_quads(w, held, view, own)
  lowering, writer, form, name = w.lowering, w.writer, held.form, w.name(held)
  warps = lowering.warps
  units = {f"q_{q.name}": "0" for q in form.rest}
  kind = tag(view.tensor.dtype)
  rows, columns = warps.tiles(form.g, 8), warps.tiles(form.t, 8) // QUAD_TILES
  w.declare(held)
  with writer.loop("i", rows) as i, writer.loop("j", columns) as j, writer.scope(rows == columns == 1):
    eight = f"e{name}[{i}][{j}]"
    writer.line(f"const unsigned own[{QUAD_TILES}] = {{{eight}.x, {eight}.y, {eight}.z, {eight}.w}};")
    writer.line("const ptx::U4 turned = quad_turned(own, t);")
    for n, word in enumerate("xyzw"):
      spot = Spot(writer, w.pieces, warps, form, {**units, "i": i, "j": total(times(j, QUAD_TILES), str(n))})
      to = f"{name}{spot.subscript(form, packed=True)}"
      writer.line(f"{kind}::unpack(turned.{word}, {to}[0], {to}[1]);", held.index)


def issue_quads(w: ValueWriter, held: Held, view: TensorText, own: Mapping[str, Piece]) -> None:
  """The loads of ``load_quads``."""
  lowering, writer, form, name = w.lowering, w.writer, held.form, w.name(held)
  warps, (p,) = lowering.warps, form.t
  units = {f"q_{q.name}": "0" for q in form.rest}
  each = warps.tiles(form.t, 8)
  rows, columns = warps.tiles(form.g, 8), each // QUAD_TILES
  w.fetched.add(held)
  writer.line(f"ptx::U4 e{name}[{rows}][{columns}];")
  with writer.loop("i", rows) as i, writer.loop("j", columns) as j, writer.scope(rows == columns == 1):
    spot = Spot(writer, w.pieces, warps, form, {**units, "i": i, "j": j, "e": "0"})
    spot.declare(q for q in own.values() if q != p)
    _column(w, form, spot, j, each)
    load = f"ptx::ld_v4({view.address(w.global_index(view, own, spot))})"
    only = [is_own(w, i, j, columns)] if w.apart else []
    value = chosen([*only, *spot.exists(own.values())], load, "ptx::U4{}")
    writer.line(f"e{name}[{i}][{j}] = {value};", held.index)


def _column(w: ValueWriter, form: Form, spot: Spot, j: str, each: int) -> None:
  """The first of a lane's eight columns."""
  (p,) = form.t
  column = total(times(digit(w.lowering.warps, form.t), 8 * each), times(j, 8 * QUAD_TILES), "t * 8")
  w.writer.line(f"const int c = {column};")
  spot.known[p] = "c"


def store_quads(
  w: ValueWriter, index: int, form: Form, view: TensorText, own: Mapping[str, Piece],
  conditions: Sequence[str],
) -> None:  # fmt: skip
  """Writes the save."""
  lowering, writer = w.lowering, w.writer
  warps, (p,) = lowering.warps, form.t
  units = {f"q_{q.name}": "0" for q in form.rest}
  kind, each = tag(view.tensor.dtype), warps.tiles(form.t, 8)
  rows, columns = warps.tiles(form.g, 8), each // QUAD_TILES
  with (
    writer.loop("i", rows) as i, writer.loop("j", columns) as j,
    writer.scope(rows == columns == 1),
  ):  # fmt: skip
    writer.line(f"unsigned pairs[{QUAD_TILES}];")
    with writer.loop("n", QUAD_TILES) as n:
      place = {**units, "i": i, "j": total(times(j, QUAD_TILES), n)}
      spot = Spot(writer, w.pieces, warps, form, place)
      low, high = (w.element(w.late.kept if w.late else index, spot.half(e)) for e in (0, 1))
      writer.line(f"pairs[{n}] = {kind}::pack({low}, {high});", index)
    if w.late:
      with writer.loop("n", QUAD_TILES) as n:
        writer.line(f"late[{i}][{j}][{n}] = pairs[{n}];", index)
    else:
      writer.line("const ptx::U4 eight = quad_turned(pairs, t);")
      spot = Spot(writer, w.pieces, warps, form, {**units, "i": i, "j": j, "e": "0"})
      spot.declare(q for q in own.values() if q != p)
      _column(w, form, spot, j, each)
      address = view.address(w.global_index(view, own, spot))
      only = [*conditions, *([is_own(w, i, j, columns)] if w.apart else []), *spot.exists(own.values())]
      writer.line(conditional(only, f"ptx::st_v4({address}, eight);"), index)
  if w.late:
    w.late.keep(w, own)
