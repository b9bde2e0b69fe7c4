"""Reductions as text: in a lane, in a warp, over warps, over ranks; contractions in fp32."""

from collections.abc import Iterator

from mirage_onnx.codegen.index_text import total
from mirage_onnx.codegen.source import chosen, conditional
from mirage_onnx.codegen.tiled.quads_text import QUAD_TILES
from mirage_onnx.codegen.tiled.spot import Spot, digit
from mirage_onnx.codegen.tiled.tails import clear_tail
from mirage_onnx.codegen.tiled.tile_text import tile_element
from mirage_onnx.codegen.tiled.values import ValueWriter, rule_of
from mirage_onnx.ir.block_ops import CLUSTER
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.forms import Form
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import Held


def multiply(w: ValueWriter, step: do.Multiply) -> None:
  """A contraction of two shared tiles by multiply-adds."""
  lowering, writer = w.lowering, w.writer
  op, product = w.ops[step.index], lowering.assignment.products[step.index]
  held = Held(step.index, product.c)
  name = w.declare(held, "0.0f")
  deep = product.depth
  with w.walk(product.c) as spot:
    spot.declare(p for a in op.args for p in w.own(a).values() if p != deep)
    at = {**spot.known, deep: "k"}
    sides = [tile_element(lowering.tiles[name], at) for name in step.tiles]
    conditions = spot.held(p for a in op.args for p in w.own(a).values() if p != deep)
    with writer.where(conditions):
      to = f"{name}{spot.subscript(product.c)}"
      with writer.block(f"for (int k = 0; k < {w.pieces.size(deep)}; ++k)"):
        writer.line(f"{to} += {sides[0]} * {sides[1]};", step.index)


def fold(w: ValueWriter, step: do.Fold) -> None:
  """What a lane has itself of a reduction."""
  op, rule = w.ops[step.index], rule_of(w.ops[step.index].op)
  held = Held(step.index, w.lowering.forms[step.index])
  neutral = f"{rule}::neutral()"
  name = w.declare(held, "0.0f" if rule == "Sum" else neutral)
  own = w.own(op.args[0])
  gone = [own[a] for a in op.reduced]
  rolled = _rolled(w, op.args[0], step.source, set(gone))
  cleared = clear_tail(w, op.args[0], step.source, gone, neutral)
  with w.walk(step.source, rolled=rolled) as spot:
    covered = all(
      w.lowering.warps.covers(s, tile)
      for s, tile in ((step.source.g, step.source.lanes.groups),
                      (step.source.t, step.source.lanes.inner))
      if set(s) & set(gone)
    )  # fmt: skip
    conditions = []
    if not cleared and (not covered or any(not p.exact for p in gone)):
      spot.declare(gone)
      conditions = spot.exists(gone)
    # The largest multiple is the multiple of the largest.
    scaled = None if conditions or cleared or rule != "Max" else w.scaled(op.args[0])
    value = w.taken(op, w.element(scaled[0] if scaled else op.args[0], spot))
    to = f"{name}{spot.subscript(held.form)}"
    if w.lowering.warps.in_rows:
      w.writer.line(conditional(conditions, f"{to} = {rule}::combine({to}, {value});"), step.index)
    else:
      value = chosen(conditions, value, neutral)
      w.writer.line(f"{to} = {rule}::combine({to}, {value});", step.index)
  if scaled:
    with w.walk(held.form) as spot:
      w.writer.line(f"{name}{spot.subscript(held.form)} *= {scaled[1]};", step.index)


def _rolled(w: ValueWriter, index: int, form: Form, gone: set[Piece]) -> tuple[str, ...]:
  """The loop over the inner side, if nothing that is held along it is used."""
  along = bool(form.t) and set(form.t) <= gone
  return ("j",) if along and w.lowering.in_place(index, form) else ()


def reduce_tile(w: ValueWriter, step: do.Total) -> None:
  """A reduction over a shared tile."""
  op, rule = w.ops[step.index], rule_of(w.ops[step.index].op)
  form = w.lowering.forms[step.index]
  name = w.declare(Held(step.index, form), f"{rule}::neutral()")
  tile, own = w.lowering.tiles[step.tile], w.own(op.args[0])
  gone = [own[a] for a in op.reduced]
  with w.walk(form) as spot:
    left = [p for p in own.values() if p not in gone]
    spot.declare(left)
    conditions = spot.held(left)
    known = {**spot.known, **{p: f"z_{p.name}" for p in gone}}
    value = w.taken(op, tile_element(tile, known))
    with w.writer.where(conditions):
      heads = [f"for (int {known[p]} = 0; {known[p]} < {w.pieces.size(p)}; ++{known[p]})" for p in gone]
      _nested(w, heads, f"{rule}::combine", f"{name}{spot.subscript(form)}", value,
              step.index)  # fmt: skip


def _nested(w: ValueWriter, heads: list[str], call: str, to: str, value: str, index: int) -> None:
  if not heads:
    w.writer.line(f"{to} = {call}({to}, {value});", index)
    return
  with w.writer.block(heads[0]):
    _nested(w, heads[1:], call, to, value, index)


def meet(w: ValueWriter, step: do.Meet) -> None:
  """The parts of the lanes of a warp."""
  rule = rule_of(w.ops[step.index].op)
  form = w.lowering.forms[step.index]
  name = w.name(Held(step.index, form))
  with w.walk(form) as spot:
    to = f"{name}{spot.subscript(form)}"
    for mask in step.masks:
      value = f"ptx::shfl_xor({to}, {mask})"
      w.writer.line(f"{to} = {rule}::combine({to}, {value});", step.index)


def publish(w: ValueWriter, step: do.Publish) -> None:
  """A slot of shared memory for every register of a thread."""
  index = step.index
  if w.ops[index].op in CLUSTER:
    index = w.ops[index].args[0]
  form = w.lowering.forms[step.index]
  tile = w.lowering.tiles[step.tile]
  if w.apart and w.ops[step.index].op in CLUSTER:
    _publish_apart(w, index, form, tile)
    return
  one = ["ptx::lane() == 0"] if w.lowering.warps.in_rows else []
  with w.walk(form) as spot:
    text = f"{tile.name}[{_slot(w, spot, form)}] = {w.element(index, spot)};"
    w.writer.line(conditional(one, text), index)


def _publish_apart(w: ValueWriter, index: int, form: Form, tile: SharedTile) -> None:
  """What other ranks have of a tile, 16 bytes at a time."""
  for rank in range(w.lowering.ranks):
    with w.writer.block(f"if (ptx::cluster_rank() != {rank})"):
      for place, spots in _fours(w, form, rank):
        four = ", ".join(w.element(index, spot) for spot in spots)
        w.writer.line(f"publish_four<{_threads(w)}>({tile.name}, {place}, {four});", index)


def _threads(w: ValueWriter) -> int:
  return 32 * w.lowering.warps.total


def _fours(w: ValueWriter, form: Form, rank: int) -> Iterator[tuple[int, list[Spot]]]:
  """The elements of a lane that a rank has (``quads_text.py``), four by four, and where they are told."""
  columns = w.lowering.warps.tiles(form.t, 8) // QUAD_TILES
  units = {f"q_{q.name}": "0" for q in form.rest}
  for tile in range(rank * w.apart, (rank + 1) * w.apart):
    for half in range(2):
      first = tile % columns * QUAD_TILES + half * QUAD_TILES // 2
      at = [(str(first + n), str(e)) for n in range(2) for e in range(2)]
      places = [{**units, "i": str(tile // columns), "j": j, "e": e} for j, e in at]
      yield 2 * tile + half, [Spot(w.writer, w.pieces, w.lowering.warps, form, place) for place in places]


def gather(w: ValueWriter, step: do.Gather) -> None:
  """The parts of the warps of a side."""
  warps, rule = w.lowering.warps, rule_of(w.ops[step.index].op)
  form = w.lowering.forms[step.index]
  tile, name = w.lowering.tiles[step.tile], w.name(Held(step.index, form))
  stride, part, count = warps.slots, digit(warps, step.side), warps.count(step.side)
  for side, n in warps.digits:
    if side == step.side:
      break
    stride *= n
  with w.walk(form) as spot:
    first = f"{_slot(w, spot, form)} - {part} * {stride}" if stride > 1 else _slot(w, spot, form, first=True)
    value = f"parts_reduce<{rule}, {count}, {stride}>({total(tile.name, first)})"
    w.writer.line(f"{name}{spot.subscript(form)} = {value};", step.index)


def gather_ranks(w: ValueWriter, step: do.GatherRanks) -> None:
  """The parts of the ranks of the cluster; where each rank has some tiles (``quads_text.py``), of those."""
  form, op = w.lowering.forms[step.index], w.ops[step.index]
  name, index = w.declare(Held(step.index, form)), op.args[0]
  tile, rule, ranks = w.lowering.tiles[step.tile], rule_of(op.op), w.lowering.ranks
  with w.walk(form) as spot:
    if w.apart:
      value = w.element(index, spot)
    else:
      value = f"cluster_reduce<{rule}, {ranks}>({tile.name} + {_slot(w, spot, form)})"
    value = w.taken(op, value)
    w.writer.line(f"{name}{spot.subscript(form)} = {value};", index if w.apart else step.index)
  if not w.apart:
    return
  w.writer.line(f"int others{step.index}[{ranks - 1}];")
  w.writer.line(f"other_ranks<{ranks}>(others{step.index});")
  call = f"gather_four<{rule}, {_threads(w)}>({tile.name}"
  for rank in range(ranks):
    with w.writer.block(f"if (ptx::cluster_rank() == {rank})"):
      for place, spots in _fours(w, form, rank):
        own = ", ".join(f"{name}{spot.subscript(form)}" for spot in spots)
        w.writer.line(f"{call}, {place}, others{step.index}, {own});", step.index)


def _slot(w: ValueWriter, spot: Spot, form: Form, *, first: bool = False) -> str:
  """Where a thread (or the first) has a register in a tile of slots, one of all threads after the other."""
  names = [f"q_{p.name}" for p in form.rest]
  names += ["i"] if form.g else []
  names += ["j"] if form.t else []
  names += ["e"] if form.t and form.lanes.pack > 1 else []
  text = "0"
  for name, count in zip(names, w.lowering.warps.shape(form), strict=True):
    before = "0" if text == "0" else f"({text}) * {count}"
    text = total(before, spot.at[name])
  warps = w.lowering.warps
  own = "0" if first else "ptx::warp()" if warps.in_rows else "ptx::thread()"
  return total("0" if text == "0" else f"({text}) * {warps.slots * warps.total}", own)
