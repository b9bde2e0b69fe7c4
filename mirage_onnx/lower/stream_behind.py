"""What goes where after the loop of a streaming kernel: values in shared memory, outputs walked as one."""

from collections.abc import Sequence

from mirage_onnx.codegen.scalar import post_sources
from mirage_onnx.codegen.space import TileSpace
from mirage_onnx.ir import Save, UGraph
from mirage_onnx.ir.block_ops import OVER_AXES, REDUCTIONS
from mirage_onnx.lower.grid import AxisTile
from mirage_onnx.lower.stream_plan import Accumulator, AccumulatorForm, StreamPlan

#: Output walks of at most this many elements per thread are unrolled, and their loads hoisted.
MOST_UNROLLED = 4


class Placement:
  """Decided from the graph and the plan alone, before a line is written."""

  def __init__(self, graph: UGraph, plan: StreamPlan, accumulators: Sequence[Accumulator]) -> None:
    self.graph, self.plan, self.accumulators, self.ops = graph, plan, accumulators, plan.kernel.ops
    self.staged = self._staged()
    self.everywhere = self._everywhere()
    self.spaces = self._spaces()
    small = all(s.per_thread <= MOST_UNROLLED for s, _ in self.spaces)
    #: Step 2 adds up the parts of the warps.
    self.reduced = plan.grid.cluster > 1 or bool(self.staged) or not small

  def tile(self, axis: str) -> AxisTile:
    return self.plan.grid.tile(axis, self.plan.extents)

  def span(self, index: int) -> TileSpace:
    """The tile of a staged value, as it lies in shared memory."""
    return TileSpace.of([self.tile(a) for a in self.ops[index].axes], self.plan.threads)

  def row(self, acc: Accumulator) -> AxisTile | None:
    """The row axis, if the accumulator has it."""
    row = self.plan.row
    has = row is not None and acc.row_tiles > 0 and row.axis in self.ops[acc.index].axes
    return row if has else None

  def _staged(self) -> list[int]:
    """POST values kept in shared memory for other threads, in order."""
    staged: set[int] = set()
    for index in post_sources(self.ops, [s.arg for s in self.plan.kernel.saves]):
      op = self.ops[index]
      if op.op == "matmul":
        staged |= {a for a in op.args if self.ops[a].op != "load"}
      elif op.op in REDUCTIONS:
        staged.add(index)
    return sorted(staged)

  def _spaces(self) -> list[tuple[TileSpace, list[Save]]]:
    """Saves grouped by the axes that they walk."""
    groups: dict[frozenset[str], tuple[TileSpace, list[Save]]] = {}
    for save in self.plan.kernel.saves:
      tiles = [self.tile(a) for a in self.graph.tensor(save.tensor).axes]
      space = TileSpace.of(tiles, self.plan.threads, self.plan.grid.cluster)
      key = frozenset(a.axis for a in space.axes)
      groups.setdefault(key, (space, []))[1].append(save)
    return list(groups.values())

  def _everywhere(self) -> list[Accumulator]:
    """Accumulators whose total over the cluster every block keeps, because it is read more than once."""
    if self.plan.grid.cluster == 1:
      return []
    tiles = post_sources(self.ops, self.staged)
    found = (a for a in self.accumulators if a.form is not AccumulatorForm.MMA or a.index in tiles)
    return [a for a in found if not self._read_once(a)]

  def _read_once(self, acc: Accumulator) -> bool:
    """Whether nothing takes the accumulator but one staged value, element by element."""
    axes, index = set(self.ops[acc.index].axes), acc.index
    needed = post_sources(self.ops, [s.arg for s in self.plan.kernel.saves])
    while index not in self.staged:
      users = [i for i in needed if index in self.ops[i].args]
      if len(users) != 1 or any(s.arg == index for s in self.plan.kernel.saves):
        return False
      (index,) = users
      if self.ops[index].op in OVER_AXES or set(self.ops[index].axes) != axes:
        return False
    return True
