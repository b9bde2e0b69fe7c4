"""The thread graph of a row kernel: one axis spread over the threads of a block, no tensor cores.

The row is read once and stays in registers as fp32. Thread t of T holds vectors of ``width``
consecutive elements: vector i starts at element (i*T + t) * width, so a warp reads consecutive
addresses. Reductions over the row end as one value in every thread.

Short rows share a block: a grid axis with a tile of R has T = threads / R lanes for each of R rows,
at most a warp. Lanes of a row behind the last take part in reductions, as that row once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.block_ops import REDUCTIONS
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.functions import is_elementwise
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.constant import constant
from mirage_onnx.lower.dataflow import needed_values
from mirage_onnx.lower.forms import MMA, Form, vector
from mirage_onnx.lower.grid import AxisTile, Grid, check_maps
from mirage_onnx.lower.in_place import UPDATING, InPlace, update_of
from mirage_onnx.lower.pieces import Piece
from mirage_onnx.lower.read_ahead import reads_ahead
from mirage_onnx.lower.sizes import LaunchSizes
from mirage_onnx.lower.steps import Fetch, Fold, Held, Store, ThreadRun, ThreadStep, ThreadSteps
from mirage_onnx.lower.tensor_view import TensorView
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.target import Target

_MOST_PER_THREAD = 64
_WIDTHS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class RowPlan:
  """How the vector axis lies in the threads: ``count`` vectors of ``width`` elements each.

  ``threads`` have a row; ``packed`` is the grid axis of which a block has many, if one is. ``update``:
  outputs in the memory of inputs; then the steps before all others are what says whether anything changes,
  and a block looks at its rows in ``turns``. ``together``: where one row of a warp changes, all are made.
  """

  axis: str
  extent: int
  threads: int
  width: int
  count: int
  packed: AxisTile | None
  update: InPlace | None = None
  turns: int = 1
  together: bool = False

  @classmethod
  def of(cls, kernel: Kernel, params: KernelParams, grid: Grid, extents: Mapping[str, int]) -> RowPlan:
    """The layout of the kernel's row.

    Raises:
        RejectionError: LAYOUT, not exactly one axis inside the block, rows that do not share
            it out, or too long a row.
    """
    inside = {a for op in kernel.ops for a in op.axes if a not in kernel.grid}
    if len(inside) != 1:
      raise RejectionError("LAYOUT", f"a row kernel has one axis inside the block, not {sorted(inside)}")
    axis = inside.pop()
    extent, threads = extents[axis], 32 * params.warps
    tiled = [(a, t) for a, t in zip(grid.axes, params.tile, strict=True) if t > 1]
    if tiled:
      rows = prod(t for _, t in tiled)
      threads, rest = divmod(threads, rows)
      # The grid has made a tile smaller that is longer than its axis.
      lost = any(a.tile != t for a, t in tiled)
      if len(tiled) > 1 or lost or rest or threads not in (1, 2, 4, 8, 16, 32):
        reason = f"tiles of {params.tile} do not share out {32 * params.warps} threads"
        raise RejectionError("LAYOUT", reason)
    width = next(w for w in _WIDTHS if extent % w == 0 and (w == 1 or 2 * extent >= w * threads))
    count = -(-extent // (threads * width))
    if count * width > _MOST_PER_THREAD:
      raise RejectionError(
        "LAYOUT",
        f"{count * width} elements of {axis} per thread, at most {_MOST_PER_THREAD}",
      )
    return cls(axis, extent, threads, width, count, tiled[0][0] if tiled else None)

  @property
  def short(self) -> bool:
    """Whether some vectors lie beyond the row."""
    return self.count * self.threads * self.width != self.extent

  def form(self, over_row: bool) -> Form:
    """How a value lies: over the threads of a row, or the same in all of them."""
    row = (Piece(self.axis, "", self.extent, True, self.width),)
    return Form(vector(self.width), (), row, ()) if over_row else Form(MMA, (), (), ())


def row_graph(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> ThreadGraph:
  """How a row kernel with these numbers is done; where it updates something, what says so comes first.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or DYNAMIC_DIM.
  """
  if params.cluster > 1:
    raise RejectionError("LAYOUT", "a row kernel does not use clusters")
  check_maps(graph, kernel)
  grid = Grid.of(kernel, params, extents, target)
  update, needed = update_of(graph, kernel), needed_values(kernel)
  plan = replace(RowPlan.of(kernel, params, grid, extents), update=update)
  if update and plan.packed:
    turns, together = _turns(grid, plan.packed, extents, target), any(o.op in REDUCTIONS for o in kernel.ops)
    grid = grid.in_turns(plan.packed.axis, turns)
    plan = replace(plan, packed=grid.tile(plan.packed.axis, extents), turns=turns, together=together)
  for name in graph.args_of(kernel):
    TensorView.of(graph.tensor(name), extents, packed=name not in kernel.touched)
  early = update.early if update else frozenset[int]()
  steps = _Steps(kernel, plan, extents)
  before, rest = tuple(steps.of(early)), (*steps.of(needed - early), *map(Store, range(len(kernel.saves))))
  # A float per warp and reduction, where a row is spread over several warps.
  meetings = 0 if plan.packed else sum(isinstance(s, Fold) for s in (*before, *rest))
  smem_bytes = 4 * params.warps * meetings if params.warps > 1 else 0
  return ThreadGraph(
    graph, kernel, params, extents, grid, plan, ThreadSteps(before, (), rest), smem_bytes,
    ahead=reads_ahead(graph, kernel, extents),
  )  # fmt: skip


def _turns(grid: Grid, packed: AxisTile, extents: Mapping[str, int], target: Target) -> int:
  """How many tiles of its rows a block of an update looks at: mostly there is nothing to be done in them.

  Of a cache with room for 8192 rows the two kernels that write one took 9 us on an H100, a tile a block.
  """
  sizes = extents.extents if isinstance(extents, LaunchSizes) else extents
  tiles = {a.axis: -(-sizes[a.axis] // a.tile) for a in grid.axes}
  return max(1, min(prod(tiles.values()) // (UPDATING * target.multiprocessors), tiles[packed.axis]))


@dataclass(frozen=True, slots=True)
class _Steps:
  kernel: Kernel
  plan: RowPlan
  extents: Mapping[str, int]

  def of(self, some: Iterable[int]) -> list[ThreadStep]:
    """Loads, then all that is made of them; a run of elementwise ops on vectors is one step."""
    ops, found = self.kernel.ops, list[ThreadStep]()
    run: list[int] = []

    def end() -> None:
      if run:
        found.append(ThreadRun(run[-1], tuple(run), self.plan.form(over_row=True)))
        run.clear()

    values = sorted(some)
    found += [Fetch(i, Held(i, self._form(i))) for i in values if ops[i].op == "load"]
    for index in (i for i in values if ops[i].op != "load"):
      op = ops[index]
      simple = is_elementwise(op.op) or constant(op, self.extents) is not None
      if simple and self.plan.axis in op.axes:
        run.append(index)
        continue
      end()
      if simple:
        found.append(ThreadRun(index, (index,), self.plan.form(over_row=False)))
      elif op.op in REDUCTIONS:
        self._check_reduction(index)
        found.append(Fold(index, self.plan.form(over_row=True)))
      else:
        raise RejectionError("EMIT_UNSUPPORTED", f"no rule for {op.op!r} in a row kernel")
    end()
    return found

  def _form(self, index: int) -> Form:
    return self.plan.form(self.plan.axis in self.kernel.ops[index].axes)

  def _check_reduction(self, index: int) -> None:
    op = self.kernel.ops[index]
    if op.reduced != (self.plan.axis,) or self.plan.axis not in self.kernel.ops[op.args[0]].axes:
      raise RejectionError("EMIT_UNSUPPORTED", f"a row kernel reduces {self.plan.axis}, not {op.reduced}")
    if op.dtype is not DType.F32:
      raise RejectionError("EMIT_UNSUPPORTED", f"a reduction has type f32, not {op.dtype}")
