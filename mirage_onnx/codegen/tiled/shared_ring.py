"""The ring of tiles in shared memory as a loop sees it, whoever fills it.

All threads of a block (``ahead.py``), a warpgroup of its own by ``cp.async`` (``ring_feed_text.py``), or a
thread of one by the copy engine (``feed_text.py``).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from mirage_onnx.codegen.loads import storage
from mirage_onnx.codegen.source import Writer
from mirage_onnx.codegen.tiled import memory_text
from mirage_onnx.codegen.tiled.copies import Copying, copy_load
from mirage_onnx.codegen.tiled.pieces_text import PiecesText
from mirage_onnx.codegen.tiled.values import ValueWriter
from mirage_onnx.lower.lowered import Lowered
from mirage_onnx.lower.shared import SharedTile
from mirage_onnx.lower.steps import ThreadBarrier


@dataclass(slots=True)
class SharedRing(ABC):
  """Writes what an iteration waits for, and what it frees behind its products."""

  values: ValueWriter

  @property
  def writer(self) -> Writer:
    return self.values.writer

  @property
  def lowering(self) -> Lowered:
    return self.values.lowering

  @property
  def pieces(self) -> PiecesText:
    return self.values.pieces

  @abstractmethod
  def advance(self) -> None:
    """The tiles of this iteration are there."""

  @abstractmethod
  def behind(self) -> None:
    """Behind an iteration's products."""

  @abstractmethod
  def end(self) -> None:
    """Behind those of the last one."""

  def meet(self, barrier: ThreadBarrier) -> None:
    """A barrier that is a step, of the block or of the cluster."""
    memory_text.barrier(self.values, barrier)

  def name_barriers(self, first_byte: int) -> None:
    """``full``, the copies of a tile have arrived, and ``free``, all that read it have: one a tile."""
    self.writer.line(f"ptx::U64* full = ptx::smem<ptx::U64>() + {first_byte // 8};")
    self.writer.line(f"ptx::U64* free = full + {self.lowering.stages};")

  def begin_barriers(self, full: int, free: int) -> None:
    """So many arrivals complete a phase of them."""
    with self.writer.counted("n", self.lowering.stages):
      self.writer.line(f"ptx::mbarrier_init(full + n, {full});")
      self.writer.line(f"ptx::mbarrier_init(free + n, {free});")

  def copy_step(self, step: str, slot: str, by: Copying) -> None:
    """The tiles of an iteration, to a slot of the ring ("": the only one)."""
    for index in self.lowering.ring:
      tile = self.lowering.tiles[self.lowering.homes[index]]
      copy_load(self.values, index, _in_ring(tile, slot), by, step)

  def name_tiles(self, slot: str) -> None:
    """Those of an iteration, by the names of operands, but for a late product's: that is of another step."""
    lowering = self.lowering
    late = None if lowering.late is None else self.values.ops[lowering.late].args[1]
    for index in lowering.ring:
      if index != late:
        tile = lowering.tiles[lowering.homes[index]]
        self.writer.line(f"const {storage(tile.dtype)}* {tile.name} = {_in_ring(tile, slot)};")


def _in_ring(tile: SharedTile, slot: str) -> str:
  """Where a tile is in a slot of the ring ("": the only one)."""
  return f"{tile.name}_ring" + (f" + {slot} * {tile.units}" if slot else "")
