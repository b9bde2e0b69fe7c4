"""Programs of what a search has built, by what they are predicted to take.

The walk over the plans (``plans.py``) puts kernels in order by the roofline of ``cost/tiled.py``, which is
near to the floors of what is not built yet: so a search looks at few kernels, but not at the best ones first.
What it has built is gone through again here, by the times of the formula (``cost/tiled_time.py``), which is
further from every floor, and takes twice as long to ask. Streaming and row kernels have one cost in both.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mirage_onnx.cost.tiled_time import tiled_times
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.superopt.outlines import Reads
from mirage_onnx.superopt.plans import KernelPlan, Plans
from mirage_onnx.superopt.programs import Programs
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.superopt.units import Built

#: Of so many kernels that a search has built one is timed, but so many at least.
TIMED, LEAST_TIMED = 8, 12

#: A plan and what it still has to make.
_Rest = tuple[KernelPlan, frozenset[int]]


class TimedPlans:
  """The plans of kernels that are ``known``, by the classes that they compute and what they read."""

  def __init__(self, plans: Plans, known: Mapping[tuple[tuple[int, ...], Reads], tuple[Built, ...]]) -> None:
    self._plans, self._units, self._known = plans, plans.units, known
    self._left = 0
    #: By the identity of kernels: those that are known, with their times.
    self._times: dict[int, Built] = {}

  def judge(self, programs: Programs, built: int, poll: Callable[[], None]) -> None:
    """Have the first plans by their times verified, until as many programs are proven as are wanted.

    ``built``: kernels of the search, one of ``TIMED`` of which may be timed.
    """
    self._left, bound = max(LEAST_TIMED, built // TIMED), self._units.bound
    for plan in self.cheapest_first():
      if programs.good >= bound.verified or len(programs.tried) >= bound.tried:
        break
      poll()
      text = programs.text(plan)
      if text not in programs.tried:
        programs.judged(plan, text)
      programs.in_turn(text)

  def settle(self, programs: Programs) -> None:
    """Time the kernels of all programs that were proven."""
    for text in programs.proven:
      program = programs.tried[text]
      assert program
      kernels = tuple((group, self._timed(group, b)) for group, b in program.plan.kernels)
      programs.timed(text, KernelPlan(sum(b.cost_us for _, b in kernels), kernels))

  def cheapest_first(self) -> Iterator[KernelPlan]:
    """Plans in the order of their times, as far as kernels may be timed."""
    start = frozenset(self._units.outputs)
    heap: list[tuple[float, int, KernelPlan, frozenset[int], bool]] = [(0.0, 0, KernelPlan(0.0), start, True)]
    pushed = 0
    by_group: dict[tuple[int, ...], list[Built]] = {}
    for (classes, _), kernels in self._known.items():
      by_group.setdefault(classes, []).extend(kernels)
    while heap:
      _, _, plan, missing, is_timed = heapq.heappop(heap)
      if self._plans.blame.reason(b for _, b in plan.kernels):
        continue
      if is_timed and not missing:
        yield plan
        continue
      nexts = self._longer(plan, missing, by_group) if is_timed else self._in_time(plan, missing)
      for longer, rest in nexts:
        pushed += 1
        floor_us = longer.cost_us + self._units.bound.slack * self._units.floors.rest_us(rest)
        heapq.heappush(heap, (floor_us, pushed, longer, rest, not is_timed))

  def _longer(
    self, plan: KernelPlan, missing: frozenset[int], by_group: Mapping[tuple[int, ...], Sequence[Built]]
  ) -> Iterator[_Rest]:
    """The plan with one kernel more, which has not been timed."""
    if len(plan.kernels) == self._plans.most:
      return
    made = {c for g, _ in plan.kernels for c in g}
    for group in self._plans.groups(missing):
      for b in by_group.get(group, ()):
        if made.union(group).isdisjoint(b.reads):
          longer = KernelPlan(plan.cost_us + b.cost_us, (*plan.kernels, (group, b)))
          yield longer, (missing - set(group)) | set(b.reads)

  def _in_time(self, plan: KernelPlan, missing: frozenset[int]) -> Iterator[_Rest]:
    """The plan with its last kernel's best numbers by their times; none if no more may be timed."""
    *others, (group, b) = plan.kernels
    if not b.is_tiled or id(b) in self._times or self._left:
      timed = self._timed(group, b)
      yield KernelPlan(plan.cost_us - b.cost_us + timed.cost_us, (*others, (group, timed))), missing

  def _timed(self, group: tuple[int, ...], b: Built) -> Built:
    """A kernel with its best numbers by their times."""
    if id(b) not in self._times:
      timed = self._times[id(b)] = self._solved(group, b)
      self._times[id(timed)] = timed
    return self._times[id(b)]

  def _solved(self, group: tuple[int, ...], b: Built) -> Built:
    units, work = self._units, b.work
    if not b.is_tiled:
      return b
    if work is None:  # another process has built it
      named = {t.name: t for t in units.inputs.values()}
      work = TiledWork.of(b.kernel, named | {t.name: t for t in map(units.tensor, (*group, *b.reads))})
    self._left = max(0, self._left - 1)
    points = solve_tiled(
      b.kernel, work.tensors, units.extents, units.target,
      keep=units.bound.points, allow=units.allowed(b.kernel), work=work, costs=tiled_times,
    )  # fmt: skip
    if not points:
      return b
    return replace(b, cost_us=points[0][0].time_us, params=tuple(p for _, p in points))
