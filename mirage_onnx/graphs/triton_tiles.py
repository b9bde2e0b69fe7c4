"""The tiles of one kernel in Triton: indices and masks of every way in which an axis is cut.

Triton's blocks have sizes that are powers of two, and 16 at least where a product of matrices meets them.
What is beyond the tile, or beyond the tensor, is masked. A cluster is one rank here: its numbers are free, so
the µGraph computes the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import BlockOp, Kernel, KernelParams, Phase
from mirage_onnx.verify.tiles import AxisCut, tiling

#: Triton refuses values of more elements.
MOST_ELEMENTS = 1 << 20
#: The least rows, columns and depth of ``tl.dot``.
LEAST_DOT = 16


@dataclass(frozen=True, slots=True)
class CutAxis:
  """An axis cut in one way: ``name`` of its index vector, ``size`` of the block, ``mask`` or ""."""

  name: str
  size: int
  mask: str
  looped: bool
  lines: tuple[str, ...]


class Tiles:
  """Of one kernel with its numbers: the pieces of every block value.

  Raises:
      RejectionError: TRITON_UNSUPPORTED, a value has more elements than Triton's blocks may.
  """

  def __init__(self, kernel: Kernel, params: KernelParams, extents: Mapping[str, int]) -> None:
    self.kernel, self.params, self.extents = kernel, replace(params, cluster=1), extents
    found = tiling(kernel, self.params, tuple(sorted(extents.items())), np)
    self.cuts = tuple({a: replace(c, cluster=False) for a, c in cuts.items()} for cuts in found.cuts)
    self.grid = found.blocks
    self._sizes = {c: _power_of_two(self._length(c)) for cuts in self.cuts for c in cuts.values()}
    for op in kernel.ops:
      if op.op == "matmul":
        self._widen(op)
    every = dict.fromkeys(c for cuts in self.cuts for c in cuts.values())
    self._pieces = {c: self._piece(c, i) for i, c in enumerate(every)}
    for index, op in enumerate(kernel.ops):
      if (count := int(np.prod(self.shape(index), dtype=np.int64))) > MOST_ELEMENTS:
        raise RejectionError("TRITON_UNSUPPORTED", f"%{index} {op.op} has {count} elements in a block")

  @property
  def bytes_of_an_iteration(self) -> int:
    """What the loop loads in one iteration: Triton keeps so much for every stage of its pipeline."""
    ops = enumerate(self.kernel.ops)
    loads = [(i, o) for i, o in ops if o.op == "load" and o.phase is Phase.LOOP]
    return sum(prod(self.shape(i)) * o.dtype.size_bytes for i, o in loads)

  @property
  def pieces(self) -> tuple[CutAxis, ...]:
    return tuple(self._pieces.values())

  def piece(self, index: int, axis: str) -> CutAxis:
    """How block value ``index`` has ``axis``."""
    return self._pieces[self.cuts[index][axis]]

  def shape(self, index: int) -> tuple[int, ...]:
    """Of block value ``index``, in the order of its axes."""
    return tuple(self._sizes[self.cuts[index][a]] for a in self.kernel.ops[index].axes)

  def loop_lines(self) -> tuple[str, str] | None:
    """How many iterations this block makes, and the head of the loop; None without one."""
    axis = self.kernel.loop
    if axis is None:
      return None
    start, stop = self._range(self._walk())
    length = stop if start == "0" else f"{stop} - {start}"
    return f"steps = tl.cdiv({length}, {self.params.loop_tile})", "for step in range(0, steps):"

  def _walk(self) -> AxisCut:
    axis = self.kernel.loop
    assert axis is not None
    grid = self.kernel.grid.index(axis) if axis in self.kernel.grid else None
    return AxisCut(axis, grid, loop=True)

  def _range(self, cut: AxisCut) -> tuple[str, str]:
    """First element and end of what the grid leaves of the axis."""
    extent = self.extents[cut.axis]
    if cut.grid is None:
      return "0", str(extent)
    tile = self.params.tile[cut.grid]
    return f"g{cut.grid} * {tile}", f"tl.minimum(g{cut.grid} * {tile} + {tile}, {extent})"

  def _length(self, cut: AxisCut) -> int:
    """The most elements of a tile."""
    length = self.extents[cut.axis]
    if cut.grid is not None:
      length = min(length, self.params.tile[cut.grid])
    return min(length, self.params.loop_tile) if cut.loop else length

  def _widen(self, op: BlockOp) -> None:
    """Let the operands of a product be as large as ``tl.dot`` wants them, where they have axes for it."""
    x, y = (self.cuts[a] for a in op.args)
    depth = op.reduced[0]
    both = {a for a in x if a in y}
    for own in ([a for a in x if a not in both], [a for a in y if a not in both], [depth]):
      cuts = [x.get(a) or y[a] for a in own]
      while cuts and np.prod([self._sizes[c] for c in cuts]) < LEAST_DOT:
        self._sizes[cuts[0]] *= 2

  def _piece(self, cut: AxisCut, number: int) -> CutAxis:
    name, size = f"c{number}", self._sizes[cut]
    start, stop = self._range(cut)
    extent, full = self.extents[cut.axis], self._length(cut) == size
    if cut.grid is not None:
      full &= extent % self.params.tile[cut.grid] == 0
    lines = []
    if cut.loop:
      step = self.params.loop_tile
      whole = extent if cut.grid is None else self.params.tile[cut.grid]
      full &= whole % step == 0
      start = f"{start} + step * {step}" if start != "0" else f"step * {step}"
      stop = f"tl.minimum({start} + {step}, {stop})"
    lines.append(
      f"{name} = {start} + tl.arange(0, {size})" if start != "0" else f"{name} = tl.arange(0, {size})"
    )
    if not full:
      lines.append(f"{name}_in = {name} < {stop}")
    return CutAxis(name, size, "" if full else f"{name}_in", cut.loop, tuple(lines))


def _power_of_two(least: int) -> int:
  return 1 << max(0, least - 1).bit_length()
