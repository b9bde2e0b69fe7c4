"""Whether any numbers of a tiled kernel can fit, by what its smallest tiles take.

Tiles only grow with their numbers, and what the warps share out is shared by the most warps at
best. So this is a bound from below, in plain arithmetic: of the kernels of a search a third fits
nowhere, and arrays of their points would take ten times as long to say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from mirage_onnx.cost.model import PARTS_ASSUMED
from mirage_onnx.cost.tiled import MAX_REGISTERS
from mirage_onnx.cost.tiled_block import BASE_REGISTERS
from mirage_onnx.cost.tiled_work import BlockValue, CutAxes, TiledWork
from mirage_onnx.ir.ugraph import Layout
from mirage_onnx.lower.pieces import GRID, RANK, STEP
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class Least:
  """The smallest tile of each axis of the grid and of the loop, and the most ranks and warps."""

  tile: Mapping[str, int]
  loop_tile: int
  cluster: int
  warps: int

  def elements(self, axes: CutAxes, extents: Mapping[str, int]) -> int:
    """Elements of the smallest tile over these axes, as ``tiled_sizes.Sizes`` counts them."""
    count = 1
    for name, cut in axes:
      n = extents.get(name, PARTS_ASSUMED)
      if name in extents:
        n = min(n, self.tile[name]) if GRID in cut else n
        n = ceil(n / self.cluster) if RANK in cut else n
        n = min(n, self.loop_tile) if STEP in cut else n
      count *= n
    return count


def fits_nowhere(work: TiledWork, extents: Mapping[str, int], least: Least, target: Target) -> str | None:
  """Why no numbers fit, as ``tiled.resources`` says it, or None if some may."""
  known: dict[CutAxes, int] = {}

  def elements(axes: CutAxes) -> int:
    if axes not in known:
      known[axes] = least.elements(axes, extents)
    return known[axes]

  def slots(v: BlockValue) -> int:
    rows, columns = v.pad
    g, t = ceil(elements(v.extent.g) / rows) * rows, ceil(elements(v.extent.t) / columns)
    return g * t * columns * elements(v.extent.rest) * v.copies

  held = [v for v in work.values if v.op.layout is Layout.SHARED]
  held += [work.values[m.value] for m in work.moves if m.kind == "shared"]
  if sum(elements(v.extent.axes) * v.op.dtype.size_bytes for v in held) > target.smem_bytes:
    return "shared memory"
  for together in work.live:
    words = sum(
      count * slots(v) * (0.5 if v.op.dtype.size_bytes == 2 else 1.0)
      for v, count in ((work.values[i], n) for i, n in together)
    )
    if BASE_REGISTERS + ceil(words / (32 * least.warps)) > MAX_REGISTERS:
      return "registers"
  return None
