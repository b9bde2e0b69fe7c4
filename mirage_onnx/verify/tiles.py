"""Which elements of an axis every block and rank has in an iteration, as index arrays.

Grid dimensions and cluster ranks are array axes, named in ``BLOCK_AXES`` and ``RANK_AXIS``. The
tile of an axis is padded to the longest of all blocks and ranks; ``Tile.valid`` says what exists.
Padding repeats the last element of the piece, so that elementwise operations meet nothing there
that they do not meet elsewhere; reductions mask it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from mirage_onnx.ir.block_ops import RUNNING
from mirage_onnx.ir.ugraph import GRID_NAMES, BlockOp, Kernel, KernelParams, Phase
from mirage_onnx.verify.named import NamedArray

BLOCK_AXES = tuple(f"@{name}" for name in GRID_NAMES)
RANK_AXIS = "@rank"


@dataclass(frozen=True, slots=True)
class AxisCut:
  """How a load cuts an axis: by a grid dimension, then by the cluster, then by the loop."""

  axis: str
  grid: int | None = None
  cluster: bool = False
  loop: bool = False

  def __str__(self) -> str:
    grid = () if self.grid is None else (f"grid {GRID_NAMES[self.grid]}",)
    by = (*grid, *["cluster"] * self.cluster, *["loop"] * self.loop)
    return f"{self.axis} cut by {', '.join(by)}" if by else f"all of {self.axis}"

  @property
  def block_axes(self) -> tuple[str, ...]:
    """The array axes that tell the pieces apart."""
    ranks = (RANK_AXIS,) if self.cluster else ()
    return ranks if self.grid is None else (*ranks, BLOCK_AXES[self.grid])


@dataclass(frozen=True, slots=True)
class Tile:
  """``index``: [*block axes, element], into the whole axis. ``valid``: the same shape, or None.

  ``valid`` is a ``NamedArray`` of booleans with one row; None says that every element exists.
  """

  index: np.ndarray
  valid: NamedArray | None


class Tiling:
  """The tiles of one kernel with numbers; arrays are of the array module ``xp``.

  Raises:
      ValueError: the numbers do not fit the kernel, or values that meet are cut differently.
  """

  def __init__(self, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], xp: Any) -> None:
    numbers = [*params.tile, params.cluster, *([params.loop_tile] if kernel.loop else [])]
    if len(params.tile) != len(kernel.grid) or min(numbers) < 1:
      raise ValueError(f"kernel {kernel.name} has numbers {params.to_text()}")
    self.kernel, self.params, self.extents, self.xp = kernel, params, extents, xp
    self.blocks = tuple(
      -(-extents[axis] // tile) for axis, tile in zip(kernel.grid, params.tile, strict=True)
    )
    self.ranks = params.cluster if kernel.cluster else 1
    self.cuts = self._infer_cuts()
    self._tiles: dict[tuple[AxisCut, int], Tile] = {}
    self._active: dict[int, NamedArray | None] = {}

  def _infer_cuts(self) -> tuple[dict[str, AxisCut], ...]:
    """Of every block value: axis -> cut."""
    result: list[dict[str, AxisCut]] = []
    for index, op in enumerate(self.kernel.ops):
      cuts = {} if op.op != "load" else self._cuts_of_load(op)
      for arg in op.args:
        for axis, cut in result[arg].items():
          mine = cuts.setdefault(axis, cut)
          if mine != cut:
            raise ValueError(f"%{index} meets {mine} and {cut}")
      gone = op.reduced if op.args else ()
      result.append({a: c for a, c in cuts.items() if a not in gone})
    return tuple(result)

  def _cuts_of_load(self, op: BlockOp) -> dict[str, AxisCut]:
    kernel = self.kernel
    roles = [*kernel.grid, kernel.cluster, kernel.loop]
    for mapped, role in zip([*op.imap, op.cmap, op.fmap], roles, strict=True):
      if mapped is not None and (mapped != role or mapped not in op.axes):
        raise ValueError(f"{op.tensor} over {op.axes} is cut over {mapped}, not {role}")
    return {
      axis: AxisCut(
        axis,
        op.imap.index(axis) if axis in op.imap else None,
        op.cmap == axis,
        op.fmap == axis,
      )
      for axis in op.axes
    }

  @cached_property
  def varies(self) -> tuple[bool, ...]:
    """Of every block value: does it change from one iteration to the next?"""
    result: list[bool] = []
    for op in self.kernel.ops:
      own = op.op in RUNNING or op.fmap is not None
      result.append(op.phase is Phase.LOOP and (own or any(result[a] for a in op.args)))
    return tuple(result)

  @cached_property
  def _walk(self) -> AxisCut | None:
    kernel = self.kernel
    if kernel.loop is None:
      return None
    grid = kernel.grid.index(kernel.loop) if kernel.loop in kernel.grid else None
    return AxisCut(kernel.loop, grid, kernel.loop == kernel.cluster, loop=True)

  @cached_property
  def iterations(self) -> int:
    """The most that a rank of a block makes."""
    if self._walk is None:
      return 1
    start, stop = self._pieces(self._walk)
    return -(-int((stop - start).max()) // self.params.loop_tile)

  def active(self, iteration: int) -> NamedArray | None:
    """[1, *block axes]: who makes this iteration; None where everyone does."""
    if iteration not in self._active:
      self._active[iteration] = None
      if self._walk is not None:
        start, stop = self._pieces(self._walk)
        makes = start + iteration * self.params.loop_tile < stop
        self._active[iteration] = self._mask(makes, self._walk.block_axes)
    return self._active[iteration]

  def tile(self, cut: AxisCut, iteration: int) -> Tile:
    """What the blocks and ranks have of ``cut.axis``."""
    key = cut, iteration if cut.loop else 0
    if key not in self._tiles:
      self._tiles[key] = self._tile(*key)
    return self._tiles[key]

  def _pieces(self, cut: AxisCut) -> tuple[np.ndarray, np.ndarray]:
    """[*block axes]: first element and end of what is left after grid and cluster."""
    extent = self.extents[cut.axis]
    start, stop = np.zeros((1, 1), dtype=np.intp), np.full((1, 1), extent)
    if cut.grid is not None:
      tile = self.params.tile[cut.grid]
      start = np.arange(self.blocks[cut.grid])[None] * tile
      stop = np.minimum(start + tile, extent)
    if cut.cluster:
      size = -(-(stop - start) // self.ranks)
      first = start + np.arange(self.ranks)[:, None] * size
      start, stop = np.minimum(first, stop), np.minimum(first + size, stop)
    has = cut.cluster, cut.grid is not None
    shape = [n for n, keep in zip(start.shape, has, strict=True) if keep]
    return start.reshape(shape), stop.reshape(shape)

  def _tile(self, cut: AxisCut, iteration: int) -> Tile:
    start, end = self._pieces(cut)
    stop = end
    if cut.loop:
      start = np.minimum(start + iteration * self.params.loop_tile, end)
      stop = np.minimum(start + self.params.loop_tile, end)
    length = (stop - start)[..., None]
    element = np.arange(length.max())
    index = np.minimum(start[..., None] + element, np.maximum(stop - 1, 0)[..., None])
    exists = element < length
    if cut.loop:
      # Nothing is kept of what a rank computes that does not make this iteration.
      exists |= length == 0
    return Tile(self.xp.asarray(index), self._mask(exists, (*cut.block_axes, cut.axis)))

  def _mask(self, holds: np.ndarray, axes: tuple[str, ...]) -> NamedArray | None:
    return None if holds.all() else NamedArray(self.xp.asarray(holds[None]), axes)


@lru_cache(maxsize=64)
def tiling(kernel: Kernel, params: KernelParams, extents: tuple[tuple[str, int], ...], xp: Any) -> Tiling:
  """A tiling, shared by the runs of a program in several domains; ``extents`` as items."""
  return Tiling(kernel, params, dict(extents), xp)
