"""Products of many rows where nothing is timed: with a warp of its own that copies (``lower/feed.py``).

Other numbers with wgmma are for whoever times them. What these take is known: of 18 products that were
predicted to take 20 us and more (14 on an H200, four on an H100), the numbers that come first took 0.77 to
1.10 times as long as predicted (bench/results/h200/fed_products.json, h100/fed_products.json).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.ir import Candidate, KernelParams, Region, ugraph_extents
from mirage_onnx.superopt.fed_numbers import fed_points
from mirage_onnx.superopt.result import Verified
from mirage_onnx.superopt.solved import kernel_times
from mirage_onnx.target import Target

#: Microseconds from which on predictions are that good, and by what factor they may be off.
LEAST_US, OFF = 20.0, 1.2
#: µGraphs of a region that are looked at: the best of those that were found.
_LOOKED_AT = 3


def with_fed(region: Region, found: Sequence[Verified], target: Target) -> tuple[Verified, ...]:
  """The best such numbers of the first µGraphs that contract in this way; a proof is for all numbers."""
  first = list({v.candidate.ugraph: v for v in reversed(found)}.values())[::-1]
  made = (replace(v, candidate=c) for v in first for c in _fed(region, v.candidate, target))
  return tuple(v for v, _ in zip(made, range(_LOOKED_AT), strict=False))


def _fed(region: Region, candidate: Candidate, target: Target) -> Iterator[Candidate]:
  graph = candidate.ugraph
  tensors = {t.name: t for t in graph.tensors}
  extents = ugraph_extents(graph, candidate.params, region.extents)
  own: list[KernelParams] = []
  for kernel, params in zip(graph.kernels, candidate.params, strict=True):
    points = fed_points(kernel, tensors, extents, target, keep=1)
    own.append(points[0][1] if points and points[0][0] >= LEAST_US else params)
  if any(p.teams for p in own):
    fed = replace(candidate, params=tuple(own))
    times = kernel_times(fed, region.extents, target, lowered_us)
    yield replace(fed, predicted_us=sum(us or 0.0 for _, us in times))
