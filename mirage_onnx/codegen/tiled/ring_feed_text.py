"""The text of blocks whose copies warps of their own make, for warpgroups in turns (``lower/ring_feed.py``).

Barriers of the ring: ``full``, the copies of a tile have arrived, and ``free``, all warps that compute have
read it. Both sides count the tiles that they have ``used``. Of two warpgroups that compute one issues its
products while the other works on the results of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mirage_onnx.codegen.tiled.copies import Copying, copy_load
from mirage_onnx.codegen.tiled.shared_ring import SharedRing
from mirage_onnx.instructions import WGMMA
from mirage_onnx.lower.ring_feed import RingFeed
from mirage_onnx.lower.smem_plan import MemoryPlan
from mirage_onnx.lower.steps import Copy, ThreadBarrier

#: The barriers of the warpgroups' turns.
_TURNS = 1
#: Threads that copy.
_COPYING = 32 * WGMMA.warps


@dataclass(slots=True)
class RingFeedText(SharedRing):
  """``asks``: whether the warps vote (``turns_text.py``)."""

  memory: MemoryPlan
  own: RingFeed
  asks: bool

  @property
  def _groups(self) -> int:
    """Warpgroups that compute."""
    return self.own.warps // WGMMA.warps

  @property
  def _in_turns(self) -> bool:
    """Two take turns."""
    return self._groups == 2

  @property
  def _pair(self) -> int:
    """Threads of a warpgroup, and of the one in front of it."""
    return 2 * _COPYING

  @property
  def _waits(self) -> bool:
    """Whether what is copied before the loop is read there."""
    return any(isinstance(s, ThreadBarrier) for s in self.memory.graph.before)

  def barriers(self) -> None:
    """They are there for all before any is used; needs nothing of the kernels in front."""
    line, stages = self.writer.line, self.lowering.stages
    self.name_barriers(self.own.barriers)
    if self._waits:
      line(f"ptx::U64* ready = free + {stages};")
    if self.asks:
      line(f"ptx::U64* asked = free + {stages + 1};")
      line("unsigned char* said = reinterpret_cast<unsigned char*>(asked + 1);")
    with self.writer.block("if (ptx::thread() == 0)"):
      self.begin_barriers(_COPYING, self._frees)
      if self._waits:
        line(f"ptx::mbarrier_init(ready, {_COPYING});")
      if self.asks:
        line(f"ptx::mbarrier_init(asked, {self.own.warps});")
    line("ptx::sync_block();")

  @contextmanager
  def feeding(self) -> Iterator[None]:
    """What the warps do that copy; inside stands ``feed``, in turns."""
    line = self.writer.line
    line("const int group = ptx::agreed(ptx::warpgroup());")
    line("int used = 0;")
    with self.writer.block(f"if (group == {self._groups})"):
      line(f"ptx::registers_give<{self.own.registers[0]}>();")
      line(f"const int feeder = ptx::thread() - {32 * self.own.warps};")
      for step in self.memory.graph.before:
        if isinstance(step, Copy):
          self.writer.comment(f"%{step.index}: {self.values.ops[step.index].tensor} to shared memory.")
          copy_load(self.values, step.index, step.tile, self._by("feeder"))
      if self._waits:
        line("ptx::cp_async_mbarrier_arrive(ready);")
      yield

  def feed(self) -> None:
    """The tiles of every step, as soon as there is room."""
    line, lowering = self.writer.line, self.lowering
    line("#pragma unroll 1")
    with self.writer.block(f"for (int step = {self.values.first}; step < steps; ++step)"):
      # Pinned, or the compiler keeps the addresses of all copies through the loop.
      line("const int copier = ptx::pinned(feeder);")
      line(f"const int slot = used % {lowering.stages};")
      line(f"ptx::wait(free + slot, used / {lowering.stages} + 1 & 1);")
      self.copy_step("step", "slot", self._by("copier"))
      line("ptx::cp_async_mbarrier_arrive(full + slot);")
      line("++used;")

  @staticmethod
  def _by(thread: str) -> Copying:
    return Copying(_COPYING, thread, far=True)

  @contextmanager
  def computing(self) -> Iterator[None]:
    """What the others do."""
    line = self.writer.line
    with self.writer.block("else"):
      line(f"ptx::registers_take<{self.own.registers[1]}>();")
      if self._in_turns:
        line(f"if (group == {self._groups - 1}) ptx::bar_arrive({_TURNS}, {self._pair});")
      yield

  def done(self) -> None:
    """Behind all iterations."""
    if self._in_turns:
      self.writer.line(f"if (group == 0) ptx::bar_sync({_TURNS}, {self._pair});")

  def meet(self, barrier: ThreadBarrier) -> None:
    """What is copied before the loop is there."""
    self.writer.line("ptx::wait(ready, 0);")
    self.writer.line("ptx::fence_proxy_async();")

  def advance(self) -> None:
    """The tiles of this iteration are there, and it is this warpgroup's turn."""
    line, stages = self.writer.line, self.lowering.stages
    line(f"const int slot = used % {stages};")
    line(f"ptx::wait(full + slot, used / {stages} & 1);")
    line("ptx::fence_proxy_async();")
    self.name_tiles("slot")
    if self._in_turns:
      line(f"ptx::bar_sync({_TURNS} + group, {self._pair});")

  def issued(self) -> None:
    """The products of an iteration have been issued: the other warpgroup may issue its own."""
    if self._in_turns:
      self.writer.line(f"ptx::bar_arrive({_TURNS + 1} - group, {self._pair});")

  @property
  def before(self) -> str:
    """The tile of the ring that the iteration before has used, or this one if it is the first of a turn."""
    stages = self.lowering.stages
    return f"(step > {self.values.first} ? used + {stages - 1} : used) % {stages}"

  def late_has_ended(self) -> None:
    """The late product of the iteration before has, if there was one."""
    with self.writer.block(f"if (step > {self.values.first})"):
      self._free_last()

  def behind(self) -> None:
    """Behind an iteration."""
    if self.lowering.late is None:
      self._free("slot")
    self.writer.line("++used;")

  def end(self) -> None:
    """Behind the last one of a turn."""
    if self.lowering.late is not None:
      self._free_last()

  def _free_last(self) -> None:
    stages = self.lowering.stages
    self._free(f"(used + {stages - 1}) % {stages}")

  def _free(self, slot: str) -> None:
    how = "ptx::mbarrier_arrive" if self._lanes_read else "warp_arrives<1>"
    self.writer.line(f"{how}(free + {slot});")

  @property
  def _lanes_read(self) -> bool:
    """Tiles of the ring, beside products: then each of them says when it has.

    One for its warp would do, behind ``__syncwarp``, but of that nothing is left in machine code, and
    compute-sanitizer's racecheck takes the reads of the others for a race.
    """
    return bool(self.own.read)

  @property
  def _frees(self) -> int:
    """Arrivals that free a tile."""
    return self.own.warps * (32 if self._lanes_read else 1)

  def vote(self, says: str | None) -> str:
    """Whether a thread that computes says so, an expression for all; None: what one that copies says."""
    if says is not None:
      self.writer.line(f"warp_says(asked, said, {says});")
    return f"any_said<{self.own.warps}>(asked, said)"
