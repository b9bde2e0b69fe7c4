"""Streaming kernels: contractions over a depth that the loop walks, everything else after it."""

from collections.abc import Mapping

from mirage_onnx.codegen.epilogue import Epilogue
from mirage_onnx.codegen.grid_text import declare_firsts
from mirage_onnx.codegen.header import header
from mirage_onnx.codegen.loads import parameters
from mirage_onnx.codegen.loop import LoopEmitter
from mirage_onnx.codegen.packed_loop import PackedLoop
from mirage_onnx.codegen.scalar import post_sources
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.grid import check_maps
from mirage_onnx.lower.read_ahead import is_overtaken, reads_ahead
from mirage_onnx.lower.stream_plan import StreamPlan
from mirage_onnx.lower.tensor_view import runtime_axes
from mirage_onnx.target import Target


def emit_streaming(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> KernelSource:
  """The CUDA text of a streaming kernel.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or SMEM.
  """
  check_maps(graph, kernel)
  plan = StreamPlan.of(kernel, params, extents, target)
  needed = post_sources(kernel.ops, [s.arg for s in kernel.saves])
  accumulators = [a for a in plan.accumulators if a.index in needed]
  if not accumulators:
    raise RejectionError("EMIT_UNSUPPORTED", f"no output of {kernel.name} needs its loop")
  writer = Writer()
  args, given = parameters(graph, kernel, extents)
  epilogue = Epilogue(graph, plan, accumulators, writer)
  with writer.kernel(
    kernel.name, plan.threads, params.cluster,
    given,
  ):  # fmt: skip
    if target.has_pdl:
      writer.trigger(behind_wait=is_overtaken(graph, kernel, extents))
    declare_firsts(plan.grid, writer)
    ahead = target.has_pdl and reads_ahead(graph, kernel, extents)
    emitter = PackedLoop if plan.parts > 1 else LoopEmitter
    loop = emitter(graph, plan, accumulators, writer, pdl=target.has_pdl and not ahead)
    loop.begin()
    epilogue.early.emit(ahead=ahead)
    loop.run()
    writer.line()
    if ahead:
      writer.wait()
    epilogue.emit()
  smem_bytes = 4 * epilogue.floats
  if smem_bytes > target.smem_bytes:
    raise RejectionError(
      "SMEM", f"{smem_bytes} bytes of shared memory, {target.name} has {target.smem_bytes}"
    )
  top = header(graph, kernel, params, extents, kernel.name)
  return KernelSource(
    kernel.name, f"{top}\n{writer.text}", plan.grid.launch, plan.threads, params.cluster,
    smem_bytes, args, target.has_pdl, runtime_axes(graph, kernel, extents), plan.grid.tiles,
  )  # fmt: skip
