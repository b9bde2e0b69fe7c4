"""The kernel graphs of Mirage's README: they superoptimize themselves.

    graph = mirage_onnx.new_kernel_graph()
    x = graph.new_input(dims=(16, 4096), dtype=mirage_onnx.float16)
    w = graph.new_input(dims=(4096, 4096), dtype=mirage_onnx.float16)
    graph.mark_output(graph.matmul(graph.rms_norm(x), w))
    optimized_graph = graph.superoptimize()
    outputs = optimized_graph([x_array, w_array])

The operations are those of ``importer/kernel_graph.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_onnx.errors import MirageError
from mirage_onnx.graphs.preset import with_preset
from mirage_onnx.graphs.restriction import read_restriction
from mirage_onnx.importer import kernel_graph as operations
from mirage_onnx.target import H200, Target, get_target
from mirage_onnx.tune.device import present_target

if TYPE_CHECKING:
  from mirage_onnx.graphs.optimized import OptimizedGraph

#: Seconds that a search may take unless told otherwise.
BUDGET_S = 300.0


class KernelGraph(operations.ProgramBuilder):
  """A tensor program under construction, and its superoptimization."""

  def superoptimize(
    self,
    config: str | None = None,
    *,
    griddims: Sequence[Sequence[int]] | None = None,
    blockdims: Sequence[Sequence[int]] | None = None,
    imaps: Sequence[Sequence[int]] | None = None,
    omaps: Sequence[Sequence[int]] | None = None,
    fmaps: Sequence[int] | None = None,
    franges: Sequence[int] | None = None,
    max_ops: int | None = None,
    budget_s: float | None = None,
    workers: int | None = None,
    checkpoint: str | Path | None = None,
    return_all: bool = False,
    target: str | None = None,
  ) -> OptimizedGraph | list[OptimizedGraph]:
    """The best µGraph found for this graph: the cheapest predicted of those that verify.

    Without parameters the search chooses everything. ``griddims`` to ``franges`` restrict it
    (``restriction.py``): each is the list of what is allowed, and every kernel must keep to
    all. ``config``: ``attention``, ``mlp`` or ``lora``, restrictions with a name
    (``preset.py``). ``max_ops``: contractions, reductions and accumulators per kernel.
    ``budget_s``: seconds for the search. ``workers``: processes (default: one per core,
    eight at most).
    ``checkpoint``: a JSON file; µGraphs in it are verified and returned without a search if
    they keep to the restriction, otherwise what the search finds is written there.
    ``return_all``: everything found, as a list. ``target``: a device profile (default: the
    present GPU, else ``h200``).

    Raises:
        MirageError: OPTION_INVALID (a parameter has a value it cannot take, or no program
            keeps to them), GRAPH_OPERAND (the graph has no clear output), TARGET_UNKNOWN,
            CHECKPOINT.
        RejectionError: NO_CANDIDATE, or why the graph has no region (AXES_CONFLICT).
    """
    # Here, so that building a graph does not load the search.
    from mirage_onnx.graphs.search import Request, search_graph

    given = read_restriction(
      griddims=griddims, blockdims=blockdims, imaps=imaps, omaps=omaps,
      fmaps=fmaps, franges=franges,
    )  # fmt: skip
    for name, value in (("max_ops", max_ops), ("workers", workers)):
      if value is not None and (not isinstance(value, int) or value < 1):
        raise MirageError("OPTION_INVALID", f"{name}={value!r}: a whole number >= 1")
    if budget_s is not None and not budget_s >= 0:
      raise MirageError("OPTION_INVALID", f"budget_s={budget_s!r}: a number >= 0")
    request = Request(
      target=_target(target),
      restriction=with_preset(config, given),
      budget_s=BUDGET_S if budget_s is None else float(budget_s),
      max_ops=max_ops,
      workers=workers,
      checkpoint=None if checkpoint is None else Path(checkpoint),
    )
    found = search_graph(self.program(), request)
    return list(found) if return_all else found[0]

  def read_ugraph(
    self,
    text: str,
    numbers: Sequence[str],
    *,
    predicted_us: float = inf,
    target: str | None = None,
  ) -> OptimizedGraph:
    """A µGraph of this graph from its canonical text and its kernels' numbers, verified.

    ``predicted_us`` is only kept.

    Raises:
        ValueError: the text is not that of a µGraph, or the numbers are not that of a kernel.
        RejectionError: NOT_EQUIVALENT or another code of the verifier.
    """
    from mirage_onnx.graphs.search import read_graph

    found = read_graph(self.program(), text, numbers, _target(target))
    return replace(found, candidate=replace(found.candidate, predicted_us=predicted_us))


def _target(name: str | None) -> Target:
  return get_target(name) if name else present_target() or H200


def new_kernel_graph() -> KernelGraph:
  """An empty kernel graph."""
  return KernelGraph()


#: The name in the original's first README.
new_graph = new_kernel_graph


def superoptimize(graph: KernelGraph, config: str | None = None, **options: Any) -> list[OptimizedGraph]:
  """All µGraphs found for ``graph``, best first; ``config`` and ``options`` are those of its method."""
  found = graph.superoptimize(config, **{**options, "return_all": True})
  assert isinstance(found, list)
  return found
