"""Block graph -> thread graph -> CUDA text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mirage_onnx.codegen.epilogue import Epilogue
from mirage_onnx.codegen.grid_text import declare_firsts
from mirage_onnx.codegen.loads import parameters
from mirage_onnx.codegen.loop import LoopEmitter
from mirage_onnx.codegen.rules import broken_rules
from mirage_onnx.codegen.source import KernelSource, Writer
from mirage_onnx.codegen.tiled.kernel import emit_tiled
from mirage_onnx.codegen.whole_text import whole_kernel
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.read_ahead import reads_ahead
from mirage_onnx.lower.sizes import LaunchSizes
from mirage_onnx.lower.stream_graph import StreamedPlan
from mirage_onnx.lower.tensor_view import kernel_axes, touched_bytes
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.tiled_graph import TiledPlan
from mirage_onnx.target import Target

#: A kernel that moves so much is not launched before the one in front of it has ended, unless it reads
#: beside that one (read_ahead.py). Its blocks would be placed where that one's have left room, many on
#: some multiprocessors and few on others, and stay there: of a LLaMA layer gate and up took 98 us so
#: instead of 57. What it would gain is the latency of a launch. Kernels of 34 MB and less were no
#: slower. In models of two gated MLPs early over late was .997 to 1.002 for 7 to 224 MiB on an H200 and an
#: H100 (early_kernels.json, early_kernels_large.json): large ones have nothing to gain, so it stays.
MOST_EARLY_BYTES = 96 << 20


def emit_kernel(
  graph: UGraph,
  kernel: Kernel,
  params: KernelParams,
  extents: Mapping[str, int],
  target: Target,
  runtime: frozenset[str] = frozenset(),
  beside: Sequence[Kernel] = (),
) -> KernelSource:
  """The CUDA text and launch of one kernel with the given numbers.

  It is right for every size of the ``runtime`` axes, whatever their ``extents`` are. ``beside``: kernels
  that are alike (``tiled/alike.py``), in the same launch.

  Raises:
      RejectionError: EMIT_UNSUPPORTED (no rule for an operation at its place), LAYOUT (no
          thread layout holds the values with these numbers), SMEM, DYNAMIC_DIM (the kernel needs
          the size of a runtime axis), or EMIT_RULE (the text breaks a rule of
          ``codegen/rules.py``: a bug here, but never in a model).
  """
  if axes := runtime & kernel_axes(graph, kernel):
    _check_runtime(graph, kernel, axes & {a for t in graph.tensors_of(kernel) for a in t.axes})
    extents = LaunchSizes(extents, axes)
  threads = lowered(graph, kernel, params, extents, target, 1 + len(beside))
  source = text_of(threads, target, kernel, beside)
  if broken := broken_rules(source.text):
    raise RejectionError("EMIT_RULE", f"{kernel.name}, {broken[0]}")
  small = touched_bytes(graph, kernel, extents) < MOST_EARLY_BYTES
  if isinstance(threads.plan, TiledPlan):
    small |= threads.plan.lowering.assignment.update is not None
  return replace(source, pdl=source.pdl and (small or reads_ahead(graph, kernel, extents)))


def text_of(
  threads: ThreadGraph, target: Target, kernel: Kernel, beside: Sequence[Kernel] = ()
) -> KernelSource:
  """A thread graph of ``kernel`` (and of those beside it) as text.

  Raises:
      RejectionError: EMIT_UNSUPPORTED, a number that no literal holds; LAYOUT, kernels that are not alike.
  """
  if isinstance(threads.plan, StreamedPlan):
    return _streaming(threads, threads.plan, target)
  return emit_tiled(threads, threads.plan, target, kernel, beside)


def _streaming(threads: ThreadGraph, plan: StreamedPlan, target: Target) -> KernelSource:
  """A streaming kernel: contractions over a depth that the loop walks, everything else after it."""
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


def _check_runtime(graph: UGraph, kernel: Kernel, runtime: frozenset[str]) -> None:
  """Runtime axes are axes of the grid and of all that is saved; or the loop walks one.

  Else a launch without blocks would leave a result unwritten that is not empty.
  """
  if kernel.loop not in kernel.grid:
    runtime = runtime - {kernel.loop or ""}
  for axes in (kernel.grid, *(graph.tensor(s.tensor).axes for s in kernel.saves)):
    if left := sorted(runtime.difference(axes)):
      why = f"{left[0]}, whose size is known only at run time, is not in the grid"
      what = why if axes == kernel.grid else f"a result does not vary over {left[0]}"
      raise RejectionError("DYNAMIC_DIM", f"{kernel.name}: {what}")
