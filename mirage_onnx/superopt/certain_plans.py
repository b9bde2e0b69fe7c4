"""Programs of streaming and row kernels only, whose costs are certain, beside those that are proven by then.

The walk over the plans (``plans.py``) puts kernels in order by their costs. Of streaming and row kernels
these are what they take: 1.1 to 1.2 times as long, measured. Those of tiled kernels are rooflines
(``cost/tiled.py``), near to the floors of what is not built yet, so that few kernels are built: with these
a program takes 1.9 to 2.05 times as long (medians of 947 candidates, bench/results/*/golden_candidates.json).
So one of the former, whose kernels a walk has built on its way, may be faster than all before it. It is
proven, too.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from mirage_onnx.superopt.outlines import Reads
from mirage_onnx.superopt.plans import KernelPlan, Plans
from mirage_onnx.superopt.units import Built

#: So many times its cost a program with tiled kernels takes in half of the cases, beside one without.
ROOFLINE = 1.7


def certain_plans(
  plans: Plans, known: Mapping[tuple[tuple[int, ...], Reads], tuple[Built, ...]], proven: Iterable[KernelPlan]
) -> Iterator[KernelPlan]:
  """Plans of ``known`` kernels that are likely to take less than all of ``proven``, the cheapest first.

  Of plans of as many kernels with the same values missing some are followed, as of the kernels of a unit.
  """
  most_us = min((p.cost_us if _is_certain(p) else ROOFLINE * p.cost_us for p in proven), default=0.0)
  floors, kept = plans.units.floors, plans.units.bound.kept
  by_group: dict[tuple[int, ...], list[Built]] = {}
  for (classes, _), kernels in known.items():
    by_group.setdefault(classes, []).extend(b for b in kernels if not b.is_tiled)
  heap: list[tuple[float, int, KernelPlan, frozenset[int]]] = []
  pushed, followed = 0, Counter[tuple[frozenset[int], int]]()

  def push(plan: KernelPlan, missing: frozenset[int]) -> None:
    nonlocal pushed
    if (floor_us := plan.cost_us + floors.rest_us(missing)) < most_us:
      heapq.heappush(heap, (floor_us, pushed, plan, missing))
      pushed += 1

  push(KernelPlan(0.0), frozenset(plans.units.outputs))
  while heap:
    _, _, plan, missing = heapq.heappop(heap)
    state = missing, len(plan.kernels)
    if plans.blame.reason(b for _, b in plan.kernels):
      continue
    if not missing:
      yield plan
    elif len(plan.kernels) < plans.most and followed[state] < kept:
      followed[state] += 1
      made = {c for g, _ in plan.kernels for c in g}
      for group in plans.groups(missing):
        for b in by_group.get(group, ()):
          if made.union(group).isdisjoint(b.reads):
            longer = KernelPlan(plan.cost_us + b.cost_us, (*plan.kernels, (group, b)))
            push(longer, (missing - set(group)) | set(b.reads))


def _is_certain(plan: KernelPlan) -> bool:
  return not any(b.is_tiled for _, b in plan.kernels)
