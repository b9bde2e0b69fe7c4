"""Numbers with which kernels contract by wgmma: for many rows, where both operands lie along the depth.

The points are few: rows of a block by 64 to a warpgroup, columns as one instruction has them, a ring of rows
of 128 bytes. They are ranked by the one formula (``cost/kernel_time.py``); what that takes of those that were
timed on an H100 says ``bench/rankings.py``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product, zip_longest
from math import ceil, inf

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Phase, UGraph, ugraph_extents
from mirage_onnx.target import Target

#: Rows of a tile below which no other instruction wastes as little.
LEAST_ROWS = WGMMA.rows
_ROWS, _PARTS, _STAGES, _CLUSTERS = (64, 128, 192, 256), (1, 2, 4), (3, 4, 5, 6), (1, 2, 4)
#: Columns that are asked for, of those that the instruction has.
COLUMNS = (64, 96, 128, 192, 256)
#: Accumulators of a lane, and warps of a block, that leave registers for the rest.
_MOST_ACCUMULATORS, _MOST_WARPS = 128, 16
#: Elements of a tile times the warpgroups that share out its columns or depth: beyond, one is enough.
_MOST_SHARED = 128 * 256 * 2
#: Registers of a thread beside its accumulators, with fewer of which kernels spill that do more than
#: multiply; the most that one has.
OTHER_REGISTERS, _MOST_REGISTERS = 64, 255
#: Tiles of which all depths of the ring are looked at: those that are fastest with the deepest.
_LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Shape:
  """A kernel's contractions: the axes of their rows and columns, their number, bytes of an iteration.

  ``step``: by rows and by columns, of one depth element.
  """

  rows: str
  columns: str
  products: int
  row_bytes: int
  column_bytes: int

  @classmethod
  def of(cls, kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int]) -> "Shape | None":
    """None where wgmma is not for the kernel.

    All contractions are in its loop and over its axis, and share rows and columns: those are the last
    axis of what is saved. What is contracted is loaded, lies along the depth, by 16 bytes. Axes of both
    operands count the products of a batch, one a block.
    """
    ops = kernel.ops
    found = [op for op in ops if op.op == "matmul"]
    inner = {tensors[s.tensor].axes[-1:] for s in kernel.saves}
    if kernel.loop is None or not found or len(inner) != 1 or extents[kernel.loop] % 8:
      return None
    (columns,) = next(iter(inner)) or ("",)
    rows = ""
    for op in found:
      batch = set(ops[op.args[0]].axes) & set(ops[op.args[1]].axes)
      if not batch - {kernel.loop} <= set(kernel.grid):
        return None
      own = [a for a in op.axes if a != columns and extents[a] > 1 and a not in batch]
      # Rows of several axes (patches of images): a block has some of the longest, of one of the others.
      longest = max(own, key=lambda a: extents[a], default="")
      own = [a for a in own if a == longest or a not in kernel.grid]
      half = all(ops[a].dtype in WGMMA.operands for a in op.args)
      plain = op.phase is Phase.LOOP and op.reduced == (kernel.loop,) and columns in op.axes
      if not (half and plain and columns not in batch and len(own) == 1 and rows in ("", own[0])):
        return None
      rows = own[0]
      weight = next(ops[a] for a in op.args if columns in ops[a].axes)
      if weight.op != "load" or tensors[weight.tensor].axes[-1] != kernel.loop:
        return None
    loads = [o for o in kernel.loads if o.fmap == kernel.loop and o.dtype.is_half]
    if any(tensors[o.tensor].axes[-1] != kernel.loop for o in loads if len(o.axes) > 1):
      return None
    if not {rows, columns} <= set(kernel.grid) or extents[rows] < LEAST_ROWS:
      return None
    sizes = [sum(axis in o.axes for o in loads) * 2 for axis in (rows, columns)]
    return cls(rows, columns, len(found), *sizes)


def warpgroup_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  points = _points(kernel, extents, shape, target)
  return lowered_fastest(kernel, tensors, extents, target, points, keep)


def _points(
  kernel: Kernel, extents: Mapping[str, int], shape: Shape, target: Target
) -> Iterator[KernelParams]:
  depth = extents[kernel.loop or ""]
  clusters = _CLUSTERS if kernel.cluster == kernel.loop and target.has_clusters else (1,)
  for rows, columns, parts, stages, cluster in product(_ROWS, COLUMNS, _PARTS, _STAGES, clusters):
    warps = rows // 16 * parts
    # Warpgroups of the same rows share out columns, or depth where those are too few.
    loop_tile = WGMMA.step * (1 if columns // parts in WGMMA.columns else parts)
    steps = ceil(ceil(depth / cluster) / loop_tile)
    accumulators = shape.products * rows * columns // (32 * warps)
    fits = accumulators <= _MOST_ACCUMULATORS and warps <= _MOST_WARPS
    fits &= accumulators + OTHER_REGISTERS <= min(_MOST_REGISTERS, target.registers_per_sm // (32 * warps))
    fits &= rows <= extents[shape.rows] and rows * columns * parts <= _MOST_SHARED
    fits &= columns <= extents[shape.columns] and stages <= max(3, steps) and steps > 1
    if fits and _smem_bytes(shape, rows, columns, loop_tile, stages) <= target.smem_bytes:
      tile = {shape.rows: rows, shape.columns: columns}
      tiles = tuple(tile.get(a, 1) for a in kernel.grid)
      yield KernelParams(tiles, cluster, loop_tile, warps, stages, WGMMA.name)


def _smem_bytes(shape: Shape, rows: int, columns: int, loop_tile: int, stages: int) -> int:
  return (rows * shape.row_bytes + columns * shape.column_bytes) * loop_tile * stages


def in_turn(*kinds: Iterable[tuple[float, KernelParams]]) -> tuple[tuple[float, KernelParams], ...]:
  """Points of all kinds, each in its order: how kinds compare is predicted roughly."""
  ranks = (sorted(filter(None, rank), key=lambda f: f[0]) for rank in zip_longest(*kinds))
  return tuple(found for rank in ranks for found in rank)


def lowered_fastest(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target,
  points: Iterable[KernelParams], keep: int,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  graph = UGraph(tuple(tensors.values()), (kernel,))
  looked_at = max(keep, _LOOKED_AT)
  return _ranked(graph, tuple(sorted(extents.items())), target, tuple(points), looked_at)[:keep]


@lru_cache(maxsize=256)
def _ranked(
  graph: UGraph, sizes: tuple[tuple[str, int], ...], target: Target, points: tuple[KernelParams, ...],
  looked_at: int,
) -> tuple[tuple[float, KernelParams], ...]:  # fmt: skip
  """In their order, those left out that do not fit or are slow with the deepest ring of their tiles."""

  def ordered(some: Iterable[KernelParams]) -> list[tuple[float, KernelParams]]:
    found = []
    for p in some:
      us = lowered_us(graph, graph.kernels[0], ugraph_extents(graph, (p,), dict(sizes)), p, target)
      found += [(us, p)] if us < inf else []
    return sorted(found, key=lambda f: (f[0], f[1].to_text()))

  deepest = {replace(p, stages=0): p for p in sorted(points, key=lambda p: p.stages)}
  first = ordered(deepest.values())
  near = {replace(p, stages=0) for _, p in first[:looked_at]}
  known = {p for _, p in first}
  others = ordered(p for p in points if replace(p, stages=0) in near and p not in known)
  return tuple(sorted((*first, *others), key=lambda f: (f[0], f[1].to_text())))
