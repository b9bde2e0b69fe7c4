"""Which thread graph a kernel has: the first kind that holds its values."""

from collections.abc import Mapping

from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import MMA
from mirage_onnx.ir.spec import check_ugraph
from mirage_onnx.ir.ugraph import Kernel, KernelParams, Phase, UGraph
from mirage_onnx.lower.stream_graph import stream_graph
from mirage_onnx.lower.thread_graph import ThreadGraph
from mirage_onnx.lower.tiled_graph import tiled_graph
from mirage_onnx.target import Target

#: Refusals of a special kind that leave the general one.
_OTHER_KIND = ("LAYOUT", "EMIT_UNSUPPORTED", "DYNAMIC_DIM")


def streams(kernel: Kernel) -> bool:
  """Whether a kernel contracts in its loop, and so is a streaming one if its layouts and numbers are."""
  return any(op.op == "matmul" and op.phase is Phase.LOOP for op in kernel.ops)


def lowered(
  graph: UGraph, kernel: Kernel, params: KernelParams, extents: Mapping[str, int], target: Target,
  kernels: int = 1,
) -> ThreadGraph:  # fmt: skip
  """What the threads of a kernel with these numbers do, and of ``kernels`` that are alike in one launch.

  Raises:
      RejectionError: LAYOUT, EMIT_UNSUPPORTED, DYNAMIC_DIM or SMEM.
  """
  by_mma = params.instruction == MMA.name
  special = by_mma and streams(kernel)
  few_bits = next((t.name for t in graph.tensors_of(kernel) if t.few_bits), None)
  if few_bits and by_mma and not special:
    why = f"{few_bits} has weights of few bits, and {kernel.name} is no streaming kernel"
    raise RejectionError("EMIT_UNSUPPORTED", why)
  if special and kernels == 1:
    try:
      return stream_graph(graph, kernel, params, extents, target)
    except RejectionError as error:
      # What is wrong with an ill-formed graph, the special kind says best.
      if few_bits or error.rejection.code not in _OTHER_KIND or check_ugraph(graph) is not None:
        raise
  return tiled_graph(graph, kernel, params, extents, target, kernels)
