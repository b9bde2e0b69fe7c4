"""The text of blocks whose copies a warp of their own makes (``lower/feed.py``).

Barriers of the ring: ``full``, the copies of a tile have arrived, and ``free``, all that read it
have. Steps are counted through all tiles of a block, in the order in which they are copied: modulo
the stages they are the tile of the ring, and a barrier's parity is how often that has gone round.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from mirage_onnx.codegen.index_text import times, total
from mirage_onnx.codegen.tiled.alike import OneLaunch
from mirage_onnx.codegen.tiled.late_loads_text import late_loads, prefetch
from mirage_onnx.codegen.tiled.shared_ring import SharedRing
from mirage_onnx.codegen.tiled.warpgroup_text import PinningWriter
from mirage_onnx.ir.tensor_map import BOX_COLUMNS, TensorMap
from mirage_onnx.lower.feed import FedTile, Feed
from mirage_onnx.lower.sizes import identifier
from mirage_onnx.lower.thread_graph import ThreadGraph


@dataclass(slots=True)
class FeedText(SharedRing):
  """What an iteration waits for, and what it frees behind its products."""

  threads: ThreadGraph
  feed: Feed
  one: OneLaunch
  #: The text of the first step, which asks for what is loaded behind the loop.
  first: bool = True

  @property
  def parameters(self) -> list[str]:
    """Behind the tensors."""
    return [f"PTX_TENSOR_MAP {_given(m.tensor)}" for m in self.maps]

  @property
  def maps(self) -> list[TensorMap]:
    """Of all kernels of the launch, each once."""
    found = [replace(t.map, tensor=name) for t in self.feed.tiles for name in self.one.each(t.map.tensor)]
    return list(dict.fromkeys(found))

  def barriers(self) -> None:
    """They are there for all before any is used; needs nothing of the kernels in front."""
    line, feed = self.writer.line, self.feed
    self.name_barriers(feed.barriers)
    with self.writer.block("if (ptx::thread() == 0)"):
      for m in self.maps:
        line(f"ptx::tensor_prefetch({_given(m.tensor)});")
      self.begin_barriers(1, feed.arrivals)
      line("ptx::fence_mbarrier_init();")
    line("ptx::cluster_sync();" if feed.sharing > 1 else "ptx::sync_block();")

  def blocks(self, tile: Callable[[], None]) -> None:
    """The warp that copies beside the teams; ``tile`` writes what a team does with one."""
    writer, feed = self.writer, self.feed
    groups, registers = feed.teams * feed.warps // 4, feed.registers
    if feed.sharing > 1:
      writer.line("const int rank = static_cast<int>(ptx::cluster_rank());")
    writer.line("const int group = ptx::warpgroup();")
    with writer.block(f"if (group == {groups})"):
      if registers:
        writer.line(f"ptx::registers_give<{registers[0]}>();")
      with writer.block(f"if (ptx::thread() == {groups * 128})"), self._turns("0", "1", pinned=False):
        self._choose_maps()
        writer.line("#pragma unroll 1")
        with writer.block("for (int step = 0; step < steps; ++step)"):
          self._copies()
          self._next()
      writer.line("ptx::sync_warp();")
    with writer.block(f"if (group < {groups})"):
      if registers:
        writer.line(f"ptx::registers_take<{registers[1]}>();")
      late = self.values.late
      if late:
        late.begin(self.values)
      each = feed.warps // 4
      team = "0" if feed.teams == 1 else "group" if each == 1 else f"group / {each}"
      with self._turns(team, str(feed.teams), pinned=True):
        if feed.teams > 1:
          writer.comment(
            "The tiles of the turn before have come, all of them: a parity tells two rounds apart."
          )
          writer.line(f"if (turn > 0) ptx::bar_sync({self._order('turn')}, {self._pair});")
        tile()
      if late:
        late.store(self.values)
    if feed.sharing > 1:
      writer.comment("Blocks stay until the others have copied to them for the last time.")
      writer.line("ptx::cluster_sync();")

  @property
  def _units(self) -> int:
    """Tiles, those of blocks that share as one."""
    return self.threads.tiles // self.feed.sharing

  def _unit(self, turn: str) -> str:
    """The block's unit of a turn."""
    own = "ptx::block_x()" if self.feed.sharing == 1 else f"ptx::block_x() / {self.feed.sharing}"
    return f"{own} + {turn} * {self.threads.standing // self.feed.sharing}"

  @property
  def _pair(self) -> int:
    """Threads of two teams, which a barrier has."""
    return 2 * 32 * self.feed.warps

  def _order(self, turn: str) -> str:
    """The barrier in front of a turn, one for each team."""
    return f"1 + ({turn}) % {self.feed.teams}" if " " in turn else f"1 + {turn} % {self.feed.teams}"

  @contextmanager
  def _turns(self, begin: str, by: str, *, pinned: bool) -> Iterator[None]:
    """Inside stands one tile of the block: ``turn`` counts them."""
    writer, feed, sharing = self.writer, self.feed, self.feed.sharing
    writer.line("#pragma unroll 1")
    with writer.block(f"for (int turn = {begin}; {self._unit('turn')} < {self._units}; turn += {by})"):
      writer.line(f"const int unit = {self._unit('turn')};")
      unit = tile = self.one.choose(writer, "unit")
      if sharing > 1:
        grid = self.threads.grid
        dim = next(a.dim or 0 for a in grid.axes if a.axis == feed.axis)
        before = prod(grid.launch[:dim])
        inner = f"{unit} / {before} * {sharing} + rank" if before > 1 else f"{unit} * {sharing} + rank"
        whole = f"{unit} % {before} + ({inner}) * {before}" if before > 1 else inner
        writer.line(f"const int tile = {whole};")
        tile = "tile"
      self.pieces.declare(PinningWriter(writer) if pinned else writer, tile)
      stages = self.values.lowering.stages
      writer.line(f"unsigned slot = static_cast<unsigned>(turn * steps) % {stages};")
      writer.line(f"unsigned round = static_cast<unsigned>(turn * steps) / {stages} % 2;")
      if pinned:
        writer.line("unsigned before = slot;")
      yield

  def _choose_maps(self) -> None:
    """Those of the kernel whose tile it is, where there are several."""
    for t in self.feed.tiles:
      each = self.one.each(t.map.tensor)
      if len({*each}) > 1:
        given = [_given(name) for name in each]
        self.one.choose_one(self.writer, "const ptx::TensorMap&", _map(t.map.tensor), given)

  def _map_of(self, tensor: str) -> str:
    return _map(tensor) if len({*self.one.each(tensor)}) > 1 else _given(tensor)

  def _copies(self) -> None:
    line, feed = self.writer.line, self.feed
    line("ptx::wait(free + slot, 1u - round);")
    ring = {t.index: self.values.lowering.tiles[self.values.lowering.homes[t.index]] for t in feed.tiles}
    size = sum(tile.elements * tile.dtype.size_bytes for tile in ring.values())
    line(f"ptx::mbarrier_arrive_expect_tx(full + slot, {size});")
    for fed in feed.tiles:
      tile = ring[fed.index]
      row = self._row(fed)
      whole = self.pieces.cut.outer(tile.order[-1])
      for panel in range(tile.order[-1].length // BOX_COLUMNS):
        column = total(
          self.pieces.first(whole), times("step", tile.order[-1].length), str(panel * BOX_COLUMNS)
        )
        place = panel * tile.rows * BOX_COLUMNS
        piece = fed.map.box * BOX_COLUMNS
        to = total(f"{tile.name}_ring", f"slot * {tile.units}", str(place))
        to = total(to, times("rank", piece)) if fed.shared else to
        call = "tensor_load_multicast" if fed.shared else "tensor_load"
        ranks = f", {(1 << feed.sharing) - 1}" if fed.shared else ""
        line(
          f"ptx::{call}({to}, {self._map_of(fed.map.tensor)}, {column}, {row}, full + slot{ranks});",
          fed.index,
        )

  def _row(self, fed: FedTile) -> str:
    """The first row of the map that this block copies."""
    row = total(*(times(self.pieces.first(p), n) for p, n in fed.rows))
    return total(row, times("rank", fed.map.box)) if fed.shared else row

  def _next(self) -> None:
    """To the tile of the next step: modulo the stages it would be a chain of ten instructions in each."""
    self.writer.line(f"slot = slot == {self.values.lowering.stages - 1} ? 0u : slot + 1u;")
    self.writer.line("round ^= slot == 0 ? 1u : 0u;")

  def advance(self) -> None:
    """The tiles of this iteration are there."""
    line = self.writer.line
    line("ptx::wait(full + slot, round);")
    if self.feed.teams > 1:
      after = f"step == steps - 1 && {self._unit('(turn + 1)')} < {self._units}"
      line(f"if ({after}) ptx::bar_arrive({self._order('turn + 1')}, {self._pair});")
    late, self.first = list(late_loads(self.values, self.threads)) if self.first else [], False
    if late:
      with self.writer.block("if (step == 0)"):
        for held, view in late:
          prefetch(self.values, held, view, 32 * self.feed.warps)
    self.name_tiles("slot")

  def behind(self) -> None:
    """The products of the iteration before have ended."""
    self.writer.line(f"if (step > 0) warp_arrives<{self.feed.sharing}>(free + before);")
    self.writer.line("before = slot;")
    self._next()

  def end(self) -> None:
    """Those of the last one have."""
    self.writer.line(f"warp_arrives<{self.feed.sharing}>(free + before);")


def _given(tensor: str) -> str:
  """The parameter with a tensor's map."""
  return f"m_{identifier(tensor)}"


def _map(tensor: str) -> str:
  """The map of the tensor that a tile of several kernels has in this one's place."""
  return f"own_{identifier(tensor)}"
