"""Which kernels read before the kernel in front of them has ended (programmatic dependent launch).

A kernel may start when every block of the one before has triggered. If those do so behind their own
wait, all that was launched before *them* has ended, so what they do not write may be read at once: a
kernel that needs their results only behind its loop runs beside them, and waits there.
"""

from collections.abc import Mapping

from mirage_onnx.ir import Kernel, Phase, UGraph
from mirage_onnx.lower.tensor_view import runtime_axes


def reads_ahead(graph: UGraph, kernel: Kernel, extents: Mapping[str, int]) -> bool:
  """Whether ``kernel`` waits behind its loop: all that the loop loads comes from outside of the graph.

  One without a loop waits behind its loads. Tiled kernels wait first, whatever they load. The first
  kernel does not read ahead: only its weights are known to be complete. Nor do kernels of sizes that
  only a run knows: one without blocks would not be launched, and so not waited for.
  """
  looped = {o.tensor for o in kernel.loads if o.phase is Phase.LOOP or kernel.loop is None}
  return (
    _place(graph, kernel) > 0
    and bool(looped)
    and not looped & graph.saved
    and not any(runtime_axes(graph, k, extents) for k in graph.kernels)
  )


def is_overtaken(graph: UGraph, kernel: Kernel, extents: Mapping[str, int]) -> bool:
  """Whether the kernel behind this one reads ahead: then this one triggers behind its own wait."""
  behind = _place(graph, kernel) + 1
  return behind < len(graph.kernels) and reads_ahead(graph, graph.kernels[behind], extents)


def _place(graph: UGraph, kernel: Kernel) -> int:
  """Which kernel of the graph it is; it may go by another name."""
  return next(i for i, k in enumerate(graph.kernels) if k.saves == kernel.saves)
