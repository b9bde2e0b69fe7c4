"""Programs of streaming and row kernels only, whose costs are certain, beside those that a search has proven.

The walk over the plans (``plans.py``) puts kernels in order by their costs. Of streaming and row kernels these
are what they take, of tiled ones they are rooflines (``cost/tiled.py``): near to the floors of what is not built
yet, so few kernels are built, but what comes first takes 1.9 times as long in the mean. So a program of the
others, which all walks build on their way, may be faster and never have its turn. Of those the cheapest is
looked for here, among what is built, and it is proven, too.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf

from mirage_onnx.superopt.outlines import Reads
from mirage_onnx.superopt.plans import KernelPlan, Plans
from mirage_onnx.superopt.units import Built

#: Classes that kernels compute and those that they read.
Unit = tuple[tuple[int, ...], Reads]
#: So many times the cheapest program that is proven, if that has tiled kernels, it takes at least as a rule.
ROOFLINE = 1.7
#: What a unit that no walk came to may take of a program to be built for it, and how many are.
LITTLE, MOST_BUILT = 0.1, 4


def certain_plans(
  plans: Plans, known: Mapping[Unit, tuple[Built, ...]], run: Callable[[tuple[int, ...], Reads], tuple[Built, ...]],
  proven: Iterable[KernelPlan],
) -> Iterator[KernelPlan]:  # fmt: skip
  """Plans that are likely to take less than all of ``proven``, the cheapest first."""
  most_us = min((p.cost_us * (ROOFLINE if _has_tiled(p) else 1.0) for p in proven), default=0.0)
  yield from _Certain(plans, known, run, most_us).cheapest_first()


def _has_tiled(plan: KernelPlan) -> bool:
  return any(b.is_tiled for _, b in plan.kernels)


@dataclass(slots=True)
class _Certain:
  plans: Plans
  known: Mapping[Unit, tuple[Built, ...]]
  run: Callable[[tuple[int, ...], Reads], tuple[Built, ...]]
  most_us: float
  left: int = MOST_BUILT

  def cheapest_first(self) -> Iterator[KernelPlan]:
    """The plans that cost less than ``most_us``."""
    floors = self.plans.units.floors
    #: A plan, what it still has to make, and the unit that is to be built for it.
    heap: list[tuple[float, int, KernelPlan, frozenset[int], Unit | None]] = []
    pushed = 0

    def push(plan: KernelPlan, missing: frozenset[int], unit: Unit | None, least_us: float) -> None:
      nonlocal pushed
      if (floor_us := plan.cost_us + least_us + floors.rest_us(missing)) < self.most_us:
        heapq.heappush(heap, (floor_us, pushed, plan, missing, unit))
        pushed += 1

    units = self._by_group()
    push(KernelPlan(0.0), frozenset(self.plans.units.outputs), None, 0.0)
    while heap:
      _, _, plan, missing, unit = heapq.heappop(heap)
      if unit is not None:
        if unit not in self.known:
          if not self.left:
            continue
          self.left -= 1
        for b in self.run(*unit):
          if not b.is_tiled:
            longer = KernelPlan(plan.cost_us + b.cost_us, (*plan.kernels, (unit[0], b)))
            push(longer, missing, None, 0.0)
      elif self.plans.blame.reason(b for _, b in plan.kernels):
        continue
      elif not missing:
        yield plan
      elif len(plan.kernels) < self.plans.most:
        made = {c for g, _ in plan.kernels for c in g}
        for group in self.plans.groups(missing):
          for reads, least_us in units.get(group, {}).items():
            if made.union(group).isdisjoint(reads):
              push(plan, (missing - set(group)) | set(reads), (group, reads), least_us)

  def _by_group(self) -> dict[tuple[int, ...], dict[Reads, float]]:
    """What kernels of these classes read, with a floor of their cost: of units that are built, or are little."""
    found: dict[tuple[int, ...], dict[Reads, float]] = {}
    units = self.plans.units
    for (classes, reads), derivations in units.outlined.items():
      if (classes, reads) in self.known:
        least_us = min((b.cost_us for b in self.known[classes, reads] if not b.is_tiled), default=inf)
      else:
        least_us = units.certain_us(classes, derivations)
        least_us = least_us if least_us < LITTLE * self.most_us else inf
      if least_us < inf:
        found.setdefault(classes, {})[reads] = least_us
    return found
