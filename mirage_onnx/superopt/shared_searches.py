"""The searches of many regions, where regions of one family share one.

The first region of a family (its regions differ in sizes that no weight has) is searched; the
others wait for it and take their numbers from what it has found (``search_structure.py``). Which
one is first is a matter of their order alone, so the results do not depend on the number of
workers. A search does not wait for probes that only later runs have a use for: they come after all
results, by ``learn``. Regions that are kin (``kin_units.py``) are searched one after the other by one thread,
whose process has the units of the first then. What is next may be wished anew whenever a worker is free
(``take``). No search gets all the time that is left while others wait: ``FAIR`` times its even share of all
processes' time, or ``LEAST_S``.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.ir.region import Region
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kin_units import kin
from mirage_onnx.superopt.result import SearchResult, Verify
from mirage_onnx.superopt.search_structure import (
  FINISHED,
  PROBES,
  SearchScope,
  from_known,
  probe,
  search_proven,
)
from mirage_onnx.superopt.structures import FamilyEntry, StructureStore, family
from mirage_onnx.superopt.timed_numbers import with_warpgroups

#: Most searches end long before their share; the few that do not may have some of what that leaves.
FAIR, LEAST_S = 4.0, 10.0


@dataclass(frozen=True, slots=True)
class Job:
  """What is to be done for one region, in any process.

  ``entry``: what is known of its family. ``proven``: what its search has proven; then only the
  probes are missing. ``twins``: instances of the region for whose weights programs are to be safe too.
  ``worth_us``: what is expected to take longer is not proven.
  """

  region: Region
  seconds: float
  entry: FamilyEntry | None = None
  proven: tuple[str, ...] | None = None
  twins: tuple[Region, ...] = ()
  worth_us: float = inf


@dataclass(frozen=True, slots=True)
class Answer:
  """The result of a search and all it has proven, or the entry after the probes.

  ``spoiled``: the entry of the job made no sense.
  """

  result: SearchResult | None = None
  proven: tuple[str, ...] = ()
  entry: FamilyEntry | None = None
  spoiled: bool = False


#: Does a job, here or elsewhere.
Ask = Callable[[Job], Answer]


def work(job: Job, scope: SearchScope, verify: Verify, hooks: Hooks) -> Answer:
  """Do one job, with the best numbers by wgmma of each µGraph found (``timed_numbers.py``)."""
  answer = _answer(job, scope, verify, hooks)
  if answer.result is None or job.region.runtime:
    return answer
  return replace(answer, result=with_warpgroups(job.region, answer.result, scope.target))


def _answer(job: Job, scope: SearchScope, verify: Verify, hooks: Hooks) -> Answer:
  """As ``work``. Nothing is proven anew where known µGraphs were enough, so that is empty then."""
  if job.proven is not None:
    learned = probe(
      job.region, scope, verify, job.proven, job.entry, PROBES,
      budget_s=job.seconds, hooks=hooks,
    )  # fmt: skip
    return Answer(entry=learned)
  spoiled = False
  try:
    if job.entry is not None and job.entry.serves(job.region):
      known = from_known(job.region, scope, verify, job.entry, budget_s=job.seconds, hooks=hooks)
      if known.candidates or known.report.refused_slow or known.report.stop not in FINISHED:
        return Answer(known)
  except (MirageError, RejectionError, *UNREADABLE):  # a cache is no document: it is found again
    spoiled = True
  result, proven = search_proven(job.region, scope, verify, budget_s=job.seconds, hooks=hooks)
  return Answer(result, proven, spoiled=spoiled)


class SharedSearches:
  """The searches of ``regions`` with what ``store`` knows; it learns what they find.

  ``at_once``: how many of them have a process of their own.
  """

  def __init__(
    self,
    regions: Sequence[Region],
    store: StructureStore,
    seconds_left: Callable[[], float],
    twins: Sequence[tuple[Region, ...]] = (),
    worths_us: Sequence[float] = (),
    at_once: int = 1,
  ) -> None:
    self.regions, self.store, self._seconds_left, self._at_once = regions, store, seconds_left, at_once
    self._twins = twins or ((),) * len(regions)
    self._worths_us = worths_us or (inf,) * len(regions)
    self._families = [family(r) for r in regions]
    self._count = Counter(self._families)
    self._first = {s: i for i, s in reversed(list(enumerate(self._families)))}
    self._searched = {s: threading.Event() for s in self._first}
    self._unlearned: dict[int, tuple[str, ...]] = {}
    self._done: set[int] = set()
    self._taken: set[int] = set()
    self._taking = threading.Lock()
    self._kin = [kin(r) for r in regions]
    self._takers: dict[str, int] = {}
    self.order = self._ordered()

  def take(self, preferred: Sequence[int]) -> int | None:
    """The next region to search, of ``preferred`` if one of these is left; None: all are taken.

    For one that waits for the first of its family it is that one; where that is being searched, another.
    What is kin to regions of another thread, which has their units, is left to it while there are others.
    """
    with self._taking:
      waits: int | None = None
      foreign: int | None = None
      me = threading.get_ident()
      for place, i in enumerate((*preferred, *self.order)):
        if i in self._taken:
          continue
        first = self._first[self._families[i]]
        if i != first and not self._searched[self._families[i]].is_set():
          if first in self._taken:
            waits = i if waits is None else waits
            continue
          i = first
        if place < len(preferred) or self._takers.get(self._kin[i], me) == me:
          return self._take(i)
        foreign = i if foreign is None else foreign
      last = waits if foreign is None else foreign
      return None if last is None else self._take(last)

  def _take(self, i: int) -> int:
    self._taken.add(i)
    self._takers[self._kin[i]] = threading.get_ident()
    return i

  def _share_s(self) -> float:
    """The seconds that a search may take now."""
    left = self._seconds_left()
    waiting = max(1, len(self.regions) - len(self._done))
    return min(left, max(LEAST_S, FAIR * self._at_once * left / waiting))

  def _ordered(self) -> tuple[int, ...]:
    """The order in which ``result`` is to be called: nobody waits for one that comes later.

    Kin come one after the other, so that what is known of them is of the last searches.
    """
    places = {k: i for i, k in reversed(list(enumerate(self._kin)))}
    firsts = sorted(self._first.values(), key=lambda i: (places[self._kin[i]], i))
    known = set(firsts)
    return (*firsts, *(i for i in range(len(self.regions)) if i not in known))

  def results(self, ask: Ask) -> Iterator[tuple[int, SearchResult]]:
    """All results in the order of the regions, one after the other."""
    found: dict[int, SearchResult] = {}
    told = 0
    for i in self.order:
      found[i] = self.result(i, ask)
      while told in found:
        yield told, found.pop(told)
        told += 1

  def result(self, i: int, ask: Ask) -> SearchResult:
    """The result of region ``i``; may be called from a thread for each."""
    kin = self._families[i]
    ready, first = self._searched[kin], i == self._first[kin]
    if not first:
      ready.wait()
    try:
      region, entry = self.regions[i], self.store.get(kin)
      answer = ask(Job(region, self._share_s(), entry, twins=self._twins[i], worth_us=self._worths_us[i]))
      assert answer.result is not None
      if answer.spoiled:
        self.store.forget(kin)
      if answer.proven and answer.result.report.stop in FINISHED:
        self._unlearned[i] = answer.proven
        if first and self._count[kin] > 1:
          self.learn(i, ask, self._share_s())
      return answer.result
    finally:
      self._done.add(i)
      ready.set()

  @property
  def unlearned(self) -> tuple[int, ...]:
    """The regions whose probes are missing; none where no later run could use them."""
    return () if self.store.folder is None else tuple(sorted(self._unlearned))

  def learn(self, i: int, ask: Ask, seconds: float) -> None:
    """Search the probes of region ``i``; without time for all, keep what its search found."""
    proven, kin = self._unlearned.pop(i), self._families[i]
    job = Job(self.regions[i], seconds, self.store.get(kin), proven)
    if learned := ask(job).entry:
      self.store.put(kin, learned)
