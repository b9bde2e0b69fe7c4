"""Steps between registers, shared memory and tensors as text."""

from mirage_onnx.codegen.loads import tag
from mirage_onnx.codegen.ring import total
from mirage_onnx.codegen.tiled import steps as do
from mirage_onnx.codegen.tiled.copies import copy_tile
from mirage_onnx.codegen.tiled.spot import owner
from mirage_onnx.codegen.tiled.values import ValueWriter, conditional
from mirage_onnx.ir.ugraph import is_part_axis


def barrier(w: ValueWriter, step: do.Barrier) -> None:
  """Of the block or of the cluster."""
  if step.copies:
    w.writer.line("ptx::cp_async_wait_all();")
  w.writer.line("ptx::cluster_sync();" if step.cluster else "ptx::sync_block();")


def fetch(w: ValueWriter, step: do.Fetch) -> None:
  """A tile of a tensor to registers."""
  held = step.to
  w.writer.comment(f"%{step.index}: {w.ops[step.index].tensor}, {held.form.text}.")
  name = w.declare(held)
  with w.walk(held.form) as spot:
    value = w.loaded(step.index, spot)
    w.writer.line(f"{name}{spot.subscript(held.form)} = {value};", step.index)


def copy(w: ValueWriter, step: do.Copy) -> None:
  """A tile of a tensor to shared memory."""
  tile, op = w.lowering.tiles[step.tile], w.ops[step.index]
  w.writer.comment(f"%{step.index}: {op.tensor} to shared memory.")
  view, own = w.view(op.tensor), w.own(step.index)
  firsts = {a: w.pieces.first(p) for a, p in own.items()}
  threads = 32 * w.lowering.warps.total
  copy_tile(w.writer, w.pieces, view, tile, own, firsts, tile.name, threads)


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
    text = f"{tile.name}[{tile.offset(spot.known)}] = {value};"
    w.writer.line(conditional(conditions, text), step.index)


def store(w: ValueWriter, step: do.Store) -> None:
  """A value to its tensor, by one of those that hold an element."""
  kernel, lowering = w.lowering.assignment.kernel, w.lowering
  save = kernel.saves[step.index]
  form = lowering.save_form(save.arg)
  own, view = w.own(save.arg), w.view(save.tensor)
  conditions = owner(form, lowering.warps)
  if lowering.ranks > 1:
    conditions.append("ptx::cluster_rank() == 0")
  grid = w.pieces.grid
  saved = tuple(a.partition("/")[0] for a in view.tensor.axes)
  conditions += [replica] if (replica := grid.replicas(saved)) else []
  w.writer.comment(f"%{save.arg} to {save.tensor}.")
  with w.walk(form) as spot:
    spot.declare(own.values())
    index = {}
    for axis in view.tensor.axes:
      if is_part_axis(axis) and axis in save.omap:
        index[axis] = grid.block_index(save.omap.index(axis))
      else:
        index[axis] = total(w.pieces.first(own[axis]), spot.known[own[axis]])
    text = view.store(index, w.element(save.arg, spot))
    only = spot.first_copy(own.values()) + spot.exists(own.values())
    w.writer.line(conditional(conditions + only, text), save.arg)
