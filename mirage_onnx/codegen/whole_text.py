"""The text of a whole kernel: its header, its frame around a body, and what its launch needs."""

from collections.abc import Callable, Sequence

from mirage_onnx.codegen.header import header
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.ir.tensor_map import TensorMap
from mirage_onnx.ir.ugraph import Kernel
from mirage_onnx.lower.read_ahead import is_overtaken
from mirage_onnx.lower.tensor_view import runtime_axes
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.target import Target


def whole_kernel(
  threads: ThreadGraph, target: Target, writer: Writer, given: tuple[Sequence[str], Sequence[str]],
  body: Callable[[], None], *, comment: str = "", kernel: Kernel | None = None, beside: Sequence[Kernel] = (),
  headers: Sequence[str] = (), maps: Sequence[TensorMap] = (), alone: bool = False,
) -> KernelSource:  # fmt: skip
  """A kernel around what ``body`` writes. ``given``: its arguments, and its parameters as text.

  ``kernel``: as it was before it was lowered, if that is another. ``alone``: a block takes all registers.
  """
  graph, params, extents = threads.graph, threads.params, threads.extents
  kernel, (args, parameters) = kernel or threads.kernel, given
  with writer.kernel(kernel.name, threads.threads, threads.cluster, parameters, alone=alone):
    if comment:
      writer.comment(comment)
    if target.has_pdl:
      writer.trigger(behind_wait=is_overtaken(graph, [kernel, *beside][-1], extents))
    body()
  top = header(graph, kernel, params, extents, kernel.name, headers, beside)
  return KernelSource(
    kernel.name, f"{top}\n{writer.text}", threads.launch, threads.threads, threads.cluster,
    threads.smem_bytes, tuple(args), target.has_pdl, runtime_axes(graph, kernel, extents), threads.grid.tiles,
    tuple(maps),
  )  # fmt: skip
