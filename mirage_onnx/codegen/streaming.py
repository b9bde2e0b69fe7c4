"""Streaming kernels as text: contractions over a depth that the loop walks, everything else after it."""

from mirage_onnx.codegen.epilogue import Epilogue
from mirage_onnx.codegen.grid_text import declare_firsts
from mirage_onnx.codegen.loads import parameters
from mirage_onnx.codegen.loop import LoopEmitter
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.codegen.whole_text import source_of
from mirage_onnx.lower.read_ahead import is_overtaken
from mirage_onnx.lower.stream_graph import StreamedPlan
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.target import Target


def emit_streaming(threads: ThreadGraph, plan: StreamedPlan, target: Target) -> KernelSource:
  """The CUDA text of a streaming kernel."""
  graph, kernel, extents = threads.graph, threads.kernel, threads.extents
  writer = Writer()
  args, given = parameters(graph, kernel, extents)
  epilogue = Epilogue(plan.behind, writer)
  with writer.kernel(kernel.name, threads.threads, threads.params.cluster, given):
    if target.has_pdl:
      writer.trigger(behind_wait=is_overtaken(graph, kernel, extents))
    declare_firsts(threads.grid, writer)
    loop = LoopEmitter(plan.loop, writer, pdl=target.has_pdl and not threads.ahead)
    loop.begin()
    epilogue.early.emit(ahead=threads.ahead)
    loop.run()
    writer.line()
    if threads.ahead:
      writer.wait()
    epilogue.emit()
  return source_of(threads, writer, args, pdl=target.has_pdl)
