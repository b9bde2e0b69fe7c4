"""The text of a whole kernel: its header, its body, and what its launch needs."""

from collections.abc import Sequence

from mirage_onnx.codegen.header import header
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.ir.tensor_map import TensorMap
from mirage_onnx.ir.ugraph import Kernel
from mirage_onnx.lower.tensor_view import runtime_axes
from mirage_onnx.lower.thread_graph import ThreadGraph


def source_of(
  threads: ThreadGraph, writer: Writer, args: Sequence[str], *, pdl: bool, kernel: Kernel | None = None,
  headers: Sequence[str] = (), beside: Sequence[Kernel] = (), maps: Sequence[TensorMap] = (),
) -> KernelSource:  # fmt: skip
  """What was written, as a kernel. ``kernel``: as it was before it was lowered, if that is another."""
  graph, params, extents = threads.graph, threads.params, threads.extents
  kernel = kernel or threads.kernel
  top = header(graph, kernel, params, extents, kernel.name, headers, beside)
  return KernelSource(
    kernel.name, f"{top}\n{writer.text}", threads.launch, threads.threads, threads.cluster,
    threads.smem_bytes, tuple(args), pdl, runtime_axes(graph, kernel, extents), threads.grid.tiles,
    tuple(maps),
  )  # fmt: skip
