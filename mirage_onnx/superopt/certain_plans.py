"""Programs of streaming and row kernels only, whose costs are certain, beside those that are proven by then.

The walk over the plans (``plans.py``) puts kernels in order by their costs. Of streaming and row kernels
these are what they take: 1.1 to 1.2 times as long, measured. Those of tiled kernels are rooflines
(``cost/tiled.py``), near to the floors of what is not built yet, so that few kernels are built: with these
a program takes 1.9 to 2.05 times as long (medians of 947 candidates, bench/results/*/golden_candidates.json).
So one of the former may be faster than all that have their turn. It is proven, too.

Its kernels are mostly those that the walk has built on its way. What is still missing may be built: a unit
that reads nothing, if all that it takes is little, and one that reads no more than what such a unit makes.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from mirage_onnx.superopt.outlines import Reads
from mirage_onnx.superopt.plans import KernelPlan, Plans, Run
from mirage_onnx.superopt.units import Built

#: So many times its cost a program with tiled kernels takes in half of the cases, beside one without.
ROOFLINE = 1.7
#: What is little, of the most that a program may take; units that are built at most.
LITTLE, MOST_BUILT = 0.05, 4

#: Classes that kernels compute and those that they read.
Unit = tuple[tuple[int, ...], Reads]


def certain_plans(
  plans: Plans, known: Mapping[Unit, tuple[Built, ...]], run: Run, proven: Iterable[KernelPlan]
) -> Iterator[KernelPlan]:
  """Plans that are likely to take less than all of ``proven``, about the cheapest first.

  ``known``: the units that are built. ``run``: builds one.
  """
  most_us = min((p.cost_us if _is_certain(p) else ROOFLINE * p.cost_us for p in proven), default=0.0)
  yield from _Certain(plans, known, run, most_us).cheapest_first()


def _is_certain(plan: KernelPlan) -> bool:
  return not any(b.is_tiled for _, b in plan.kernels)


@dataclass(slots=True)
class _Certain:
  plans: Plans
  known: Mapping[Unit, tuple[Built, ...]]
  run: Run
  most_us: float
  left: int = MOST_BUILT
  #: What kernels of these classes read, with a floor of what these take.
  reads: dict[tuple[int, ...], dict[Reads, float]] = field(default_factory=dict)

  def cheapest_first(self) -> Iterator[KernelPlan]:
    """Of plans of as many kernels with the same values missing some are followed, as of those of a unit."""
    units = self.plans.units
    # A plan, what it still has to make, and the unit of its next kernel.
    heap: list[tuple[float, int, KernelPlan, frozenset[int], Unit | None]] = []
    pushed, followed = 0, Counter[tuple[frozenset[int], int]]()

    def push(plan: KernelPlan, missing: frozenset[int], unit: Unit | None, unit_us: float) -> None:
      nonlocal pushed
      rest_us = unit_us + units.floors.rest_us(missing)
      if plan.cost_us + rest_us < self.most_us:
        heapq.heappush(heap, (plan.cost_us + units.bound.slack * rest_us, pushed, plan, missing, unit))
        pushed += 1

    push(KernelPlan(0.0), frozenset(units.outputs), None, 0.0)
    while heap:
      _, _, plan, missing, unit = heapq.heappop(heap)
      state = missing, len(plan.kernels)
      if unit is not None:
        for b in self._kernels(unit):
          push(KernelPlan(plan.cost_us + b.cost_us, (*plan.kernels, (unit[0], b))), missing, None, 0.0)
      elif self.plans.blame.reason(b for _, b in plan.kernels):
        continue
      elif not missing:
        yield plan
      elif len(plan.kernels) < self.plans.most and followed[state] < units.bound.kept:
        followed[state] += 1
        made = {c for g, _ in plan.kernels for c in g}
        for group in self.plans.groups(missing):
          for reads, unit_us in self._reads(group).items():
            if made.union(group).isdisjoint(reads):
              push(plan, (missing - set(group)) | set(reads), (group, reads), unit_us)

  def _kernels(self, unit: Unit) -> list[Built]:
    if unit not in self.known:
      if not self.left:
        return []
      self.left -= 1
    return [b for b in self.run(*unit) if not b.is_tiled]

  def _reads(self, group: tuple[int, ...]) -> Mapping[Reads, float]:
    """Of the units of these classes that are built, or may be."""
    if group not in self.reads:
      found = self.reads[group] = {}
      for (classes, reads), kernels in self.known.items():
        certain = [b.cost_us for b in kernels if classes == group and not b.is_tiled]
        if certain:
          found[reads] = min(certain)
      units = self.plans.units
      if self._is_little(group):
        units.outline(group, units.first_depth)
      for reads, derivations in units.outlined(group):
        if (group, reads) not in self.known and len(reads) < 2 and all(self._is_little((c,)) for c in reads):
          unit_us = units.certain_us(group, derivations)
          if unit_us < inf:
            found[reads] = unit_us
    return self.reads[group]

  def _is_little(self, group: tuple[int, ...]) -> bool:
    """Whether all that these classes take, with what is under them, is little."""
    return self.plans.units.floors.rest_us(frozenset(group)) < LITTLE * self.most_us
