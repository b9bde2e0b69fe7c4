"""Contractions on tensor cores: instructions of a warp over its tiles of 16 x 8, depth outermost.

Operands are fragments of one step of 16 depth elements at a time: packed registers, or pairs read
(and computed) in place, or matrices of 8 x 8 by ldmatrix from a tile in shared memory. The loop
over the depth is unrolled where an operand is registers, since those have no addresses.
"""

from dataclasses import dataclass

from mirage_onnx.codegen.index_text import parts_of, subscript, times, total
from mirage_onnx.codegen.loads import tag
from mirage_onnx.codegen.tiled.pairs_text import QUARTERS, double, part
from mirage_onnx.codegen.tiled.spot import digit
from mirage_onnx.codegen.tiled.tails import clear_tail
from mirage_onnx.codegen.tiled.tile_text import tile_offset
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.forms import Form, length
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held

#: Depth steps that are unrolled where they need not all be; more where operands come from device
#: memory, to have so many loads in flight.
_UNROLLED, _UNROLLED_FAR = 2, 8


@dataclass(frozen=True, slots=True)
class _Operand:
  """One operand: the letter of its fragments, its value and form, tiles of rows and depth."""

  letter: str
  index: int
  form: Form
  rows: int
  depth: int
  held: str | None
  tile: SharedTile | None
  transposed: bool


def contract(w: ValueWriter, step: do.Contract) -> None:
  """Writes one contraction."""
  lowering, writer = w.lowering, w.writer
  op, product = w.ops[step.index], lowering.assignment.products[step.index]
  c, warps = product.c, lowering.warps
  into = Held(step.into, lowering.forms[step.into])
  if step.into == step.index:
    w.declare(into, "0.0f")
  rows = warps.tiles(c.g, 8) if c.g else 1
  columns = warps.tiles(c.t, 8) if c.t else 1
  depth = warps.tiles((product.depth,), 8)
  a = _operand(w, "a", op.args[0], product.a, rows, depth, product.depth)
  b = _operand(w, "b", op.args[1], product.b, columns, depth, product.depth)
  for x in (a, b):
    if x.held is None and clear_tail(w, x.index, x.form, x.form.t, "0.0f"):
      w.zeroed.add(Held(x.index, x.form))
  batch = tuple((f"q_{p.name}", p.length) for p in c.rest)
  steps = (depth + 1) // 2
  with writer.loops(batch) as indices:
    at = {name: i for (name, _), i in zip(batch, indices, strict=True)}
    unrolled = _UNROLLED_FAR if _far(w, a) or _far(w, b) else _UNROLLED
    whole = steps <= unrolled or _static(w, a) or _static(w, b)
    if not whole:
      writer.line(f"#pragma unroll {unrolled}")
    repeat = writer.loop("k", steps) if whole else writer.counted("k", steps)
    with repeat as k, writer.scope(steps == 1):
      _fragments(w, a, at, k)
      with writer.loop("j", columns) as j, writer.scope(columns == 1):
        _column(w, b, at, j, k)
        with writer.loop("i", (rows + 1) // 2) as i:
          _multiply_add(w, step.index, w.name(into) + subscript(indices), i, j, rows)


def _operand(
  w: ValueWriter, letter: str, index: int, form: Form, rows: int, depth: int, deep: Piece
) -> _Operand:
  name, tile, transposed = w.packed(index, form), None, False
  if name is None:
    home = w.lowering.tile_of(index, form)
    candidate = w.lowering.tiles[home] if home is not None else None
    if candidate is not None and w.lowering.by_matrices(candidate, form, deep):
      tile, transposed = candidate, candidate.order[-1] != deep
  return _Operand(letter, index, form, rows, depth, name, tile, transposed)


def _static(w: ValueWriter, operand: _Operand) -> bool:
  """Whether fragments are registers with an index along the depth."""
  if operand.held is not None:
    return True
  index, form = operand.index, operand.form
  in_tile = w.lowering.tile_of(index, form) is not None
  return not in_tile and not w.lowering.in_place(index, form)


def _far(w: ValueWriter, operand: _Operand) -> bool:
  """Whether fragments are loaded from device memory where they are used."""
  if operand.held is not None or operand.tile is not None:
    return False
  if w.ops[operand.index].op == "load":
    return operand.index not in w.lowering.homes
  todo = [operand.index]
  while todo:
    index = todo.pop()
    form = operand.form.of(w.own(index).values())
    if w.ops[index].op == "load" and index not in w.lowering.homes:
      return w.lowering.in_place(index, form)
    todo += w.ops[index].args if w.lowering.in_place(index, form) else ()
  return False


def _fragments(w: ValueWriter, a: _Operand, at: dict[str, str], k: str) -> None:
  """``a[i]``: the four registers of row tiles 2i and 2i + 1."""
  writer, pairs = w.writer, (a.rows + 1) // 2
  writer.line(f"unsigned a[{pairs}][4];")
  with writer.loop("i", pairs) as i, writer.scope(pairs == 1):
    both = bool(a.form.g) and a.rows > 1
    if a.tile is not None:
      _matrices(w, a, at, i, k, f"a[{i}]", 16 if both else 8)
      return
    for number, (later, high) in enumerate(QUARTERS):
      there = (not high or both) and (not later or a.depth > 1)
      value = _part(w, a, at, double(i, high), double(k, later), f"{number}") if there else "0u"
      writer.line(f"a[{i}][{number}] = {value};", a.index)


def _column(w: ValueWriter, b: _Operand, at: dict[str, str], j: str, k: str) -> None:
  """``b``: the two registers of column tile ``j``."""
  writer = w.writer
  writer.line("unsigned b[2];")
  if b.tile is not None:
    _matrices(w, b, at, j, k, "b", 8)
    return
  for number, later in enumerate((False, True)):
    there = not later or b.depth > 1
    value = _part(w, b, at, j, double(k, later), f"{number}") if there else "0u"
    writer.line(f"b[{number}] = {value};", b.index)


def _part(w: ValueWriter, x: _Operand, at: dict[str, str], row: str, deep: str, number: str) -> str:
  return part(w, x.index, x.form, {**at, "i": row, "j": deep}, f"_{x.letter}{number}")


def _matrices(
  w: ValueWriter, x: _Operand, at: dict[str, str], tile_index: str, k: str, to: str, rows: int
) -> None:
  """Two or four matrices of 8 x 8; ``rows``: of the fragment, 8 or 16.

  Lane l gives the address of row l % 8 of matrix l / 8. Matrices go by depth for 8 rows, by rows
  and then depth for 16. A tile with the depth across its rows is read transposed.
  """
  tile, writer, warps = x.tile, w.writer, w.lowering.warps
  assert tile is not None
  (deep,) = x.form.t
  inner = "ptx::lane() % 8"
  matrix = "ptx::lane() / 8"
  if rows == 16:
    row_part, depth_part = f"{matrix} % 2 * 8", "ptx::lane() / 16 * 8"
  else:
    row_part, depth_part = "0", f"{matrix} % 2 * 8"
  each = warps.tiles(x.form.g, 8) * 8 if x.form.g else 0
  first_row = total(times(digit(warps, x.form.g), each), times(tile_index, rows)) if each else "0"
  deep_each = warps.tiles((deep,), 8) * 8
  first_deep = total(times(digit(warps, (deep,)), deep_each), times(k, 16))
  if x.transposed:
    row, depth = total(first_row, row_part), total(first_deep, depth_part, inner)
    most = f"{length(x.form.g) - 8}"
  else:
    row, depth = total(first_row, row_part, inner), total(first_deep, depth_part)
    most = f"{length(x.form.g) - 1}" if x.form.g else "0"
  local: dict[Piece, str] = {p: at.get(f"q_{p.name}", "0") for p in x.form.rest}
  name = x.letter
  writer.line(f"const int k_{name} = {depth};")
  local[deep] = f"k_{name}"
  if x.form.g:
    covered = warps.covers(x.form.g, 8)
    writer.line(f"const int r_{name} = {row if covered else f'at_most({row}, {most})'};")
    rows_of = parts_of(f"r_{name}", [p.length for p in x.form.g])
    local.update(zip(x.form.g, rows_of, strict=True))
  place = total(tile.name, tile_offset(tile, local))
  count = 4 if rows == 16 else 2
  suffix = "_trans" if x.transposed else ""
  writer.line(f"const ptx::U{count} m_{name} = ptx::ldmatrix_x{count}{suffix}({place});", x.index)
  parts: tuple[str, ...] = ("x", "y", "z", "w") if rows == 16 else ("x", "", "y", "")
  if x.letter == "b":
    parts = ("x", "y")
  for number, word in enumerate(parts):
    value = f"m_{name}.{word}" if word else "0u"
    writer.line(f"{to}[{number}] = {value};")


def _multiply_add(w: ValueWriter, index: int, acc: str, i: str, j: str, rows: int) -> None:
  """The instructions of one tile of 16 x 8 of contraction ``index``, whose results are in ``acc``."""
  writer, mma, c = w.writer, w.lowering.instruction, w.lowering.assignment.products[index].c
  kind = tag(w.ops[w.ops[index].args[0]].dtype)
  a, b = [f"a[{i}][{n}]" for n in range(4)], ["b[0]", "b[1]"]
  deep = mma.depth // 8  # registers of the second operand, and half of those of the first
  each = [", ".join([*a[2 * n : 2 * (n + deep)], *b[n : n + deep]]) for n in range(0, len(b), deep)]
  slots: list[str | None] = []
  for later in (False, True):
    row = f"[{double(i, later)}]" if c.g else ""
    there = not later or (bool(c.g) and rows > 1)
    for e in ("0", "1"):
      slot = f"{acc}{row}" + (f"[{j}][{e}]" if c.t else "")
      slots.append(slot if there and (c.t or e == "0") else None)
  if all(slots) and mma.in_rows:
    low, high = ((slots[n] or "").rpartition("[")[0] for n in (0, 2))
    for operands in each:
      writer.line(f"{mma.in_rows}({kind}{{}}, {low}, {high}, {operands});", index)
    return
  with writer.block():
    writer.line(f"float d[4] = {{{', '.join(s or '0.0f' for s in slots)}}};")
    for operands in each:
      writer.line(f"{mma.function}({kind}{{}}, d, {operands});", index)
    for number, kept in enumerate(slots):
      if kept:
        writer.line(f"{kept} = d[{number}];")
