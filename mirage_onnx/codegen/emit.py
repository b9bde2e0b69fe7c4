"""Block graph -> CUDA text: chooses the form of the kernel from its thread graph."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from mirage_onnx.codegen.row import emit_row
from mirage_onnx.codegen.rules import broken_rules
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.codegen.streaming import emit_streaming
from mirage_onnx.codegen.tiled import emit_tiled
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.spec import check_ugraph
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.choice import special_kind
from mirage_onnx.lower.read_ahead import reads_ahead
from mirage_onnx.lower.sizes import LaunchSizes
from mirage_onnx.lower.stream_graph import StreamGraph
from mirage_onnx.lower.tensor_view import kernel_axes, runtime_axes
from mirage_onnx.target import Target

#: Refusals of a special form that leave the general one.
_OTHER_FORM = ("LAYOUT", "EMIT_UNSUPPORTED", "DYNAMIC_DIM")
#: A kernel that moves so much is not launched before the one in front of it has ended, unless it reads
#: beside that one (read_ahead.py). Its blocks would be placed where that one's have left room, many on
#: some multiprocessors and few on others, and stay there: of a LLaMA layer gate and up took 98 us so
#: instead of 57. What it would gain is the latency of a launch. Kernels of 34 MB and less were no
#: slower.
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

  A contraction in the loop makes a streaming kernel, no loop and no contraction a row kernel,
  where these two special forms hold the values; everything else is a tiled kernel.

  Raises:
      RejectionError: EMIT_UNSUPPORTED (no rule for an operation at its place), LAYOUT (no
          thread layout holds the values with these numbers), SMEM, DYNAMIC_DIM (the kernel needs
          the size of a runtime axis), or EMIT_RULE (the text breaks a rule of
          ``codegen/rules.py``: a bug here, but never in a model).
  """
  if axes := runtime & kernel_axes(graph, kernel):
    _check_runtime(graph, kernel, axes & {a for t in graph.tensors_of(kernel) for a in t.axes})
    extents = LaunchSizes(extents, axes)
  source = _emit(graph, kernel, params, extents, target, beside)
  if broken := broken_rules(source.text):
    raise RejectionError("EMIT_RULE", f"{kernel.name}, {broken[0]}")
  small = touched_bytes(graph, kernel, extents) < MOST_EARLY_BYTES
  return replace(source, pdl=source.pdl and (small or reads_ahead(graph, kernel, extents)))


def touched_bytes(graph: UGraph, kernel: Kernel, extents: Mapping[str, int]) -> int:
  """Of the tensors of a kernel, each once; those of sizes that only a launch knows are left out."""
  unknown = {*runtime_axes(graph, kernel, extents)}
  return sum(
    t.dtype.bytes_of(prod(extents[a] for a in t.axes)) // t.repeat
    for t in graph.tensors_of(kernel) if not unknown & {*t.axes}
  )  # fmt: skip


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


def _emit(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target,
  beside: Sequence[Kernel],
) -> KernelSource:  # fmt: skip
  special = special_kind(kernel) if params.instruction == "mma" else None
  few_bits = next((t.name for t in graph.tensors_of(kernel) if t.few_bits), None)
  if few_bits and special is not StreamGraph and params.instruction == "mma":
    why = f"{few_bits} has weights of few bits, and {kernel.name} is no streaming kernel"
    raise RejectionError("EMIT_UNSUPPORTED", why)
  if special is not None and not beside:
    emit = emit_streaming if special is StreamGraph else emit_row
    try:
      return emit(graph, kernel, params, extents, target)
    except RejectionError as error:
      # What is wrong with an ill-formed graph, the special form says best.
      if few_bits or error.rejection.code not in _OTHER_FORM or check_ugraph(graph) is not None:
        raise
  return emit_tiled(graph, kernel, params, extents, target, beside)
