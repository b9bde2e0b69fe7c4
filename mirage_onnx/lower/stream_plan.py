"""What the axes and values of a streaming kernel are, read off its block graph.

depth    the loop axis, contracted by every ``matmul`` of the loop
columns  the axes of the A operands (each matmul has one; matmuls may share it)
row      the axis of the B operands, if they have one
batch    any other axis of an operand: the grid splits it into tiles of 1

One block computes one row tile x one column tile; its warps share out the depth, a step of four lanes
at a time, and so do the ranks of a cluster, each with a contiguous range of steps. A lane has 8
elements of a step, 16 bytes; with packed weights, which are 16 bytes then, several times 8 (``parts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, DType, Kernel, KernelParams, Layout, Phase
from mirage_onnx.ir.block_ops import Kind, Merge, merge_of, of_kinds
from mirage_onnx.lower.forms import Form, Geometry, Side
from mirage_onnx.lower.grid import AxisTile, Grid
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.target import Target

#: Rows of an mma tile (its n) and columns (its m).
ROWS, COLUMNS = 8, 16

_ACCUMULATES = {op: of_kinds(Kind.CONTRACTION, Kind.REDUCTION, merges=(merge_of(op),))
                for op in of_kinds(Kind.ACCUMULATOR)}  # fmt: skip


class AccumulatorForm(StrEnum):
  """What an accumulator is before the warps meet."""

  MMA = "mma"
  ROW = "row"
  COLUMN = "column"
  UNIFORM = "uniform"


@dataclass(frozen=True, slots=True)
class Accumulator:
  """An ``acc_sum``/``acc_max``: ``source`` is the matmul, sum or rmax that it accumulates.

  ``tiles`` counts the row tiles and the column tiles that it spans, ``width`` the floats of one
  row of its tile in shared memory (padded for an mma tile).
  """

  index: int
  source: int
  form: AccumulatorForm
  column: str | None
  merge: Merge
  row_tiles: int
  column_tiles: int

  @property
  def tiles(self) -> tuple[tuple[str, int], ...]:
    """The loops over one lane's accumulators: (index variable, count)."""
    rows = (("i", self.row_tiles),) if self.row_tiles else ()
    columns = (("n", self.column_tiles),) if self.column_tiles else ()
    return rows + columns + ((("h", 2),) if self.form is AccumulatorForm.COLUMN else ())

  @property
  def pitch(self) -> int:
    """Floats from a row to the next: % 16 == 4, so that fragment stores hit all banks."""
    return COLUMNS * self.column_tiles + 4

  @property
  def floats(self) -> int:
    """Of one warp's partial tile, 16 bytes at least."""
    columns = self.pitch if self.form is AccumulatorForm.MMA else COLUMNS * self.column_tiles
    return max(4, (ROWS * self.row_tiles or 1) * (columns or 1))


@dataclass(frozen=True, slots=True)
class StreamPlan:
  """Axis roles, tiles and loop counts of a streaming kernel."""

  kernel: Kernel
  params: KernelParams
  extents: Mapping[str, int]
  grid: Grid
  depth: str
  row: AxisTile | None
  columns: Mapping[str, AxisTile]
  accumulators: tuple[Accumulator, ...]

  @property
  def depth_extent(self) -> int:
    return self.extents[self.depth]

  @property
  def lane(self) -> int:
    """Depth elements of a lane in one step."""
    return self.kernel.lane_depth

  @property
  def parts(self) -> int:
    """How many times 8 these are: mma operands of a lane, one after the other."""
    return self.lane // 8

  @property
  def step(self) -> int:
    """Depth elements that a warp consumes at once."""
    return 4 * self.lane

  @property
  def steps(self) -> int:
    """Depth steps of one cluster rank; the last rank may have fewer."""
    return -(-self.depth_extent // (self.step * self.grid.cluster))

  @property
  def stages(self) -> int:
    return min(self.params.stages, -(-self.steps // self.params.warps))

  @property
  def rounds(self) -> int:
    """Passes of a warp over its ring."""
    return -(-self.steps // (self.params.warps * self.stages))

  @property
  def even(self) -> bool:
    """Every rank and warp has exactly ``rounds * stages`` whole steps: nothing is masked."""
    each = self.step * self.params.warps * self.stages * self.rounds
    return self.depth_extent == each * self.grid.cluster

  @property
  def threads(self) -> int:
    return 32 * self.params.warps

  def rows_of(self, acc: Accumulator) -> int:
    """Rows of one of its tiles that there are."""
    if self.row is None or self.row.axis not in self.kernel.ops[acc.index].axes:
      return 1
    return min(ROWS, self.row.extent, self.row.tile) if isinstance(self.row.extent, int) else ROWS

  def is_wide(self, acc: Accumulator) -> bool:
    """Whether its products are of fp32: sums of each lane until the loop has ended."""
    source = self.kernel.ops[acc.source]
    return source.op == "matmul" and self.kernel.ops[source.args[0]].dtype is DType.F32

  @property
  def row_tiles(self) -> int:
    return -(-self.row.tile // ROWS) if self.row else 1

  def column_tiles(self, axis: str) -> int:
    return -(-self.columns[axis].tile // COLUMNS)

  def column_of(self, op: BlockOp) -> str:
    """The column axis of a value.

    Raises:
        RejectionError: LAYOUT, it has none or two.
    """
    found = [a for a in op.axes if a in self.columns]
    if len(found) != 1:
      raise RejectionError("LAYOUT", f"a column value has column axes {found}, not one")
    return found[0]

  def tiles(self, op: BlockOp) -> tuple[tuple[str, int], ...]:
    """The loops over one lane's fragments of a LOOP value: (index variable, count)."""
    match op.layout:
      case Layout.B_FRAG | Layout.ROW:
        return (("i", self.row_tiles if self.row and self.row.axis in op.axes else 1),)
      case Layout.A_FRAG | Layout.COLUMN:
        return (("n", self.column_tiles(self.column_of(op))), ("h", 2))
      case Layout.DEPTH | Layout.UNIFORM:
        return ()
      case _:
        raise RejectionError("LAYOUT", f"the loop holds no value of layout {op.layout} ({op.op})")

  def form(self, op: BlockOp) -> Form:
    """How a LOOP value lies: rows or columns over the lane groups, eights of the depth inside them."""
    row = self._side(self.row)
    match op.layout:
      case Layout.B_FRAG | Layout.ROW:
        own = row if self.row and self.row.axis in op.axes else ()
      case Layout.A_FRAG | Layout.COLUMN:
        own = self._side(self.columns[self.column_of(op)])
      case _:
        own = ()
    return Form(Geometry(8, 4, 8), own, self.depth_side if self.depth in op.axes else (), ())

  @property
  def depth_side(self) -> Side:
    """What a warp has of the depth in one step."""
    return (Piece(self.depth, "s", self.step, self.even, self.lane),)

  @staticmethod
  def _side(at: AxisTile | None) -> Side:
    return () if at is None else (Piece(at.axis, "b", at.tile, not at.short, at.tile),)

  @classmethod
  def of(cls, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target) -> StreamPlan:
    """The plan of a block graph with these numbers.

    Raises:
        RejectionError: LAYOUT or EMIT_UNSUPPORTED, no streaming kernel has these values.
    """
    grid = Grid.of(kernel, params, extents, target)
    if kernel.loop is None:
      raise RejectionError("EMIT_UNSUPPORTED", "a matmul in the loop phase without a loop")
    depth = kernel.loop
    if depth in kernel.grid:
      raise RejectionError("LAYOUT", f"the grid splits the loop axis {depth}")
    if params.cluster > 1 and kernel.cluster != depth:
      raise RejectionError("LAYOUT", f"the cluster splits {kernel.cluster}, not {depth}")
    row, columns = _roles(kernel, depth, grid, extents)
    plan = cls(kernel, params, extents, grid, depth, row, columns, ())
    found = (_accumulator(plan, i, op) for i, op in enumerate(kernel.ops) if op.op in _ACCUMULATES)
    return replace(plan, accumulators=tuple(found))


def operands(kernel: Kernel, op: BlockOp) -> tuple[int, int]:
  """(columns, rows) operands of a matmul in the loop.

  Raises:
      RejectionError: LAYOUT or EMIT_UNSUPPORTED.
  """
  by_layout = {kernel.ops[a].layout: a for a in op.args}
  if set(by_layout) != {Layout.A_FRAG, Layout.B_FRAG}:
    raise RejectionError(
      "LAYOUT", "a matmul in the loop takes one operand of layout A_frag and one of B_frag"
    )
  a, b = by_layout[Layout.A_FRAG], by_layout[Layout.B_FRAG]
  types = (kernel.ops[a].dtype, kernel.ops[b].dtype)
  wide = types[0] is DType.F32 and kernel.lane_depth > 8  # beside packed weights, by multiply-adds
  if types[0] is not types[1] or not (types[0].is_half or wide) or op.dtype is not DType.F32:
    raise RejectionError("EMIT_UNSUPPORTED", f"a matmul of {types[0]} and {types[1]} to {op.dtype}")
  return a, b


def _roles(
  kernel: Kernel, depth: str, grid: Grid, extents: Mapping[str, int]
) -> tuple[AxisTile | None, dict[str, AxisTile]]:
  row_axis: str | None = None
  columns: dict[str, AxisTile] = {}
  single = {a.axis for a in grid.axes if a.tile == 1}
  for op in kernel.ops:
    if op.op != "matmul" or op.phase is not Phase.LOOP:
      continue
    if op.reduced != (depth,):
      raise RejectionError("LAYOUT", f"a matmul in the loop contracts {op.reduced}")
    a, b = (kernel.ops[i] for i in operands(kernel, op))
    if any(x not in single for x in a.axes if x in b.axes and x != depth):
      raise RejectionError("LAYOUT", "an axis of both operands needs grid tiles of 1")
    column = _one([x for x in a.axes if x != depth and x not in b.axes], single)
    if column is None:
      raise RejectionError("EMIT_UNSUPPORTED", "the A operand of a matmul has no columns")
    columns[column] = grid.tile(column, extents)
    found = _one([x for x in b.axes if x != depth and x not in a.axes], single)
    if found and row_axis and found != row_axis:
      raise RejectionError("LAYOUT", f"two row axes, {row_axis} and {found}")
    row_axis = found or row_axis
  row = grid.tile(row_axis, extents) if row_axis else None
  if row_axis in columns:
    raise RejectionError("LAYOUT", f"{row_axis} is a row axis and a column axis")
  roles = {depth, row_axis, *columns}
  for op in kernel.ops:
    if op.phase is Phase.LOOP:
      for axis in op.axes:
        if axis not in roles and axis not in single:
          raise RejectionError("LAYOUT", f"{axis} is no row, column or depth axis")
  return row, columns


def _one(axes: list[str], single: set[str]) -> str | None:
  """The axis of ``axes`` that is no batch axis: the last, if the grid has them all in ones."""
  wide = [a for a in axes if a not in single]
  if len(wide) > 1:
    raise RejectionError("LAYOUT", f"an operand has the axes {wide} inside the block")
  return wide[0] if wide else (axes[-1] if axes else None)


def _accumulator(plan: StreamPlan, index: int, op: BlockOp) -> Accumulator:
  ops = plan.kernel.ops
  source = ops[op.args[0]]
  if source.op not in _ACCUMULATES[op.op] or source.phase is not Phase.LOOP:
    raise RejectionError("EMIT_UNSUPPORTED", f"{op.op} of {source.op!r}")
  if op.dtype is not DType.F32 or source.dtype is not DType.F32:
    raise RejectionError("EMIT_UNSUPPORTED", f"an accumulator is f32, not {op.dtype}")
  merge = merge_of(op.op)
  if source.op == "matmul":
    a, b = operands(plan.kernel, source)
    column = plan.column_of(ops[a])
    tiles = (plan.tiles(ops[b])[0][1], plan.column_tiles(column))
    return Accumulator(index, op.args[0], AccumulatorForm.MMA, column, merge, *tiles)
  value = ops[source.args[0]]
  if source.reduced != (plan.depth,):
    raise RejectionError("EMIT_UNSUPPORTED", f"the loop reduces {source.reduced}")
  match value.layout:
    case Layout.B_FRAG:
      form, own, tiles = AccumulatorForm.ROW, None, (plan.tiles(value)[0][1], 0)
    case Layout.A_FRAG:
      own = plan.column_of(value)
      form, tiles = AccumulatorForm.COLUMN, (0, plan.column_tiles(own))
    case Layout.DEPTH:
      form, own, tiles = AccumulatorForm.UNIFORM, None, (0, 0)
    case _:
      raise RejectionError("LAYOUT", f"the loop reduces a value of layout {value.layout}")
  return Accumulator(index, op.args[0], form, own, merge, *tiles)
