"""The elements of one tile of some axes, as ranks and threads share them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mirage_onnx.lower.grid import AxisTile


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
