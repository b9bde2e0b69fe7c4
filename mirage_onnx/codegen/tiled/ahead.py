"""What is on its way before it is waited for: copies to shared memory, loads to registers.

The ring has a tile a stage. Before the loop all stages but one are under way, all of them if there
are no more steps; iteration i waits for its own, meets, and starts the copies of the step that takes
the tile of iteration i - 1. With one stage an iteration starts its own copies, but for the first.
Tiles that are read behind the loop are copied behind the first stages. Groups of copies arrive in
the order of their commits (PTX ISA, ``cp.async.wait_group``), so a number says how many may still be
missing. (With one stage more before long loops, GQA decode took 26.3 us instead of 25.9 on an H200.)

Loads to registers are issued as bits and widened where they are used: those of an iteration before
it waits for its copies, those behind the loop before it. Where there is no loop they stay where they
are: contractions that read device memory were slower behind them (33 us on an H200, not 28).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirage_onnx.codegen.index_text import total
from mirage_onnx.codegen.tiled import memory_text
from mirage_onnx.codegen.tiled.copies import copying
from mirage_onnx.codegen.tiled.shared_ring import SharedRing
from mirage_onnx.lower.smem_plan import MemoryPlan
from mirage_onnx.lower.steps import Copy


@dataclass(slots=True)
class AheadWriter(SharedRing):
  """Writes what begins early."""

  memory: MemoryPlan

  @property
  def _behind(self) -> list[Copy]:
    """Copies that stand behind the loop and begin before it."""
    found = (s for s in self.memory.graph.after if isinstance(s, Copy))
    return [s for s in found if s.tile in self.memory.early]

  @property
  def _whole(self) -> bool:
    """Whether all steps are under way before the loop."""
    return self.pieces.cut.most_steps <= self.lowering.stages

  @property
  def _stages(self) -> int:
    """Steps of the ring that are under way before the loop."""
    if not self.lowering.ring:
      return 0
    stages = self.lowering.stages
    return stages if self._whole else max(1, stages - self.lowering.spare)

  @property
  def _apart(self) -> bool:
    """Whether the tiles behind the loop are a group of their own: a first step is not to wait for them."""
    return bool(self._behind) and (not self._stages or self.lowering.stages == 1)

  def begin(self) -> None:
    """The first stages of the ring, then the tiles behind the loop."""
    commit = "ptx::cp_async_commit();"
    if self._stages:
      self.writer.comment("The first stages of the ring.")
    for stage in range(self._stages):
      if stage:
        self.writer.line(commit)
      first = self.values.first
      at = total(first, str(stage))
      slot = at if first == "0" else f"({at}) % {self.lowering.stages}"
      with self.writer.block(f"if ({at} < steps)"):
        self._copies(f"({at})" if " " in at else at, slot)
    if self._stages and self._apart:
      self.writer.line(commit)
    for step in self._behind:
      memory_text.copy(self.values, step)
    if self._stages or self._behind:
      self.writer.line(commit)

  def advance(self) -> None:
    """The tiles of this iteration are there; those of a later one are on their way."""
    stages, most, line = self.lowering.stages, self.pieces.cut.most_steps, self.writer.line
    spare = self.lowering.spare
    if stages == 1:
      first = f"ptx::cp_async_wait<{int(self._apart)}>();"
      if most == 1:
        line(first)
      else:
        with self.writer.block("if (step == 0)"):
          line(first)
        with self.writer.block("else"):
          self._in_turn()
      self._meet()
    elif self._whole:
      line(f"if (step == 0) ptx::cp_async_wait<{stages - 1}>();")
      line(f"else ptx::cp_async_wait<{stages - 2}>();")
      self._meet()
      if stages > 2:  # the numbers above count a group an iteration
        line("if (step > 0) ptx::cp_async_commit();")
    else:
      line(f"ptx::cp_async_wait<{stages - spare - 1}>();")
      self._meet()
      with self.writer.block():
        line(f"const int ahead = step + {stages - spare};")
        with self.writer.block("if (ahead < steps)"):
          self._copies("ahead", f"ahead % {stages}")
        line("ptx::cp_async_commit();")
    self.name_tiles("" if stages == 1 else f"step % {stages}")

  def behind(self) -> None:
    """Behind an iteration's products: the barrier of the next one says that a tile is free."""

  def end(self) -> None:
    """Behind those of the last one."""

  def _meet(self) -> None:
    """All threads' copies are there for all, and for products beside them."""
    if self.lowering.warpgroup:
      self.writer.line("ptx::fence_proxy_async();")
    self.writer.line("ptx::sync_block();")

  def _in_turn(self) -> None:
    """An iteration's copies, when all have read the one before."""
    self.writer.line("ptx::sync_block();")
    self._copies("step", "0")
    self.writer.line("ptx::cp_async_wait_all();")

  def _copies(self, step: str, slot: str) -> None:
    """The tiles of an iteration, to a slot of the ring."""
    in_turns = self.values.first != "0"  # the loop stands in the text several times
    by = copying(self.lowering, ring=not in_turns)
    self.copy_step(step, "" if slot == "0" else f"({slot})", by)
