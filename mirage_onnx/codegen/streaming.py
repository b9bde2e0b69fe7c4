"""Streaming kernels as text: contractions over a depth that the loop walks, everything else after it."""

from collections.abc import Mapping

from mirage_onnx.codegen.epilogue import Epilogue
from mirage_onnx.codegen.grid_text import declare_firsts
from mirage_onnx.codegen.header import header
from mirage_onnx.codegen.loads import parameters
from mirage_onnx.codegen.loop import LoopEmitter
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.read_ahead import is_overtaken
from mirage_onnx.lower.stream_graph import StreamGraph
from mirage_onnx.lower.tensor_view import runtime_axes
from mirage_onnx.target import Target


def emit_streaming(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> KernelSource:
  """The CUDA text of a streaming kernel.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or SMEM.
  """
  threads = StreamGraph.of(graph, kernel, params, extents, target)
  writer = Writer()
  args, given = parameters(graph, kernel, extents)
  epilogue = Epilogue(threads.behind, writer)
  with writer.kernel(
    kernel.name, threads.plan.threads, params.cluster,
    given,
  ):  # fmt: skip
    if target.has_pdl:
      writer.trigger(behind_wait=is_overtaken(graph, kernel, extents))
    declare_firsts(threads.plan.grid, writer)
    loop = LoopEmitter(threads.loop, writer, pdl=target.has_pdl and not threads.ahead)
    loop.begin()
    epilogue.early.emit(ahead=threads.ahead)
    loop.run()
    writer.line()
    if threads.ahead:
      writer.wait()
    epilogue.emit()
  if threads.smem_bytes > target.smem_bytes:
    raise RejectionError(
      "SMEM", f"{threads.smem_bytes} bytes of shared memory, {target.name} has {target.smem_bytes}"
    )
  top = header(graph, kernel, params, extents, kernel.name)
  return KernelSource(
    kernel.name, f"{top}\n{writer.text}", threads.launch, threads.plan.threads, params.cluster,
    threads.smem_bytes, args, target.has_pdl, runtime_axes(graph, kernel, extents), threads.plan.grid.tiles,
  )  # fmt: skip
