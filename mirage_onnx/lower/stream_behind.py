"""Behind the loop of a streaming kernel: where values meet in shared memory, and its steps in order.

1. Each warp writes its accumulators to shared memory (fp32).
2. If somebody needs whole tiles, or there is a cluster, the warps' parts are added up there; with a
   cluster, blocks then read each other's tiles over DSMEM. Otherwise step 4 adds the parts itself.
3. Values that need other threads' elements (operands of a POST matmul, POST reductions) are staged
   in shared memory, in order, with a barrier after each.
4. Every output element is computed by one thread, from a formula that ``codegen/scalar.py`` writes.

The ranks of a cluster share out the output elements; steps 1 to 3 are done by each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

from mirage_onnx.ir import BlockOp, Save, UGraph
from mirage_onnx.ir.block_ops import OVER_AXES, REDUCTIONS, Kind, of_kinds
from mirage_onnx.lower import steps as do
from mirage_onnx.lower.dataflow import made_of
from mirage_onnx.lower.grid import AxisTile
from mirage_onnx.lower.stream_plan import Accumulator, AccumulatorForm, StreamPlan
from mirage_onnx.lower.tensor_view import TensorView

#: Output walks of at most this many elements per thread are unrolled, and their loads hoisted.
MOST_UNROLLED = 4
#: Registers of a thread that vectors of a contraction behind the loop may take during it.
_MOST_VECTOR_REGISTERS = 32
#: Shared memory is handed out in pieces of 16 bytes: so many floats.
_PIECE = 4
#: What has a value behind the loop.
ACCUMULATIONS = of_kinds(Kind.ACCUMULATOR)


def post_sources(ops: Sequence[BlockOp], roots: Iterable[int]) -> list[int]:
  """The values that ``roots`` are computed from after the loop, accumulators included."""
  return sorted(made_of(ops, roots, lambda i: ops[i].op in ACCUMULATIONS))


def inline(ops: Sequence[BlockOp], kind: str, roots: Sequence[int], staged: Collection[int]) -> list[int]:
  """Operations of a kind that the formulas of ``roots`` have at their own place."""
  found = made_of(ops, roots, lambda i: i in staged or ops[i].op in (*ACCUMULATIONS, "matmul"))
  return sorted(i for i in found if ops[i].op == kind and i not in staged)


def formula(
  ops: Sequence[BlockOp], root: int, known: Container[int], there: Callable[[int], bool]
) -> list[int]:
  """The values that a scope makes to have ``root``, arguments first.

  ``known``: those that it has; ``there``: what is in shared memory, which ends the walk as accumulators do.
  """
  ends = (*ACCUMULATIONS, "matmul")
  found = made_of(ops, (root,), lambda i: i in known or ops[i].op in ends or there(i))
  return sorted(i for i in found if i not in known)


def walked_vectors(graph: UGraph, plan: StreamPlan, index: int) -> tuple[str, int, list[int]]:
  """The axis of a contraction, its extent, and the loads that are read eight elements at a time."""
  ops = plan.kernel.ops
  op = ops[index]
  tile = plan.grid.tile(op.reduced[0], plan.extents)
  if isinstance(tile.extent, str) or tile.extent % 8 != 0:
    return tile.axis, 0, []
  loads = [a for a in op.args if ops[a].op == "load"]
  views = {a: TensorView.of(graph.tensor(ops[a].tensor), plan.extents) for a in loads}
  return tile.axis, tile.extent, [a for a in loads if views[a].together(tile.axis, 8)]


@dataclass(frozen=True, slots=True)
class TileSpace:
  """The elements of one tile of some axes, the last axis fastest.

  ``ranks`` blocks of a cluster share them out, and their ``threads`` threads do.
  """

  axes: tuple[AxisTile, ...]
  threads: int
  ranks: int

  @classmethod
  def of(cls, tiles: Sequence[AxisTile], threads: int, ranks: int = 1) -> TileSpace:
    """The space of those axes that are wider than one element in the block."""
    return cls(tuple(t for t in tiles if t.tile > 1), threads, ranks)

  @property
  def elements(self) -> int:
    return prod(a.tile for a in self.axes)

  @property
  def share(self) -> int:
    """Elements of one rank; the last may have fewer."""
    return -(-self.elements // self.ranks)

  @property
  def per_thread(self) -> int:
    return -(-self.share // self.threads)


class StreamBehind:
  """``steps``: what is done; ``places``: of its tiles, in floats of shared memory, of ``floats`` in all.

  ``spaces``: walks over outputs, with the saves of each. ``staged``: values in shared memory for other
  threads; ``everywhere``: accumulators whose total over the cluster every block keeps.
  """

  def __init__(self, graph: UGraph, plan: StreamPlan, accumulators: Sequence[Accumulator]) -> None:
    self.graph, self.plan, self.accumulators, self.ops = graph, plan, accumulators, plan.kernel.ops
    self.staged = self._staged()
    self.everywhere = self._everywhere()
    self.spaces = self._spaces()
    small = all(s.per_thread <= MOST_UNROLLED for s, _ in self.spaces)
    #: Step 2 adds up the parts of the warps.
    self.reduced = plan.grid.cluster > 1 or bool(self.staged) or not small
    self.places: dict[str, int] = {}
    self.floats = 0
    self.steps = tuple(self._steps())

  def early(self, made: Set[str]) -> Mapping[int, tuple[tuple[int, ...], Mapping[int, tuple[str, int]]]]:
    """By walk: loads of elements, and of vectors with what they walk, that begin before the loop.

    Nothing of the tensors ``made``: the kernels before may still write them.
    """
    found = {}
    for number, (space, saves) in enumerate(self.spaces):
      if space.per_thread <= MOST_UNROLLED:
        roots = [s.arg for s in saves]
        loads = inline(self.ops, "load", roots, self.staged)
        elements = tuple(i for i in loads if self.ops[i].tensor not in made)
        found[number] = elements, self._vectors(roots, space.per_thread, made)
    return found

  def _vectors(self, roots: Sequence[int], per_thread: int, made: Set[str]) -> dict[int, tuple[str, int]]:
    """Loads that contractions behind the loop take, with what they walk, if registers hold them."""
    found: dict[int, tuple[str, int]] = {}
    room = _MOST_VECTOR_REGISTERS
    for index in inline(self.ops, "matmul", roots, self.staged):
      axis, extent, loads = walked_vectors(self.graph, self.plan, index)
      for load in loads:
        if self.ops[load].dtype.is_packed:  # refused where it is read
          continue
        size = per_thread * extent * self.ops[load].dtype.size_bytes // 4
        if load not in found and size <= room and self.ops[load].tensor not in made:
          found[load] = axis, extent
          room -= size
    return found

  def _reserve(self, name: str, floats: int) -> str:
    """A tile of its own."""
    self.places[name] = self.floats
    self.floats += -(-floats // _PIECE) * _PIECE
    return name

  def _steps(self) -> list[do.ThreadStep]:
    cluster, warps = self.plan.grid.cluster, self.plan.params.warps
    depth = self.plan.depth_side
    parts = {a: self._reserve(f"part{a.index}", warps * a.floats) for a in self.accumulators}
    found: list[do.ThreadStep] = [do.Publish(a.index, tile) for a, tile in parts.items()]
    found.append(do.ThreadBarrier(-1))
    if self.reduced and warps > 1:
      found += [do.Gather(a.index, tile, depth) for a, tile in parts.items()]
    if self.reduced and (warps > 1 or cluster > 1):
      found.append(do.ThreadBarrier(-1, cluster=cluster > 1))
    if self.everywhere:
      for a in self.everywhere:
        self._reserve(f"all{a.index}", a.floats)
        found.append(do.GatherRanks(a.index, parts[a]))
      found.append(do.ThreadBarrier(-1))
    for index in self.staged:
      tile = self._reserve(f"tile{index}", self.span(index).elements)
      own = do.Total(index, tile) if self.ops[index].op in REDUCTIONS else do.Stage(index, tile)
      found += [own, do.ThreadBarrier(index)]
    found += [do.Store(number) for number in range(len(self.spaces))]
    return [*found, do.ThreadBarrier(-1, cluster=True)] if cluster > 1 else found

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
