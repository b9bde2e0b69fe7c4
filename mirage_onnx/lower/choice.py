"""Which thread graph a kernel has: the first kind that holds its values."""

from collections.abc import Callable, Mapping

from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import MMA
from mirage_onnx.ir.spec import check_ugraph
from mirage_onnx.ir.ugraph import Kernel, KernelParams, Phase, UGraph
from mirage_onnx.lower.in_place import update_of
from mirage_onnx.lower.row_graph import row_graph
from mirage_onnx.lower.stream_graph import stream_graph
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.tiled_graph import tiled_graph
from mirage_onnx.target import Target

#: Refusals of a special kind that leave the general one.
_OTHER_KIND = ("LAYOUT", "EMIT_UNSUPPORTED", "DYNAMIC_DIM")

Lowers = Callable[[UGraph, Kernel, KernelParams, Mapping[str, int], Target], ThreadGraph]


def special_kind(kernel: Kernel) -> Lowers | None:
  """What lowers such a kernel if its layouts and numbers are of a special kind.

  A contraction in the loop makes a streaming kernel, no loop and no contraction a row kernel.
  """
  if any(op.op == "matmul" and op.phase is Phase.LOOP for op in kernel.ops):
    return stream_graph
  if kernel.loop is None and not any(op.op == "matmul" for op in kernel.ops):
    return row_graph
  return None


def lowered(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target,
  kernels: int = 1,
) -> ThreadGraph:  # fmt: skip
  """What the threads of a kernel with these numbers do, and of ``kernels`` that are alike in one launch.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED, DYNAMIC_DIM or SMEM.
  """
  special = special_kind(kernel) if params.instruction == MMA.name else None
  few_bits = next((t.name for t in graph.tensors_of(kernel) if t.few_bits), None)
  if few_bits and special is not stream_graph and params.instruction == MMA.name:
    why = f"{few_bits} has weights of few bits, and {kernel.name} is no streaming kernel"
    raise RejectionError("EMIT_UNSUPPORTED", why)
  if special is row_graph:
    special = None
  if special is not None and kernels == 1:
    try:
      return special(graph, kernel, params, extents, target)
    except RejectionError as error:
      # What is wrong with an ill-formed graph, the special kind says best.
      if few_bits or error.rejection.code not in _OTHER_KIND or check_ugraph(graph) is not None:
        raise
  return tiled_graph(graph, kernel, params, extents, target, kernels)
