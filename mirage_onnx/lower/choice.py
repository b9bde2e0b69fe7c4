"""Which kind of thread graph a kernel has: the first that holds its values."""

from collections.abc import Mapping
from contextlib import suppress

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, KernelParams, Phase, UGraph
from mirage_onnx.lower.row_graph import RowGraph
from mirage_onnx.lower.stream_graph import StreamGraph
from mirage_onnx.lower.thread_graph import ThreadGraph, thread_graph
from mirage_onnx.target import Target

AnyGraph = ThreadGraph | StreamGraph | RowGraph


def special_kind(kernel: Kernel) -> type[StreamGraph] | type[RowGraph] | None:
  """The special kind that such a kernel has if its layouts and numbers are of that kind."""
  if any(op.op == "matmul" and op.phase is Phase.LOOP for op in kernel.ops):
    return StreamGraph
  if kernel.loop is None and not any(op.op == "matmul" for op in kernel.ops):
    return RowGraph
  return None


def lowered(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target
) -> AnyGraph:
  """What the threads of a kernel with these numbers do.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED or SMEM.
  """
  special = special_kind(kernel) if params.instruction == "mma" else None
  if special is not None:
    with suppress(RejectionError):
      return special.of(graph, kernel, params, extents, target)
  return thread_graph(graph, kernel, params, extents, target)
