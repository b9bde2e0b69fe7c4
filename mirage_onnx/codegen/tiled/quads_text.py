"""Saves and loads of half types in rows of 16 bytes: the lanes of a quad exchange four tiles of 8 columns.

Behind the sums of a cluster's ranks each rank has a part of the tile, where lanes need no others
(``parts_of_ranks``). The parts are tiles of rows and columns as they are written here, so they are known
when the loops are unrolled. A rank tells the others what they have of the tile, 16 bytes at a time, and adds
theirs to its own; a register that it has no part in keeps the rank's own sum, which nothing saves.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.source import chosen, conditional
from mirage_onnx.codegen.tiled.spot import Spot, digit
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.forms import MMA, Form
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.sizes import is_runtime
from mirage_onnx.lower.steps import Fetch, GatherRanks, Held, Store, ThreadRun
from mirage_onnx.lower.thread_graph import ThreadGraph

#: Tiles of columns that a quad has together, and columns of each.
QUAD_TILES, _COLUMNS = 4, 8


def in_quads(w: ValueWriter, form: Form, view: TensorText, own: Mapping[str, Piece]) -> bool:
  """Whether eight columns from a multiple of eight on lie together in the tensor, all or none there."""
  if form.lanes != MMA or len(form.t) != 1 or not form.g or not view.tensor.dtype.is_half:
    return False
  (p,), warps = form.t, w.lowering.warps
  axes = view.tensor.axes
  rows = not view.picked and view.rows_begin_with(p.axis, _COLUMNS)
  if is_runtime(w.lowering.extents, p.axis):
    return False
  whole = w.lowering.extents[p.axis] % _COLUMNS == 0 and p.aligned % _COLUMNS == 0
  there = bool(axes) and axes[-1] == p.axis and set(own) == set(axes) and view.together(p.axis, _COLUMNS)
  tiles = warps.tiles(form.t, 8) % QUAD_TILES == 0 and warps.covers(form.t, 8) and warps.covers(form.g, 8)
  return rows and whole and there and tiles


@contextmanager
def _each(w: ValueWriter, form: Form) -> Iterator[tuple[str, str]]:
  """Loops over the rows of a lane, and over what a quad has of columns; yields their indices."""
  rows, columns = _shape(w, form)
  with w.writer.loop("i", rows) as i, w.writer.loop("j", columns) as j, w.writer.scope(rows == columns == 1):
    yield i, j


def _shape(w: ValueWriter, form: Form) -> tuple[int, int]:
  """Rows of a lane, and how many times four tiles of columns it has."""
  return w.lowering.warps.tiles(form.g, 8), w.lowering.warps.tiles(form.t, 8) // QUAD_TILES


def _spot(w: ValueWriter, form: Form, **at: str) -> Spot:
  return Spot(w.writer, w.pieces, w.lowering.warps, form, {**{f"q_{q.name}": "0" for q in form.rest}, **at})


def _place(
  w: ValueWriter, form: Form, view: TensorText, own: Mapping[str, Piece], i: str, j: str
) -> tuple[str, list[str]]:
  """Writes where a lane's eight columns are; their address, and the conditions that it has them.

  Where ranks have parts (``parts_of_ranks``) this one has some of the tiles.
  """
  (p,), (_, columns) = form.t, _shape(w, form)
  spot = _spot(w, form, i=i, j=j, e="0")
  spot.declare(q for q in own.values() if q != p)
  first = times(digit(w.lowering.warps, form.t), 8 * QUAD_TILES * columns)
  w.writer.line(f"const int c = {total(first, times(j, 8 * QUAD_TILES), 't * 8')};")
  spot.known[p] = "c"
  at = total(times(i, columns), j)
  mine = [f"ptx::cluster_rank() == {at if w.apart == 1 else f'({at}) / {w.apart}'}"] if w.apart else []
  return view.address(w.global_index(view, own, spot)), [*mine, *spot.exists(own.values())]


def load_quads(w: ValueWriter, held: Held, view: TensorText, own: Mapping[str, Piece]) -> None:
  """Registers of a load, widened; all 16 bytes of a lane are under way before any is turned."""
  if held not in w.fetched:
    issue_quads(w, held, view, own)
  writer, form, name = w.writer, held.form, w.name(held)
  w.declare(held)
  with _each(w, form) as (i, j):
    eight = f"e{name}[{i}][{j}]"
    writer.line(f"const unsigned own[{QUAD_TILES}] = {{{eight}.x, {eight}.y, {eight}.z, {eight}.w}};")
    writer.line("const ptx::U4 turned = quad_turned(own, t);")
    for n, word in enumerate("xyzw"):
      at = _spot(w, form, i=i, j=total(times(j, QUAD_TILES), str(n))).subscript(form, packed=True)
      to = f"{name}{at}"
      writer.line(f"{tag(view.tensor.dtype)}::unpack(turned.{word}, {to}[0], {to}[1]);", held.index)


def issue_quads(w: ValueWriter, held: Held, view: TensorText, own: Mapping[str, Piece]) -> None:
  """The loads of ``load_quads``."""
  name, (rows, columns) = w.name(held), _shape(w, held.form)
  w.fetched.add(held)
  w.writer.line(f"ptx::U4 e{name}[{rows}][{columns}];")
  with _each(w, held.form) as (i, j):
    address, only = _place(w, held.form, view, own, i, j)
    value = chosen(only, f"ptx::ld_v4({address})", "ptx::U4{}")
    w.writer.line(f"e{name}[{i}][{j}] = {value};", held.index)


def store_quads(
  w: ValueWriter, index: int, form: Form, view: TensorText, own: Mapping[str, Piece],
  conditions: Sequence[str],
) -> None:  # fmt: skip
  """Writes the save."""
  writer, kept = w.writer, w.late.kept if w.late else index
  with _each(w, form) as (i, j):
    writer.line(f"unsigned pairs[{QUAD_TILES}];")
    with writer.loop("n", QUAD_TILES) as n:
      spot = _spot(w, form, i=i, j=total(times(j, QUAD_TILES), n))
      low, high = (w.element(kept, spot.half(e)) for e in (0, 1))
      writer.line(f"pairs[{n}] = {tag(view.tensor.dtype)}::pack({low}, {high});", index)
    if w.late:
      with writer.loop("n", QUAD_TILES) as n:
        writer.line(f"late[{i}][{j}][{n}] = pairs[{n}];", index)
    else:
      writer.line("const ptx::U4 eight = quad_turned(pairs, t);")
      address, only = _place(w, form, view, own, i, j)
      writer.line(conditional([*conditions, *only], f"ptx::st_v4({address}, eight);"), index)
  if w.late:
    w.late.keep(w, own)


def parts_of_ranks(w: ValueWriter, threads: ThreadGraph) -> int:
  """Tiles that a rank has: as many for all; 0: each has all of them, and the first rank's are saved."""
  lowering, steps = w.lowering, threads.steps.after
  gathers = [n for n, s in enumerate(steps) if isinstance(s, GatherRanks)]
  if lowering.ranks == 1 or not lowering.warpgroup or not gathers:
    return 0
  behind = steps[gathers[0] :]
  forms = {lowering.forms[s.index] for s in behind if isinstance(s, GatherRanks)}
  forms |= {lowering.save_form(s.arg) for s in lowering.kernel.saves}
  if len(forms) != 1 or not all(isinstance(s, GatherRanks | Fetch | ThreadRun | Store) for s in behind):
    return 0
  (form,) = forms
  if not all(in_quads(w, form, w.view(s.tensor), w.own(s.arg)) for s in lowering.kernel.saves):
    return 0
  if any(p.length > 1 for p in form.rest):
    return 0
  tiles = lowering.warps.tiles(form.g, 8) * lowering.warps.tiles(form.t, 8) // QUAD_TILES
  return tiles // lowering.ranks if tiles % lowering.ranks == 0 else 0
