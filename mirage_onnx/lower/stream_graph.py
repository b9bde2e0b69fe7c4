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
from mirage_onnx.lower.stream_check import check_stream
from mirage_onnx.lower.stream_loop import StreamLoop
from mirage_onnx.lower.stream_plan import StreamPlan
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class StreamedPlan:
  """Where the values of a streaming kernel are: roles of its axes, its loop, and what is behind that."""

  axes: StreamPlan
  loop: StreamLoop
  behind: StreamBehind


def stream_graph(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> ThreadGraph:
  """How a streaming kernel with these numbers is done.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED, DYNAMIC_DIM or SMEM.
  """
  check_maps(graph, kernel)
  axes = StreamPlan.of(kernel, params, extents, target)
  needed = post_sources(kernel.ops, [s.arg for s in kernel.saves])
  accumulators = [a for a in axes.accumulators if a.index in needed]
  if not accumulators:
    raise RejectionError("EMIT_UNSUPPORTED", f"no output of {kernel.name} needs its loop")
  behind = StreamBehind(graph, axes, accumulators)
  loop = StreamLoop.of(graph, axes, accumulators)
  check_stream(loop, behind)
  smem_bytes = 4 * behind.floats
  if smem_bytes > target.smem_bytes:
    reason = f"{smem_bytes} bytes of shared memory, {target.name} has {target.smem_bytes}"
    raise RejectionError("SMEM", reason)
  steps = ThreadSteps(loop.before, loop.body, behind.steps)
  ahead = target.has_pdl and reads_ahead(graph, kernel, extents)
  plan = StreamedPlan(axes, loop, behind)
  return ThreadGraph(
    graph, kernel, params, extents, axes.grid, plan, steps, smem_bytes, axes.rounds * axes.stages,
    axes.stages, loop.held, ahead,
  )  # fmt: skip
