"""The operands of the depth loop: addresses of the lane's fragments, and the ring they fall into.

Every warp keeps ``stages`` steps of each operand in flight, in registers: a stage is refilled as
soon as it has been consumed, with the step that comes a whole round later. Loads never leave a
tensor: lanes of rows and columns beyond the end read the last one (their results are not stored),
lanes beyond the depth read nothing and hold zeros.

Beside packed weights, of which a step is 16 bytes of a row, operands of 16 bits take four times as many
registers as they: of those a warp has the next step only. Every block reads them, so they are near.
"""

from collections.abc import Sequence

from mirage_onnx.codegen.grid_text import first_of, last_of
from mirage_onnx.codegen.index_text import subscript, times, total
from mirage_onnx.codegen.loads import TensorText, tag
from mirage_onnx.codegen.packed_operands import PackedText
from mirage_onnx.codegen.source import Writer
from mirage_onnx.ir.ugraph import BlockOp, Layout
from mirage_onnx.lower.sizes import Count
from mirage_onnx.lower.stream_loop import StreamLoop
from mirage_onnx.lower.stream_plan import COLUMNS, ROWS


def _number(stride: Count) -> int:
  assert isinstance(stride, int)  # refused by the lowering
  return stride


class Ring:
  """Writes declarations and loads of the LOOP operands of a loop."""

  def __init__(self, loop: StreamLoop, writer: Writer) -> None:
    self.graph, self.plan, self.loads, self.writer = loop.graph, loop.plan, loop.loads, writer
    self.steps = loop

  def view(self, index: int) -> TensorText:
    tensor = self.graph.tensor(self._op(index).tensor)
    return TensorText.of(tensor, self.plan.extents, packed=index in self.loads)

  def at_stage(self, index: int, stage: str) -> str:
    """The stage of the ring, where an operand has several."""
    return stage if self.steps.stages(index) == self.plan.stages else "0"

  def packed(self, index: int) -> PackedText | None:
    """How an operand is read that memory has packed, or once for a block."""
    if not self.steps.few_bits(index):
      return None
    return PackedText.of(self.plan, self.view(index))

  def _op(self, index: int) -> BlockOp:
    return self.plan.kernel.ops[index]

  def _clamped(self, op: BlockOp) -> bool:
    """Some tile of the operand may lie beyond its tensor."""
    plan = self.plan
    if op.layout in (Layout.B_FRAG, Layout.ROW):
      row = plan.row if plan.row and plan.row.axis in op.axes else None
      return row is not None and (row.short or row.tile % ROWS != 0)
    if op.layout in (Layout.A_FRAG, Layout.COLUMN):
      column = plan.columns[plan.column_of(op)]
      return column.short or column.tile % COLUMNS != 0
    return False

  def _apart(self, op: BlockOp) -> bool:
    """Every tile has a pointer of its own: no constant leads from one to the next."""
    lane = {*self.plan.columns, self.plan.row.axis if self.plan.row else ""}
    view = TensorText.of(self.graph.tensor(op.tensor), self.plan.extents, packed=True)
    far = any(isinstance(view.stride(a), str) for a in lane & set(op.axes))
    return far or self._clamped(op)

  def _tile_offset(self, indices: Sequence[str]) -> str:
    """Rows or columns from the lane's first tile to this one."""
    if len(indices) == 1:
      return times(indices[0], ROWS)
    return total(times(indices[0], COLUMNS), times(indices[1], 8)) if indices else "0"

  def index(self, op: BlockOp, view: TensorText, indices: Sequence[str]) -> dict[str, str]:
    """Where the lane's part of a tile is, at depth 0: an index for every axis."""
    plan = self.plan
    lane_axes = {*plan.columns, plan.row.axis if plan.row else ""}
    at = {}
    for axis in view.tensor.axes:
      tile = plan.grid.tile(axis, plan.extents)
      at[axis] = "0" if axis == plan.depth else first_of(tile)
      if axis in lane_axes:
        inside = total("g", self._tile_offset(indices))
        if self._clamped(op) and not tile.short:
          inside = f"at_most({inside}, {tile.tile - 1})"
        at[axis] = total(first_of(tile), inside)
        if tile.short:
          at[axis] = f"at_most({at[axis]}, {last_of(tile)})"
    return at

  def pointers(self) -> None:
    """``at``: the lane's fragments at depth 0; one pointer where tiles lie evenly apart."""
    for index in self.loads:
      op, view = self._op(index), self.view(index)
      packed = self.packed(index)
      address_at = packed.address if packed else view.address
      if not self._apart(op):
        first = address_at(self.index(op, view, ()))
        self.writer.line(f"const {view.storage}* at{index} = {first};")
        continue
      tiles = self.plan.tiles(op)
      dims = subscript([str(count) for _, count in tiles])
      self.writer.line(f"const {view.storage}* at{index}{dims};")
      with self.writer.loops(tiles) as indices:
        address = address_at(self.index(op, view, indices))
        self.writer.line(f"at{index}{subscript(indices)} = {address};")

  def _tile_address(self, index: int, indices: Sequence[str]) -> str:
    op, view = self._op(index), self.view(index)
    if self._apart(op):
      return f"at{index}{subscript(indices)}"
    row = self.plan.row.axis if self.plan.row else ""
    if op.layout is Layout.A_FRAG:
      stride = _number(view.stride(self.plan.column_of(op)))
      stride = packed.bytes_apart(stride) if (packed := self.packed(index)) else stride
      n, h = indices
      return total(f"at{index}", times(n, COLUMNS * stride), times(h, 8 * stride))
    if op.layout is Layout.B_FRAG and row in op.axes:
      return total(f"at{index}", times(indices[0], ROWS * _number(view.stride(row))))
    return f"at{index}"

  def _types(self, op: BlockOp, view: TensorText) -> str:
    """Columns that one block reads once go around L1."""
    once = op.layout is Layout.A_FRAG and self.plan.columns[self.plan.column_of(op)].split
    path = "Path::kStream" if once and not view.coherent else view.path
    return f"{view.tag}, {path}"

  def declare(self) -> None:
    for index in self.loads:
      op = self._op(index)
      dims = subscript([str(count) for _, count in self.plan.tiles(op)])
      if packed := self.packed(index):
        kind, own = packed.declaration()
        self.writer.line(f"{kind} x{index}[{self.plan.stages}]{dims}{own};  // {op.tensor}")
        continue
      dims += subscript([str(self.plan.parts)]) if self.plan.parts > 1 else ""
      name = tag(op.dtype)
      self.writer.line(f"Eight<{name}> x{index}[{self.steps.stages(index)}]{dims};  // {op.tensor}")

  def fetch(self, stage: str, loads: Sequence[int], *, ahead: bool, tile: str | None = None) -> None:
    """Load a stage of the operands, of this round or the next one (``ahead``).

    ``tile``: only this column tile, of packed operands.
    """
    plan, writer = self.plan, self.writer
    within = "0" if stage == "0" else f"{stage} * kStride"
    depth = total("k", "kRound" if ahead else "0", within)
    for index in loads:
      op, view = self._op(index), self.view(index)
      if packed := self.packed(index):
        self._fetch_packed(index, packed, stage, depth, ahead=ahead, tile=tile)
        continue
      if plan.parts > 1:
        self._fetch_parts(index, stage, depth, ahead=ahead)
        continue
      stride = _number(view.stride(plan.depth))
      with writer.loops(plan.tiles(op)) as indices:
        apart = depth if stride == 1 else f"({depth}) * {stride}"
        address = f"{self._tile_address(index, indices)} + {apart}"
        slot = f"x{index}[{stage}]{subscript(indices)}"
        if view.together(plan.depth, 8) and plan.depth_extent % 8 == 0:
          self._load8(index, slot, address, depth, "more" if ahead else "")
        else:
          end = str(plan.depth_extent) if plan.even else "k_end"
          call = f"gather8<{self._types(op, view)}>({address}, {stride}, {end} - ({depth}))"
          writer.line(f"{slot} = {call};", index)

  def _load8(self, index: int, slot: str, address: str, depth: str, more: str) -> None:
    """Eight elements at ``depth`` to a slot; ``more``: whether there is a round for them, if asked."""
    types = self._types(self._op(index), self.view(index))
    if not self.plan.even:
      self.writer.line(f"{slot} = {{}};")
      more = f"{depth} < k_end"
    if more:
      self.writer.line(f"load8_if<{types}>({slot}, {address}, {more});", index)
    else:
      self.writer.line(f"{slot} = load8<{types}>({address});", index)

  def _fetch_packed(
    self, index: int, packed: PackedText, stage: str, depth: str, *, ahead: bool, tile: str | None
  ) -> None:
    op, plan = self._op(index), self.plan
    path = self._types(op, packed.view).split(", ")[1]
    if packed.repeat > 1 and path == "Path::kStream":
      path = packed.view.path  # lanes and steps share what is in a sector
    valid = f"{depth} < k_end" if not plan.even else "more" if ahead else ""
    tiles = plan.tiles(op)
    with self.writer.loops(tiles if tile is None else tiles[1:]) as own:
      indices = own if tile is None else (tile, *own)
      slot = f"x{index}[{stage}]{subscript(indices)}"
      for line in packed.cleared(slot) if not plan.even else ():
        self.writer.line(line)
      for line in packed.fetches(slot, self._tile_address(index, indices), depth, path, valid):
        self.writer.line(line, index)

  def _fetch_parts(self, index: int, stage: str, depth: str, *, ahead: bool) -> None:
    """Operands of 16 bits where a lane has several eights of the depth."""
    op, plan, more = self._op(index), self.plan, "more" if ahead else ""
    if self.steps.stages(index) < plan.stages and ahead:
      depth = total("k", "kStride" if stage == "0" else f"({stage} + 1) * kStride")
      more = f"{stage} + 1 < {plan.stages} || more"
    with self.writer.loops((*plan.tiles(op), ("u", plan.parts))) as (*indices, u):
      address = f"{self._tile_address(index, indices)} + {total(depth, times(u, 8))}"
      slot = f"x{index}[{self.at_stage(index, stage)}]{subscript([*indices, u])}"
      self._load8(index, slot, address, depth, more)
