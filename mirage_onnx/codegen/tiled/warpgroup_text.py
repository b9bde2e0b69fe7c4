"""The text of contractions by wgmma (``warpgroup.py``)."""

import re

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import tag
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled import steps as do
from mirage_onnx.codegen.tiled.assign import Product
from mirage_onnx.codegen.tiled.forms import Form, Warps
from mirage_onnx.codegen.tiled.pairs_text import pair
from mirage_onnx.codegen.tiled.shared import SharedTile
from mirage_onnx.codegen.tiled.spot import Spot
from mirage_onnx.codegen.tiled.steps import Held
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.codegen.tiled.warpgroup import is_turned
from mirage_onnx.codegen.tiled.widened import WidenedText
from mirage_onnx.instructions import WGMMA

#: Rows of 16 bytes that eight rows of a swizzled tile, and a depth of 16, are on.
_NUMBER = re.compile(r"^(const int \w+ = )(.+);$")
_GROUP, _DEPTH_CHUNKS = 8 * WGMMA.swizzle_bytes // 16, 2 * WGMMA.depth // 16
#: The same of a depth of 16 where it goes down the rows.
_GROUPS_DEEP = WGMMA.depth * WGMMA.swizzle_bytes // 16


class PinningWriter(Writer):
  """Writes to another writer; numbers are computed where they are written (``ptx::pinned``)."""

  def __init__(self, to: Writer) -> None:
    super().__init__()
    self._to = to

  def line(self, text: str = "", op: int | None = None) -> None:
    self._to.line(_NUMBER.sub(r"\1ptx::pinned(\2);", text), op)


def tile_as_operand(w: ValueWriter, index: int, form: Form) -> SharedTile | None:
  """The shared tile that a descriptor can name for an operand; None if that is in registers."""
  if Held(index, form, packed=True) in w.lowering.made:
    return None
  home = w.lowering.tile_of(index, form)
  tile = w.lowering.tiles[home] if home is not None else None
  return tile if tile is not None and tile.swizzled and w.ops[index].op == "load" else None


def contract_by_warpgroup(w: ValueWriter, step: do.Contract) -> None:
  """Writes one contraction."""
  lowering, line = w.lowering, w.writer.line
  op, product = w.ops[step.index], lowering.assignment.products[step.index]
  into = Held(step.into, lowering.forms[step.into])
  if step.into == step.index:
    w.declare(into, "0.0f")
  kind, c, warps = tag(w.ops[op.args[0]].dtype), product.c, lowering.warps
  accumulators = w.name(into) + "".join("[0]" for _ in c.rest)
  a_tile, b_tile = (
    tile_as_operand(w, a, form) for a, form in zip(op.args, (product.a, product.b), strict=True)
  )
  assert b_tile is not None
  turned = is_turned(b_tile.order, product)
  parts, deep = warps.count((product.depth,)), warps.digit((product.depth,))
  steps = product.depth.length // parts // WGMMA.depth
  panels = product.depth.length // parts // WGMMA.step
  with w.writer.block():
    columns = 8 * warps.tiles(c.t, 8)
    line(f"const ptx::U64 b = {_tile_of_b(b_tile, product, warps, columns, turned)};")
    if a_tile is not None:
      group = warps.digit(c.g)
      group = group if warps.count(c.g) == WGMMA.warps else f"{group} / {WGMMA.warps}"
      first = "0" if warps.count(c.g) == WGMMA.warps else _first(group, WGMMA.rows)
      part = times(deep, panels * a_tile.rows * WGMMA.step)
      line(f"const ptx::U64 a = ptx::wgmma_tile({total(a_tile.name, first, part)});")
    elif op.args[0] in lowering.widened:
      home = lowering.tiles[lowering.homes[op.args[0]]]
      widened_text(w, op.args[0]).fragments(w.writer, home, kind)
    else:
      _fragments(w, op.args[0], product, steps)
    if step.index not in lowering.under_way:  # else nothing has touched them since the last one
      line(f"ptx::wgmma_hold({accumulators});")
    line("ptx::wgmma_fence();")
    for k in range(steps):
      first = f"a[{k}]" if a_tile is None else total("a", str(_descriptor_step(a_tile, k)))
      second = total("b", str(_GROUPS_DEEP * k if turned else _descriptor_step(b_tile, k)))
      call = "wgmma<true>" if turned else "wgmma"
      line(f"{call}({kind}{{}}, {accumulators}, {first}, {second});", step.index)
    line("ptx::wgmma_commit();")
    if step.index not in lowering.under_way:
      line("ptx::wgmma_wait<0>();")
      line(f"ptx::wgmma_hold({accumulators});")


def widened_text(w: ValueWriter, index: int) -> WidenedText:
  """The text of packed weights that are operand A."""
  lowering = w.lowering
  products = lowering.assignment.products
  product = next(p for i, p in products.items() if w.ops[i].args[0] == index)
  return WidenedText(index, lowering.widened[index], product, w.pieces, lowering.warps, lowering.extents)


def _tile_of_b(tile: SharedTile, product: Product, warps: Warps, columns: int, turned: bool) -> str:
  """The descriptor of a warpgroup's part of operand B."""
  across, deep = warps.digit(product.c.t), warps.digit((product.depth,))
  part = product.depth.length // warps.count((product.depth,))
  if not turned:
    place = total(tile.name, _first(across, columns), times(deep, part * tile.rows))
    return f"ptx::wgmma_tile({place})"
  place = total(tile.name, times(across, columns * tile.rows), times(deep, part * WGMMA.step))
  return f"ptx::wgmma_turned_tile({place}, {tile.rows * WGMMA.swizzle_bytes})"


def _first(digit: str, rows: int) -> str:
  """The element with which the rows of a warpgroup begin."""
  return times(digit, rows * WGMMA.step)


def _descriptor_step(tile: SharedTile, k: int) -> int:
  """From the descriptor of a tile to that of its depth step ``k``, in 16 bytes."""
  each = WGMMA.step // WGMMA.depth
  return k // each * (tile.rows * _GROUP // 8) + k % each * _DEPTH_CHUNKS


def _fragments(w: ValueWriter, index: int, product: Product, steps: int) -> None:
  """``a[k]``: the four registers of operand A, of every depth step."""
  form = product.a
  held = Held(index, form, packed=True)
  name = w.name(held) if held in w.lowering.made else None
  w.writer.line(f"unsigned a[{steps}][4];")
  with w.writer.loop("k", steps) as k:
    for number, (later, high) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
      deep = str(later) if k == "0" else total(f"2 * {k}", str(later))
      place = {"i": str(high), "j": deep, **{f"q_{p.name}": "0" for p in form.rest}}
      spot = Spot(w.writer, w.pieces, w.lowering.warps, form, place, f"_a{number}")
      value = name + spot.subscript(form, packed=True) if name else pair(w, index, form, spot)
      w.writer.line(f"a[{k}][{number}] = {value};", index)
