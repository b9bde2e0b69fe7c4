"""Operands of tensor cores as text: two neighbours of the inner side in one register."""

from collections.abc import Mapping, Sequence

from mirage_onnx.codegen.index_text import total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.source import chosen
from mirage_onnx.codegen.tiled.spot import Spot
from mirage_onnx.codegen.tiled.tile_text import tile_offset
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.issued import pair_together
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held

#: The registers of a fragment of 16 x 16 in their order: of the later eight of the depth, of the high rows.
QUARTERS = ((False, False), (False, True), (True, False), (True, True))


def pair(w: ValueWriter, index: int, form: Form, spot: Spot) -> str:
  """Two neighbours of the inner side, packed; what does not exist is zero."""
  op, own, lowering = w.ops[index], w.own(index), w.lowering
  home = lowering.tile_of(index, form)
  if home is not None:
    return _in_tile_pair(lowering.tiles[home], form, own, spot)
  halves = [spot.half(e) for e in (0, 1)]
  if op.op == "load" and lowering.in_place(index, form):
    return _in_tensor(w, w.view(op.tensor), form, own, halves)
  values = []
  for half in halves:
    value = w.element(index, half)
    conditions = []
    if _cut_off(w, form) and Held(index, form) not in w.zeroed:
      half.declare(form.t)
      conditions = half.exists(form.t)
    values.append(chosen(conditions, value, "0.0f"))
  return f"{tag(op.dtype)}::pack({', '.join(values)})"


def double(index: str, later: bool) -> str:
  """The number of a tile of eight, of the first or the later one of pair ``index``."""
  if index == "0":
    return "1" if later else "0"
  return f"(2 * {index} + 1)" if later else f"2 * {index}"


def part(w: ValueWriter, index: int, form: Form, at: Mapping[str, str], tag: str) -> str:
  """A packed pair of an operand at a place: of registers, or made here; ``tag``: see ``Spot``."""
  spot, name = Spot(w.writer, w.pieces, w.lowering.warps, form, at, tag), w.packed(index, form)
  return pair(w, index, form, spot) if name is None else name + spot.subscript(form, packed=True)


def _in_tensor(
  w: ValueWriter, view: TensorText, form: Form, own: Mapping[str, Piece], halves: Sequence[Spot]
) -> str:
  bits = []
  together = pair_together(w.lowering, view, own, form)
  for half in halves[:1] if together else halves:
    half.declare(own.values())
    index, conditions = w.global_index(view, own, half), half.exists(own.values())
    if together:
      kind = "ptx::ld_u32" if view.coherent else "ptx::ld_nc_u32"
      return chosen(conditions, f"{kind}({view.address(index)})", "0u")
    bits.append(chosen(conditions, f"unsigned{{{view.load_bits(index)}}}", "0u"))
  return f"({bits[0]}) | ({bits[1]}) << 16"


def _in_tile_pair(tile: SharedTile, form: Form, own: Mapping[str, Piece], spot: Spot) -> str:
  (deep,) = form.t
  bits = []
  together = tile.order[-1] == deep and deep.length % 2 == 0
  mask = not tile.zeroed and not deep.exact
  for half in [spot.half(e) for e in (0, 1)][: 1 if together and not mask else 2]:
    half.declare(own.values())
    conditions = half.held(own.values())
    if mask:
      conditions = list(dict.fromkeys([*conditions, *half.exists([deep])]))
    place = tile_offset(tile, half.known)
    if together and not mask:
      value = f"*reinterpret_cast<const unsigned*>({total(tile.name, place)})"
      return chosen(conditions, value, "0u")
    bits.append(chosen(conditions, f"unsigned{{{tile.name}[{place}]}}", "0u"))
  return f"({bits[0]}) | ({bits[1]}) << 16"


def _cut_off(w: ValueWriter, form: Form) -> bool:
  """Whether lanes hold elements of the inner side that may not exist."""
  covered = w.lowering.warps.covers(form.t, form.lanes.inner)
  return not covered or any(not p.exact for p in form.t)


def pack(w: ValueWriter, step: do.Pack) -> None:
  """Packs the registers of a value."""
  held = step.to
  w.declare(held)
  with w.walk(held.form, packed=True) as spot:
    value = pair(w, step.index, held.form, spot)
    to = f"{w.name(held)}{spot.subscript(held.form, packed=True)}"
    w.writer.line(f"{to} = {value};", step.index)
