"""Streaming kernels as text: contractions over a depth that the loop walks, everything else after it."""

from mirage_onnx.codegen.epilogue import Epilogue
from mirage_onnx.codegen.grid_text import declare_firsts
from mirage_onnx.codegen.loads import parameters
from mirage_onnx.codegen.loop import LoopEmitter
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.codegen.whole_text import whole_kernel
from mirage_onnx.lower.stream_graph import StreamedPlan
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.target import Target


def emit_streaming(threads: ThreadGraph, plan: StreamedPlan, target: Target) -> KernelSource:
  """The CUDA text of a streaming kernel."""
  writer = Writer()
  epilogue = Epilogue(plan.behind, writer)

  def body() -> None:
    declare_firsts(threads.grid, writer)
    loop = LoopEmitter(plan.loop, writer, pdl=target.has_pdl and not threads.ahead)
    loop.begin()
    epilogue.early.emit(ahead=threads.ahead)
    loop.run()
    writer.line()
    if threads.ahead:
      writer.wait()
    epilogue.emit()

  given = parameters(threads.graph, threads.kernel, threads.extents)
  return whole_kernel(threads, target, writer, given, body)
