"""Walks over the elements of a tile: which thread has which, where it lies, whether it exists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_onnx.codegen.grid_text import first_of
from mirage_onnx.codegen.index_text import parts_of, times, total
from mirage_onnx.codegen.scalar import Place
from mirage_onnx.codegen.source import Writer
from mirage_onnx.lower.grid import AxisTile
from mirage_onnx.lower.sizes import axis_variable


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
    return math.prod(a.tile for a in self.axes)

  @property
  def share(self) -> int:
    """Elements of one rank; the last may have fewer."""
    return -(-self.elements // self.ranks)

  @property
  def per_thread(self) -> int:
    return -(-self.share // self.threads)

  def offset(self, at: Place) -> str:
    """The number of the element at a place."""
    terms, step = [], 1
    for tile in reversed(self.axes):
      terms.append(times(at[tile.axis], step))
      step *= tile.tile
    return total(*terms[::-1])

  def _bounds(self) -> list[str]:
    return [f"{axis_variable(a.axis)} < {a.extent}" for a in self.axes if a.short]

  def _declare(self, writer: Writer, element: str) -> Place:
    """Position in the tile (``t_a0``) and index in the axis (``a0``) of an element."""
    at: Place = {}
    positions = parts_of(element, [t.tile for t in self.axes])
    for tile, position in zip(self.axes, positions, strict=True):
      name = f"t_{axis_variable(tile.axis)}"
      writer.line(f"const int {name} = {position};")
      writer.line(f"const int {axis_variable(tile.axis)} = {total(first_of(tile), name)};")
      at[tile.axis] = name
    return at

  @contextmanager
  def element(self, writer: Writer, q: str) -> Iterator[Place]:
    """A scope with the thread's element number ``q``, entered if it exists."""
    number = total("ptx::thread()", times(q, self.threads))
    conditions = []
    if self.share < self.per_thread * self.threads:
      conditions.append(f"{number} < {self.share}")
    if self.ranks > 1:
      number = total(f"static_cast<int>(ptx::cluster_rank()) * {self.share}", number)
      if self.share * self.ranks > self.elements:
        conditions.append(f"e < {self.elements}")
    with writer.block():
      if self.axes or conditions:
        writer.line(f"const int e = {number};")
      at = self._declare(writer, "e")
      conditions += self._bounds()
      with writer.scope(bool(conditions), f"if ({' && '.join(conditions)})"):
        yield at

  @contextmanager
  def walk(self, writer: Writer, first: str, step: int) -> Iterator[Place]:
    """A loop over all elements from ``first`` in steps, entered for those that exist."""
    with writer.block(f"for (int e = {first}; e < {self.elements}; e += {step})"):
      at = self._declare(writer, "e")
      bounds = " && ".join(self._bounds())
      with writer.scope(bool(bounds), f"if ({bounds})"):
        yield at
