"""Numbers with wgmma beside those that a search has found, for whoever times them: a proof is for all.

To rank them a hundred kernels of a product are laid out (``warpgroup_numbers.py``), seconds of one core: that
is done where the search was, not in the one process that the others wait for.
"""

from dataclasses import replace

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.ir import Candidate, Region, UGraph, ugraph_extents
from mirage_onnx.ir.ugraph import is_part_axis
from mirage_onnx.superopt.fed_numbers import product_points
from mirage_onnx.superopt.result import SearchResult
from mirage_onnx.superopt.solved import kernel_times
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.superopt.widened_numbers import widened_points
from mirage_onnx.target import Target


def by_warpgroups(region: Region, candidate: Candidate, target: Target, count: int) -> tuple[Candidate, ...]:
  """At most ``count`` candidates of the same µGraph whose contractions of many rows use wgmma.

  What they take is predicted roughly (``warpgroup_numbers.py``), so they are for whoever times them. Rows
  may be counted in a run, and then those that are declared are looked at.
  """
  graph = parts_apart(candidate.ugraph)
  tensors = {t.name: t for t in graph.tensors}
  extents = ugraph_extents(graph, candidate.params, region.extents)
  points = [
    product_points(k, tensors, extents, target, count, counted=bool(region.runtime))
    or widened_points(k, tensors, extents, target, count)
    or chained_points(k, tensors, extents, target, count)
    for k in graph.kernels
  ]
  most = max(map(len, points), default=0)
  if not most:
    return ()
  times = kernel_times(candidate, region.extents, target, lowered_us)
  found = []
  for n in range(most):
    own = [p[min(n, len(p) - 1)] if p else None for p in points]
    params = tuple(o[1] if o else p for o, p in zip(own, candidate.params, strict=True))
    us = sum(o[0] if o else time_us or 0.0 for o, (_, time_us) in zip(own, times, strict=True))
    found.append(replace(candidate, ugraph=graph, params=params, predicted_us=us))
  return tuple(found)


def parts_apart(graph: UGraph) -> UGraph:
  """The same with what blocks make of a shared loop in memory part by part, columns last.

  A search has all parts of an element beside each other, for whoever adds them up. Of the many elements that
  a warpgroup has each store was a sector of its own: (2,256,64)x4096 14.2 -> 12.2 us on an H100, 32 heads of
  64 queries of 128 38.2 -> 37.2 (bench/results/h100/few_queries.json).
  """
  orders = {}
  for kernel in graph.kernels:
    many = sum(op.op == "matmul" for op in kernel.ops) > 1 and kernel.loop in kernel.grid
    for save in kernel.saves if many else ():
      t = graph.tensor(save.tensor)
      parts = [a for a in t.axes if is_part_axis(a)]
      inside = [a for a in t.axes if a not in kernel.grid and a not in parts]
      if t.role == "temp" and parts and inside:
        orders[t.name] = (*parts, *(a for a in t.axes if a in kernel.grid), *inside)
  tensors = tuple(replace(t, axes=orders.get(t.name, t.axes)) for t in graph.tensors)
  return replace(graph, tensors=tensors) if orders else graph


def with_warpgroups(region: Region, result: SearchResult, target: Target) -> SearchResult:
  """``result`` with the best numbers with wgmma of every µGraph among the others, by what is predicted.

  A product of 4096 rows is hopeless without, and nobody would time it. A proof is for all numbers.
  """
  first = list({v.candidate.ugraph: v for v in reversed(result.candidates)}.values())[::-1]
  more = [replace(v, candidate=c) for v in first for c in by_warpgroups(region, v.candidate, target, 1)]
  every = sorted([*result.candidates, *more], key=lambda v: v.candidate.predicted_us)
  return replace(result, candidates=tuple(every)) if more else result
