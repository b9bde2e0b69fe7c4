"""The launch geometry of a kernel: which part of each axis a block has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, UGraph
from mirage_onnx.lower.sizes import Count, count, is_runtime
from mirage_onnx.target import Target

_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_WARPS = 32


@dataclass(frozen=True, slots=True)
class AxisTile:
  """Elements of an axis that one block has: ``tile`` of ``extent``, the last may be short.

  An axis whose size only a launch knows has its parameter as ``extent``.
  """

  axis: str
  extent: Count
  tile: int
  dim: int | None

  @property
  def is_runtime(self) -> bool:
    return isinstance(self.extent, str)

  @property
  def blocks(self) -> int:
    """How many blocks split a static axis; 1 for others, of which a launch multiplies it."""
    return -(-self.extent // self.tile) if isinstance(self.extent, int) else 1

  @property
  def split(self) -> bool:
    return self.is_runtime or self.blocks > 1

  @property
  def short(self) -> bool:
    """Whether the last block may have fewer elements."""
    return self.extent % self.tile != 0 if isinstance(self.extent, int) else self.tile != 1


@dataclass(frozen=True, slots=True)
class Grid:
  """Grid axes in dimension order, and the cluster.

  Axes whose sizes only a launch knows share x, which alone has room for any number of blocks;
  the others have y and z then, so that no index is divided by more than the blocks of an axis.
  """

  axes: tuple[AxisTile, ...]
  cluster: int

  @classmethod
  def of(cls, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target) -> Grid:
    """The grid that the numbers make.

    Raises:
        RejectionError: LAYOUT, numbers that do not make a launch.
    """
    if len(params.tile) != len(kernel.grid) or len(kernel.grid) > 3:
      raise RejectionError("LAYOUT", f"{len(params.tile)} tile sizes for a grid of {len(kernel.grid)} axes")
    if min(params.tile, default=1) < 1 or params.stages < 1 or params.cluster < 1:
      raise RejectionError("LAYOUT", f"a number is below 1: {params.to_text()}")
    if not 1 <= params.warps <= _MOST_WARPS:
      raise RejectionError("LAYOUT", f"a block has 1 to {_MOST_WARPS} warps: {params.warps}")
    if params.cluster > 1 and not (target.has_clusters and params.cluster <= target.max_cluster):
      raise RejectionError("LAYOUT", f"{target.name} has no clusters of {params.cluster}")
    first = any(is_runtime(extents, a) for a in kernel.grid)  # x is theirs
    static = [a for a in kernel.grid if not is_runtime(extents, a)]
    axes = []
    for axis, tile in zip(kernel.grid, params.tile, strict=True):
      if is_runtime(extents, axis):
        axes.append(AxisTile(axis, count(extents, axis), tile, 0))
        continue
      dim = static.index(axis) + first
      axes.append(AxisTile(axis, extents[axis], min(tile, extents[axis]), dim))
    grid = cls(tuple(axes), params.cluster)
    for blocks, most in zip(grid.launch, _MOST_BLOCKS, strict=True):
      if blocks > most:
        raise RejectionError("LAYOUT", f"{blocks} blocks in a dimension of at most {most}")
    return grid

  def in_turns(self, axis: str, turns: int) -> Grid:
    """Of blocks that each do so many tiles of an axis."""
    axes = (replace(a, tile=a.tile * turns) if a.axis == axis else a for a in self.axes)
    return replace(self, axes=tuple(axes))

  def with_slowest(self, axis: str) -> Grid:
    """The same blocks in another order: those of one tile of an axis follow each other."""
    last = max(a.dim for a in self.axes if a.dim is not None)
    own = next(a.dim for a in self.axes if a.axis == axis)
    assert own is not None

    def moved(at: AxisTile) -> AxisTile:
      if at.dim is None or at.dim < own:
        return at
      return replace(at, dim=last if at.axis == axis else at.dim - 1)

    return replace(self, axes=tuple(map(moved, self.axes)))

  @property
  def launch(self) -> tuple[int, int, int]:
    """Blocks by dimension; of x, those of the axes ``tiles`` are left out."""
    counts = [self.cluster, 1, 1]
    for at in self.axes:
      counts[at.dim or 0] *= at.blocks
    return counts[0], counts[1], counts[2]

  @property
  def tiles(self) -> tuple[tuple[str, int], ...]:
    """Axes whose sizes only a launch knows, with their tiles."""
    return tuple((a.axis, a.tile) for a in self.axes if a.is_runtime)

  def tile(self, axis: str, extents: Mapping[str, int]) -> AxisTile:
    """The tile of any axis: one that the grid does not split is whole."""
    for at in self.axes:
      if at.axis == axis:
        return at
    return AxisTile(axis, extents[axis], extents[axis], None)


def check_types(graph: UGraph, kernel: Kernel) -> None:
  """Every load has its tensor's type.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, one has not.
  """
  for load in kernel.loads:
    stored = graph.tensor(load.tensor).dtype
    if load.dtype is not stored:
      raise RejectionError("EMIT_UNSUPPORTED", f"{load.tensor} is {stored} and loaded as {load.dtype}")


def check_maps(graph: UGraph, kernel: Kernel) -> None:
  """Every load and save is cut by the grid wherever its tensor has a grid axis.

  Raises:
      RejectionError: LAYOUT, an axis is whole in one operand and split by the grid in another;
          EMIT_UNSUPPORTED, as ``check_types``.
  """
  check_types(graph, kernel)
  if name := whole_in({t.name: t for t in graph.tensors}, kernel):
    raise RejectionError("LAYOUT", f"{name} has a grid axis but the grid does not split it")


def whole_in(tensors: Mapping[str, KTensor], kernel: Kernel) -> str:
  """The tensor in which an axis of the grid is whole, or is one of its parts; else nothing."""
  for name, maps in [(o.tensor, o.imap) for o in kernel.loads] + [(s.tensor, s.omap) for s in kernel.saves]:
    for axis, mapped in zip(kernel.grid, maps, strict=False):
      if mapped not in (None, axis) or (axis in tensors[name].axes and mapped is None):
        return name
  return ""
