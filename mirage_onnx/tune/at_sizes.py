"""Choosing a kernel for many sizes: it has to win at every one that is declared.

Kernels of a region with axes that a run counts are right at any size of these. Their times are
predicted at every declared point, and so are ONNX Runtime's. The one with the least sum of relative
times is taken, among those that win by the margin at every point; where none does, the region is
left, and the reason names the points at which the one that loses at the fewest would lose.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Program, Region
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.match.candidates import RegionCandidate as Instance
from mirage_onnx.superopt.result import SearchReport, SearchResult, Verified
from mirage_onnx.superopt.solved import kernel_times
from mirage_onnx.target import Target
from mirage_onnx.tune.declared_sizes import Sizes, sizes_text

#: Points named in a refusal, and candidates that are returned.
SHOWN, MOST = 3, 16
#: Predicted microseconds by extents.
Times = Mapping[tuple[tuple[str, int], ...], float]


@dataclass(frozen=True, slots=True)
class PointTime:
  """A declared point as text, ONNX Runtime's time there and the kernel's, both predicted."""

  sizes: str
  baseline_us: float
  kernel_us: float


@dataclass(frozen=True, slots=True)
class Sized:
  """An instance at a declared point."""

  sizes: str
  extents: Mapping[str, int]
  baseline_us: float


def sized_instance(
  instance: Instance,
  program: Program,
  points: Sequence[Sizes],
  node_us: Callable[[int], Mapping[str, float]],
) -> tuple[Sized, ...]:
  """``instance`` at each of ``points``, where nodes take ``node_us``; equal ones once.

  ``node_us`` is asked, by the place of a point, about those only that differ in sizes of the instance.
  """
  names = _names(instance.region, program)
  last = {sizes_text(sizes, names): k for k, sizes in enumerate(points)}
  return tuple(
    at_point(instance, program, points[k], fsum(times.get(n, 0.0) for n in instance.nodes))
    for k, times in ((k, node_us(k)) for k in last.values())
  )


def at_point(instance: Instance, program: Program, sizes: Sizes, baseline_us: float) -> Sized:
  """``instance`` at one point."""
  region = instance.region
  shapes = [tuple(program.size(n, sizes) for n in program.shape(i.tensor) or ()) for i in region.given]
  extents = {**region.extents, **{a: m.value(shapes) for a, m in region.runtime.items()}}
  return Sized(sizes_text(sizes, _names(region, program)), extents, baseline_us)


def _names(region: Region, program: Program) -> tuple[str, ...]:
  """The names that the shapes of a region's inputs are made of."""
  return tuple(
    name
    for prime, name in program.primes.items()
    if any(n % prime == 0 for i in region.given for n in program.numbers(i.source.name) or ())
  )


def predicted_us(
  candidate: Candidate,
  extents: Mapping[str, int],
  target: Target,
  runtime: Container[str],
  tiled_us: Callable[..., float] = lowered_us,
) -> float | None:
  """The time of a candidate at other extents; None for kernels whose model does not say it."""
  times = [us for _, us in kernel_times(candidate, extents, target, tiled_us, runtime)]
  return None if None in times else float(sum(us or 0.0 for us in times))


def lowered_once() -> Callable[..., float]:
  """``lowered_us``, asked once each: candidates differ in the numbers of one kernel, points in one size."""
  known: dict[tuple[object, ...], float] = {}

  def us(
    graph: UGraph, kernel: Kernel, extents: Mapping[str, int], params: KernelParams, target: Target
  ) -> float:
    asked = (graph, kernel.name, params, _key(extents))
    if asked not in known:
      known[asked] = lowered_us(graph, kernel, extents, params, target)
    return known[asked]

  return us


def best_at_sizes(
  report: SearchReport,
  pool: Sequence[Verified],
  instances: Sequence[tuple[Sized, ...]],
  region: Region,
  target: Target,
  margin: float,
) -> tuple[SearchResult, Rejection | None, tuple[int, ...]]:
  """All candidates that win in some instance, best first; a refusal if none; where they win.

  The time of a candidate is stated at the extents of ``region``. Only the instances in which
  the first candidate wins are returned, and all candidates win in these.
  """
  points, typical = [p for points in instances for p in points], region.extents
  tiled_us = lowered_once()
  judged: list[tuple[tuple[int, int, float], Verified, tuple[int, ...], Times]] = []
  for v in pool:
    times = {}
    for extents in (typical, *(p.extents for p in points)):
      times[_key(extents)] = predicted_us(v.candidate, extents, target, region.runtime, tiled_us)
    if any(t is None for t in times.values()):
      continue
    own = {k: t for k, t in times.items() if t is not None}
    losses = [len(_lost(some, own, margin)) for some in instances]
    wins = tuple(i for i, count in enumerate(losses) if not count)
    cost = sum(own[_key(p.extents)] / max(p.baseline_us, 1e-9) for p in points)
    at = replace(v, candidate=replace(v.candidate, predicted_us=own[_key(typical)]))
    judged.append(((-len(wins), min(losses), cost), at, wins, own))
  if not judged:
    return SearchResult((), report), None, ()
  judged.sort(key=lambda j: (j[0], j[1].candidate.predicted_us))
  first, wins = judged[0], judged[0][2]
  if not wins:
    lost = min((_lost(some, first[3], margin) for some in instances), key=len)
    return SearchResult((first[1],), report), _refusal(lost, margin, region.nodes), ()
  good = tuple(j[1] for j in judged if set(wins) <= set(j[2]))[:MOST]
  return SearchResult(good, report), None, wins


def _key(extents: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
  return tuple(sorted(extents.items()))


def _lost(points: Sequence[Sized], times: Times, margin: float) -> list[PointTime]:
  """The points at which the kernel does not win by the margin, the clearest first."""
  found = [PointTime(p.sizes, p.baseline_us, times[_key(p.extents)]) for p in points]
  lost = [p for p in found if p.kernel_us > p.baseline_us * (1 - margin)]
  return sorted(lost, key=lambda p: p.baseline_us / p.kernel_us)


def _refusal(lost: Sequence[PointTime], margin: float, nodes: tuple[str, ...]) -> Rejection:
  some = "; ".join(
    f"{p.sizes}: {p.kernel_us:.2f} us predicted against {p.baseline_us:.2f} us" for p in lost[:SHOWN]
  )
  more = f"; and {len(lost) - SHOWN} more sizes" if len(lost) > SHOWN else ""
  return Rejection("NOT_FASTER", f"it would not win by {margin:.0%} at {some}{more}", nodes)
