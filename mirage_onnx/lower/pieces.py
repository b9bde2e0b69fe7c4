"""The part of an axis that a block value has in one block, rank and iteration.

``ir/ugraph.py`` says how: the grid cuts an axis into tiles, the cluster what remains into ranks'
shares, the loop those into steps. Values that meet have an axis cut alike, so an axis with the
levels that cut it is a *piece*, and a value is over pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams
from mirage_onnx.lower.grid import Grid
from mirage_onnx.lower.sizes import MOST_AT_RUNTIME, axis_variable, is_runtime

GRID, RANK, STEP = "b", "r", "s"
LEVELS = GRID + RANK + STEP


def load_levels(op: BlockOp) -> dict[str, str]:
  """The levels that cut each axis of a loaded value, a letter each, outermost first."""
  return {a: GRID * (a in op.imap) + RANK * (op.cmap == a) + STEP * (op.fmap == a) for a in op.axes}


@dataclass(frozen=True, slots=True, order=True)
class Piece:
  """``levels`` has a letter per level that cuts the axis, outermost first.

  ``length``: the most elements; ``exact``: there are always so many. ``aligned``: a number that
  divides the index of the first element, whatever the block, rank and step.
  """

  axis: str
  levels: str
  length: int
  exact: bool
  aligned: int

  def __hash__(self) -> int:
    """Pieces are in sets and keys of every layout that is tried; those of a kernel differ in this mostly."""
    return hash((self.axis, self.levels))

  @property
  def name(self) -> str:
    """The tail of the variables of the piece."""
    return "_".join(filter(None, (axis_variable(self.axis), self.levels)))


@dataclass(slots=True)
class Pieces:
  """The pieces of every value of a kernel; ``codegen/tiled/pieces_text.py`` says where they lie."""

  kernel: Kernel
  params: KernelParams
  extents: Mapping[str, int]
  grid: Grid
  of_value: tuple[dict[str, Piece], ...] = ()
  used: dict[tuple[str, str], Piece] = field(default_factory=dict)

  @classmethod
  def of(cls, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], grid: Grid) -> Pieces:
    """The pieces of a well-formed kernel.

    Raises:
        RejectionError: LAYOUT, two values that meet have an axis cut differently.
    """
    result = cls(kernel, params, extents, grid)
    found: list[dict[str, Piece]] = []
    for number, op in enumerate(kernel.ops):
      own = result._of_load(op) if op.op == "load" else {}
      for arg in op.args:
        for axis, piece in found[arg].items():
          if own.setdefault(axis, piece) != piece:
            raise RejectionError("LAYOUT", f"%{number} meets two cuts of {axis}")
      found.append({a: p for a, p in own.items() if a in op.axes})
    result.of_value = tuple(found)
    return result

  def _of_load(self, op: BlockOp) -> dict[str, Piece]:
    found = {}
    for a, levels in load_levels(op).items():
      if levels in ("", RANK):
        _ = self.extents[a]  # refuses what only a launch counts: no tile holds all of it
      found[a] = self.piece(a, levels)
    return found

  def piece(self, axis: str, levels: str) -> Piece:
    """The piece that these levels cut."""
    key = axis, levels
    if key not in self.used:
      if not levels:
        unknown = is_runtime(self.extents, axis)
        length = MOST_AT_RUNTIME if unknown else self.extents[axis]
        self.used[key] = Piece(axis, "", length, not unknown, 1 << 30)
        return self.used[key]
      whole, level = self.piece(axis, levels[:-1]), levels[-1]
      if level == GRID:
        at = self.grid.tile(axis, self.extents)
        self.used[key] = Piece(axis, levels, at.tile, not at.short, at.tile)
      elif level == RANK:
        ranks = self.params.cluster
        share = -(-whole.length // ranks)
        exact = whole.exact and whole.length % ranks == 0
        aligned = whole.aligned if ranks == 1 else gcd(whole.aligned, share)
        if self.by_steps(whole):
          aligned = whole.aligned if ranks == 1 else gcd(whole.aligned, self.params.loop_tile)
        elif not whole.exact:
          aligned = 1
        self.used[key] = Piece(axis, levels, share, exact, aligned)
      else:
        step = min(whole.length, self.params.loop_tile)
        exact = whole.exact and whole.length % step == 0
        aligned = whole.aligned if step == whole.length else gcd(whole.aligned, step)
        self.used[key] = Piece(axis, levels, step, exact, aligned)
    return self.used[key]

  def outer(self, piece: Piece) -> Piece:
    """What the last level cuts."""
    return self.piece(piece.axis, piece.levels[:-1])

  def by_steps(self, whole: Piece) -> bool:
    """Whether ranks share out whole steps of the loop: of an axis that only a launch counts.

    Their shares begin where a step may begin, whatever the size is.
    """
    return whole.axis == self.kernel.loop and is_runtime(self.extents, whole.axis)

  @property
  def step(self) -> Piece | None:
    """What the loop takes in one iteration of what it walks."""
    for (axis, levels), piece in self.used.items():
      if axis == self.kernel.loop and levels.endswith(STEP):
        return piece
    return None

  @property
  def most_steps(self) -> int:
    """The iterations of the rank that has most."""
    step = self.step
    return 1 if step is None else -(-self.outer(step).length // step.length)
