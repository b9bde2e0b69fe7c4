"""Steps between registers, shared memory and tensors as text."""

from collections.abc import Mapping, Sequence

from mirage_onnx.codegen.grid_text import block_index, first_replica
from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.source import chosen, conditional
from mirage_onnx.codegen.tiled.copies import copy_load, copying
from mirage_onnx.codegen.tiled.quads_text import in_quads, load_quads, store_quads
from mirage_onnx.codegen.tiled.rows_text import load_row, store_row
from mirage_onnx.codegen.tiled.spot import Spot, owner
from mirage_onnx.codegen.tiled.tile_text import tile_offset
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.ir.ugraph import is_part_axis
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.issued import even_axis, in_pairs
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.sizes import count
from mirage_onnx.lower.steps import Held


def barrier(w: ValueWriter, step: do.ThreadBarrier) -> None:
  """Of the block or of the cluster."""
  if step.copies:
    w.writer.line("ptx::cp_async_wait_all();")
  if w.lowering.warpgroup:
    w.writer.line("ptx::fence_proxy_async();")
  w.writer.line("ptx::cluster_sync();" if step.cluster else "ptx::sync_block();")


def fetch(w: ValueWriter, step: do.Fetch) -> None:
  """A tile of a tensor to registers; widens what was issued before."""
  if w.lowering.warps.in_rows:
    load_row(w, step.to)
    return
  held, op, own = step.to, w.ops[step.index], w.own(step.index)
  pairs = in_pairs(w.lowering, held)
  early = held in w.issued
  if not early:
    w.writer.comment(f"%{step.index}: {op.tensor}, {held.form.text}.")
  if w.lowering.warpgroup and pairs and not early and in_quads(w, held.form, view := w.view(op.tensor), own):
    load_quads(w, held, view, own)
    return
  if pairs and not early:
    issue(w, (held,), note=False)
  name = w.declare(held)
  with w.walk(held.form, packed=pairs) as spot:
    to = f"{name}{spot.subscript(held.form, packed=pairs)}"
    if pairs:
      bits = _bits_name(w, held) + spot.subscript(held.form, packed=True)
      w.writer.line(f"{tag(op.dtype)}::unpack({bits}, {to}[0], {to}[1]);", step.index)
    elif early:
      bits = _bits_name(w, held) + spot.subscript(held.form)
      w.writer.line(f"{to} = {w.view(op.tensor).widened(bits)};", step.index)
    else:
      w.writer.line(f"{to} = {w.loaded(step.index, spot)};", step.index)


def _bits_name(w: ValueWriter, held: Held) -> str:
  return f"b{w.name(held)}"


def issue(w: ValueWriter, loads: Sequence[Held], *, note: bool = True) -> None:
  """Loads as memory has them, two neighbours in one where they lie so; ``fetch`` widens them.

  Weights too are read as data that may change: ptxas moves loads of constants behind barriers, to
  where they are used, and then they are waited for one after another.
  """
  for held in loads:
    op = w.ops[held.index]
    view, pairs = w.view(op.tensor), in_pairs(w.lowering, held)
    if note:
      w.writer.comment(f"%{held.index}: {op.tensor}, {held.form.text}, is under way.")
      w.issued.add(held)
    name = _bits_name(w, held)
    w.writer.line(f"{'unsigned' if pairs else view.storage} {name}{w.shape(held.form, pairs)};")
    if pairs and (axis := even_axis(w.lowering, held)):
      with w.writer.block(f"if ({count(w.lowering.extents, axis)} % 2 == 0)"):
        _load_bits(w, held, name, view, pairs=True)
      with w.writer.block("else"):
        _load_halves(w, held, name, view)
    else:
      _load_bits(w, held, name, view, pairs=pairs)


def _load_bits(w: ValueWriter, held: Held, name: str, view: TensorText, *, pairs: bool) -> None:
  own = w.own(held.index)
  if pairs and _in_line(w, held.form, view, own):
    _load_line(w, held, name, view)
    return
  with w.walk(held.form, packed=pairs) as spot:
    at = spot.half(0) if pairs else spot
    at.declare(own.values())
    address = view.address(w.global_index(view, own, at))
    load = "ptx::ld_u32" if pairs else f"load_bits<{view.tag}, Path::kCoherent>"
    none = "0u" if pairs else f"static_cast<{view.storage}>(0)"
    to = f"{name}{spot.subscript(held.form, packed=pairs)}"
    bits = chosen(at.exists(own.values()), f"{load}({address})", none)
    w.writer.line(f"{to} = {bits};", held.index)


def _in_line(w: ValueWriter, form: Form, view: TensorText, own: Mapping[str, Piece]) -> bool:
  """Whether the pairs of a lane are a constant number of elements from one to the next, and all there."""
  if not w.lowering.warpgroup or form.g or len(form.t) != 1 or set(own.values()) != set(form.t):
    return False
  (p,) = form.t
  whole = p.exact and w.lowering.warps.covers(form.t, form.lanes.inner)
  return whole and view.tensor.axes == (p.axis,) and view.stride(p.axis) == 1 and not view.picked


def _load_line(w: ValueWriter, held: Held, name: str, view: TensorText) -> None:
  """From one address on: of each by itself ptxas makes eight instructions, more than what is done with it."""
  form, warps = held.form, w.lowering.warps
  units = {f"q_{q.name}": "0" for q in form.rest}
  with w.writer.block():
    spot = Spot(w.writer, w.pieces, warps, form, {**units, "j": "0", "e": "0"})
    spot.declare(form.t)
    address = view.address(w.global_index(view, w.own(held.index), spot))
    w.writer.line(f"const {view.storage}* from = {address};")
    with w.writer.loop("j", warps.tiles(form.t, form.lanes.inner)) as j:
      here = Spot(w.writer, w.pieces, warps, form, {**units, "j": j})
      load = f"ptx::ld_u32({total('from', times(j, form.lanes.inner))})"
      w.writer.line(f"{name}{here.subscript(form, packed=True)} = {load};", held.index)


def _load_halves(w: ValueWriter, held: Held, name: str, view: TensorText) -> None:
  """Pairs of elements that do not lie at a multiple of their size."""
  own = w.own(held.index)
  with w.walk(held.form, packed=True) as spot:
    halves = []
    for at in (spot.half(0), spot.half(1)):
      at.declare(own.values())
      load = f"load_bits<{view.tag}, Path::kCoherent>({view.address(w.global_index(view, own, at))})"
      halves.append(chosen(at.exists(own.values()), f"unsigned{{{load}}}", "0u"))
    to = f"{name}{spot.subscript(held.form, packed=True)}"
    w.writer.line(f"{to} = ({halves[0]}) | ({halves[1]}) << 16;", held.index)


def copy(w: ValueWriter, step: do.Copy) -> None:
  """A tile of a tensor to shared memory."""
  w.writer.comment(f"%{step.index}: {w.ops[step.index].tensor} to shared memory.")
  copy_load(w, step.index, step.tile, copying(w.lowering))


def read(w: ValueWriter, step: do.Read) -> None:
  """A shared tile to registers."""
  held, own, tile = step.to, w.own(step.index), w.lowering.tiles[step.tile]
  name = w.declare(held)
  with w.walk(held.form) as spot:
    spot.declare(own.values())
    value = w.in_tile(tile, own, spot)
    w.writer.line(f"{name}{spot.subscript(held.form)} = {value};", step.index)


def spill(w: ValueWriter, step: do.Spill) -> None:
  """Registers to a shared tile, by one of those that hold an element."""
  tile, own = w.lowering.tiles[step.tile], w.own(step.index)
  with w.walk(step.held.form) as spot:
    spot.declare(own.values())
    value = w.element(step.index, spot)
    if tile.dtype.is_half:
      value = f"{tag(tile.dtype)}::narrow({value})"
    conditions = owner(step.held.form, w.lowering.warps)
    conditions += spot.first_copy(own.values()) + spot.held(own.values())
    text = f"{tile.name}[{tile_offset(tile, spot.known)}] = {value};"
    w.writer.line(conditional(conditions, text), step.index)


def store(w: ValueWriter, step: do.Store) -> None:
  """A value to its tensor, by one of those that hold an element."""
  if w.lowering.warps.in_rows:
    store_row(w, w.lowering.kernel.saves[step.index])
    return
  kernel, lowering = w.lowering.kernel, w.lowering
  save = kernel.saves[step.index]
  form = lowering.save_form(save.arg)
  own, view = w.own(save.arg), w.view(save.tensor)
  conditions = owner(form, lowering.warps)
  if lowering.ranks > 1 and not w.apart:
    conditions.append("ptx::cluster_rank() == 0")
  grid = w.pieces.cut.grid
  saved = tuple(a.partition("/")[0] for a in view.tensor.axes)
  conditions += first_replica(grid, saved)
  w.writer.comment(f"%{save.arg} to {save.tensor}.")
  if lowering.warpgroup and in_quads(w, form, view, own):
    store_quads(w, save.arg, form, view, own, conditions)
    return
  with w.walk(form) as spot:
    spot.declare(own.values())
    index = {}
    for axis in view.tensor.axes:
      if is_part_axis(axis) and axis in save.omap:
        index[axis] = block_index(grid, grid.axes[save.omap.index(axis)].dim or 0)
      else:
        index[axis] = total(w.pieces.first(own[axis]), spot.known[own[axis]])
    text = view.store(index, w.element(save.arg, spot))
    only = spot.first_copy(own.values()) + spot.exists(own.values())
    w.writer.line(conditional(conditions + only, text), save.arg)
