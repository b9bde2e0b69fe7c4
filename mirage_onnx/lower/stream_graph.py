"""The thread graph of a streaming kernel: a pipeline through registers, then partial results that meet.

Every warp has a ring of its own in registers, which loads fill with a permuted depth: 16 bytes of a row are
the operands of two contractions, so weights bypass shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.grid import check_maps
from mirage_onnx.lower.read_ahead import reads_ahead
from mirage_onnx.lower.steps import ThreadSteps
from mirage_onnx.lower.stream_behind import StreamBehind, post_sources
from mirage_onnx.lower.stream_loop import StreamLoop
from mirage_onnx.lower.stream_plan import StreamPlan
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class StreamGraph:
  """What the threads of a streaming kernel do; ``ahead``: it waits for those before it behind its loop."""

  plan: StreamPlan
  loop: StreamLoop
  behind: StreamBehind
  ahead: bool

  @classmethod
  def of(
    cls, graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
  ) -> StreamGraph:
    """How a kernel with these numbers is done.

    Raises:
        RejectionError: LAYOUT or EMIT_UNSUPPORTED.
    """
    check_maps(graph, kernel)
    plan = StreamPlan.of(kernel, params, extents, target)
    needed = post_sources(kernel.ops, [s.arg for s in kernel.saves])
    accumulators = [a for a in plan.accumulators if a.index in needed]
    if not accumulators:
      raise RejectionError("EMIT_UNSUPPORTED", f"no output of {kernel.name} needs its loop")
    behind = StreamBehind(graph, plan, accumulators)
    loop = StreamLoop.of(graph, plan, accumulators)
    return cls(plan, loop, behind, target.has_pdl and reads_ahead(graph, kernel, extents))

  @property
  def launch(self) -> tuple[int, int, int]:
    """Blocks by dimension; of x, those of ``plan.grid.tiles`` are left out."""
    return self.plan.grid.launch

  @property
  def steps(self) -> ThreadSteps:
    """All steps: of the loop those of one part of a stage."""
    return ThreadSteps(self.loop.before, self.loop.body, self.behind.steps)

  @property
  def smem_bytes(self) -> int:
    return 4 * self.behind.floats
