"""Further looks at the fastest program on the GPU: the same µGraph with other numbers.

The cost model of tiled kernels ranks numbers only roughly. Of 1021 tiled kernels, timed cold on an
H200 (49 kernels of golden programs and of two cases of the speed table, up to 40 sets of numbers
each; bench/results/h200/tiled_sweep.json), the model's first choice took 1.30 times as long as
the fastest (geometric mean, at worst 2.4 times). So the kernel that is predicted to take longest
gets more of its numbers tried: first the best for each number of warps and length of a step, then
neighbours of the fastest so far, step by step.
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from math import log2

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.ir import Candidate, KernelParams, Region, ugraph_extents
from mirage_onnx.lower.layouts import Family
from mirage_onnx.superopt.solved import kernel_times, solver
from mirage_onnx.superopt.tiled_numbers import tiled_cost
from mirage_onnx.superopt.timed_numbers import by_warpgroups
from mirage_onnx.target import Target

#: Points of the model that are looked at, and what is passed over: so many times the best.
LOOKED_AT, FAR = 2000, 2.0
#: Kernels of other families are looked at again if they are predicted to take this long.
WORTH_US = 7.0
#: How far a neighbour is: factors of two (or stages), in all numbers together.
NEAR = 2.0

#: Of the registers that are counted where the compiler spills, so many at most are tried then.
ROOM = 0.75

Point = tuple[float, KernelParams]


def other_numbers(
  region: Region,
  candidate: Candidate,
  target: Target,
  count: int,
  tried: Container[tuple[KernelParams, ...]] | None = None,
) -> tuple[Candidate, ...]:
  """At most ``count`` candidates of the same µGraph; none where no kernel is worth it.

  None of a short streaming or row kernel either: their costs are fitted to measurements, but for those
  with packed weights.

  ``tried``: neighbours of ``candidate`` that are not among these; else numbers of every kind.
  A µGraph is proven for all numbers, so these need no proof of their own.
  """
  graph = candidate.ugraph
  tensors = {t.name: t for t in graph.tensors}
  extents = ugraph_extents(graph, candidate.params, region.extents)
  times = kernel_times(
    candidate, region.extents, target,
    lambda _, kernel, *numbers: c.time_us if (c := tiled_cost(kernel, tensors, *numbers)) else None,
  )  # fmt: skip
  rough = {n for n, k in enumerate(graph.kernels) if times[n][0] is Family.TILED or k.lane_depth > 8}
  costs_us = {n: us or 0.0 for n, (_, us) in enumerate(times) if n in rough or (us or 0.0) >= WORTH_US}
  if not costs_us:
    return ()
  at = max(costs_us, key=lambda n: (costs_us[n], -n))
  own = candidate.params[at]
  points = solver(times[at][0])(graph.kernels[at], tensors, extents, target, keep=LOOKED_AT)
  near = [(c.time_us, p) for c, p in points if c.time_us <= FAR * points[0][0].time_us and p != own]

  def with_numbers(params: KernelParams) -> tuple[KernelParams, ...]:
    return (*candidate.params[:at], params, *candidate.params[at + 1 :])

  packed = graph.kernels[at].lane_depth > 8
  if packed:
    # Of 4096x14336 with 4 bits and one row every cluster was slower than its ranks alone (by 5 to 80 %), and
    # tiles and warps mattered in all pairs (bench/results/h100/packed.json).
    near.sort(key=lambda point: point[1].cluster > 1)
  if tried is None:
    wanted = _kinds(near, packed)
  else:
    wanted = [(us, p) for us, p in near if _steps(own, p) <= NEAR and with_numbers(p) not in tried]
  return tuple(
    replace(
      candidate,
      params=with_numbers(params),
      predicted_us=candidate.predicted_us - costs_us[at] + time_us,
    )
    for time_us, params in wanted[:count]
  )


def with_room(
  region: Region, candidates: Sequence[Candidate], target: Target, count: int
) -> tuple[Candidate, ...]:
  """At most ``count`` other numbers of these µGraphs, with fewer registers in tiled kernels, soonest first.

  For where the compiler spills registers of all ``candidates``, which the cost model took to fit: on a chip
  of few multiprocessors the largest tiles are the best by far (scores under a causal mask, on an Orin).
  """
  found = list[Candidate]()
  for candidate in {c.ugraph: c for c in reversed(candidates)}.values():
    graph = candidate.ugraph
    tensors = {t.name: t for t in graph.tensors}
    extents = ugraph_extents(graph, candidate.params, region.extents)
    times = kernel_times(candidate, region.extents, target, lowered_us)
    each = list[list[Point]]()
    for k, own, (family, us) in zip(graph.kernels, candidate.params, times, strict=True):
      cost = tiled_cost(k, tensors, extents, own, target) if family is Family.TILED else None
      points = solver(family)(k, tensors, extents, target, keep=LOOKED_AT) if cost else ()
      each.append([(c.time_us, p) for c, p in points if cost and c.registers <= ROOM * cost.registers])
      if cost is None:
        each[-1] = [(us or 0.0, own)]
    for n in range(min(count, max(map(len, each))) if all(each) else 0):
      picked = [p[min(n, len(p) - 1)] for p in each]
      params = tuple(own for _, own in picked)
      found.append(replace(candidate, params=params, predicted_us=sum(us for us, _ in picked)))
  return tuple(sorted(found, key=lambda c: c.predicted_us)[:count])


def _kinds(points: Sequence[Point], packed: bool) -> list[Point]:
  """The first for each number of warps and length of a step, and tile if ``packed``, then the others."""
  seen = set[tuple[int, ...]]()
  firsts, others = list[Point](), list[Point]()
  for time_us, params in points:
    kind = (params.warps, params.loop_tile, *(params.tile if packed else ()))
    (others if kind in seen else firsts).append((time_us, params))
    seen.add(kind)
  return [*firsts, *others]


def _steps(a: KernelParams, b: KernelParams) -> float:
  """The distance of two points: doublings of every number, and stages."""
  sizes = [(*p.tile, p.cluster, max(p.loop_tile, 1), p.warps) for p in (a, b)]
  doublings = sum(abs(log2(x / y)) for x, y in zip(*sizes, strict=True))
  return doublings + abs(a.stages - b.stages)


def of_warpgroups(
  region: Region, candidates: Sequence[Candidate], target: Target, count: int
) -> list[Candidate]:
  """Of every µGraph of ``candidates`` the best other numbers with wgmma, then the second best, ...

  None of a µGraph that is far slower than the best by what is predicted.
  """
  graphs = list({c.ugraph: c for c in reversed(candidates)}.values())[::-1]
  known = {(c.ugraph, c.params) for c in candidates}
  own = [
    [f for f in by_warpgroups(region, c, target, count) if (f.ugraph, f.params) not in known] for c in graphs
  ]
  least = min((f.predicted_us for found in own for f in found), default=0.0)
  own = [[f for f in found if f.predicted_us <= FAR * least] for found in own]
  most = max(map(len, own), default=0)
  return [found[n] for n in range(most) for found in own if n < len(found)][:count]
