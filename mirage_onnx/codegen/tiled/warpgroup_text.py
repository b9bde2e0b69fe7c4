"""The text of contractions by wgmma (``warpgroup.py``)."""

import re

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import storage, tag
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled.pairs_text import QUARTERS, double, part
from mirage_onnx.codegen.tiled.spot import digit
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.codegen.tiled.widened_text import WidenedText
from mirage_onnx.instructions import WGMMA
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.assign import ProductForms
from mirage_onnx.lower.forms import Form, Warps
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held
from mirage_onnx.lower.warpgroup import is_turned

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
  if w.packed(index, form) is not None:
    return None
  home = w.lowering.tile_of(index, form)
  tile = w.lowering.tiles[home] if home is not None else None
  return tile if tile is not None and tile.swizzled and w.ops[index].op == "load" else None


def contract_by_warpgroup(w: ValueWriter, step: do.Contract) -> None:
  """Writes one contraction; of one that is late only its operand A."""
  lowering, line = w.lowering, w.writer.line
  op, product = w.ops[step.index], lowering.assignment.products[step.index]
  into = Held(step.into, lowering.forms[step.into])
  if step.into == step.index:
    w.declare(into, "0.0f")
  steps = product.depth.length // lowering.warps.count((product.depth,)) // WGMMA.depth
  if step.index == lowering.late:
    with w.writer.block():
      _fragments(w, op.args[0], product, steps, "late")
    return
  behind = lowering.late is not None and step.index in lowering.inside
  accumulators, waits = _accumulators(w, into), step.index not in lowering.under_way
  with w.writer.block():
    b = _operand_b(w, step.index)
    a_tile = tile_as_operand(w, op.args[0], product.a)
    if a_tile is not None:
      line(f"const ptx::U64 a = {_tile_of_a(w, a_tile, product)};")
    elif op.args[0] in lowering.widened:
      home = lowering.tiles[lowering.homes[op.args[0]]]
      widened_text(w, op.args[0]).fragments(w.writer, home, tag(w.ops[op.args[0]].dtype))
    else:
      line(f"unsigned a[{steps}][4];")
      _fragments(w, op.args[0], product, steps, "a")
    if waits:  # else nothing has touched them since the last one
      line(f"ptx::wgmma_hold({accumulators});")
    _issue(w, step.index, accumulators, a_tile, "a", b, steps)
    if waits and not behind:
      if w.feed and step.index == min(lowering.inside, default=-1):
        w.feed.issued()
      line("ptx::wgmma_wait<0>();")
      line(f"ptx::wgmma_hold({accumulators});")
  if behind:
    # The late one of the iteration before goes beside what is done with these results.
    stages = lowering.stages
    before = f"(step > {w.first} ? step + {stages - 1} : {'0' if w.first == '0' else 'step'}) % {stages}"
    issue_late(w, w.feed.before if w.feed else before)
    if w.feed:
      w.feed.issued()
    line("ptx::wgmma_wait<1>();")
    line(f"ptx::wgmma_hold({accumulators});")


def begin_late(w: ValueWriter) -> None:
  """Operand A of a late contraction: in the first iteration it has nothing to add."""
  if w.lowering.late is not None:
    product = w.lowering.assignment.products[w.lowering.late]
    w.writer.line(f"unsigned late[{product.depth.length // WGMMA.depth}][4] = {{}};")


def issue_late(w: ValueWriter, slot: str) -> None:
  """A late contraction, of the tile in this slot of the ring."""
  lowering, late = w.lowering, w.lowering.late
  assert late is not None
  product, (_, second) = lowering.assignment.products[late], w.ops[late].args
  tile, into = lowering.tiles[lowering.homes[second]], lowering.fused[late]
  accumulators = _accumulators(w, Held(into, lowering.forms[into]))
  with w.writer.block():
    w.writer.line(f"const {storage(tile.dtype)}* {tile.name} = {tile.name}_ring + {slot} * {tile.elements};")
    b = _operand_b(w, late)
    w.writer.line(f"ptx::wgmma_hold({accumulators});")
    _issue(w, late, accumulators, None, "late", b, product.depth.length // WGMMA.depth)


def settle_late(w: ValueWriter) -> None:
  """Its results are there."""
  assert w.lowering.late is not None
  into = w.lowering.fused[w.lowering.late]
  w.writer.line("ptx::wgmma_wait<0>();")
  w.writer.line(f"ptx::wgmma_hold({_accumulators(w, Held(into, w.lowering.forms[into]))});")


def _accumulators(w: ValueWriter, into: Held) -> str:
  return w.name(into) + "".join("[0]" for _ in into.form.rest)


def _operand_b(w: ValueWriter, index: int) -> SharedTile:
  """Writes the descriptor of operand B."""
  product, warps = w.lowering.assignment.products[index], w.lowering.warps
  tile = tile_as_operand(w, w.ops[index].args[1], product.b)
  assert tile is not None
  columns = 8 * warps.tiles(product.c.t, 8)
  turned = is_turned(tile.order, product)
  w.writer.line(f"const ptx::U64 b = {_tile_of_b(tile, product, warps, columns, turned)};")
  return tile


def _issue(
  w: ValueWriter, index: int, accumulators: str, a_tile: SharedTile | None, a: str, b_tile: SharedTile,
  steps: int,
) -> None:  # fmt: skip
  """Writes the products of a contraction, as a group."""
  op, line = w.ops[index], w.writer.line
  turned = is_turned(b_tile.order, w.lowering.assignment.products[index])
  line("ptx::wgmma_fence();")
  for k in range(steps):
    first = f"{a}[{k}]" if a_tile is None else total(a, str(_descriptor_step(a_tile, k)))
    second = total("b", str(_GROUPS_DEEP * k if turned else _descriptor_step(b_tile, k)))
    call = "wgmma<true>" if turned else "wgmma"
    line(f"{call}({tag(w.ops[op.args[0]].dtype)}{{}}, {accumulators}, {first}, {second});", index)
    if w.late and w.beside:
      w.late.between(w, k, steps)
  line("ptx::wgmma_commit();")


def _tile_of_a(w: ValueWriter, tile: SharedTile, product: ProductForms) -> str:
  """The descriptor of a warpgroup's part of operand A."""
  c, warps = product.c, w.lowering.warps
  parts, deep = warps.count((product.depth,)), digit(warps, (product.depth,))
  panels = product.depth.length // parts // WGMMA.step
  group = digit(warps, c.g)
  group = group if warps.count(c.g) == WGMMA.warps else f"{group} / {WGMMA.warps}"
  first = "0" if warps.count(c.g) == WGMMA.warps else _first(group, WGMMA.rows)
  part = times(deep, panels * tile.rows * WGMMA.step)
  return f"ptx::wgmma_tile({total(tile.name, first, part)})"


def widened_text(w: ValueWriter, index: int) -> WidenedText:
  """The text of packed weights that are operand A."""
  lowering = w.lowering
  products = lowering.assignment.products
  product = next(p for i, p in products.items() if w.ops[i].args[0] == index)
  return WidenedText(index, lowering.widened[index], product, w.pieces, lowering.warps, lowering.extents)


def _tile_of_b(tile: SharedTile, product: ProductForms, warps: Warps, columns: int, turned: bool) -> str:
  """The descriptor of a warpgroup's part of operand B."""
  across, deep = digit(warps, product.c.t), digit(warps, (product.depth,))
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


def _fragments(w: ValueWriter, index: int, product: ProductForms, steps: int, to: str) -> None:
  """``to[k]``: the four registers of operand A, of every depth step."""
  units = {f"q_{p.name}": "0" for p in product.a.rest}
  with w.writer.loop("k", steps) as k:
    for number, (later, high) in enumerate(QUARTERS):
      place = {**units, "i": str(int(high)), "j": double(k, later)}
      value = part(w, index, product.a, place, f"_a{number}")
      w.writer.line(f"{to}[{k}][{number}] = {value};", index)
