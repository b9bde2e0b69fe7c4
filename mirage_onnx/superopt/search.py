"""The search: region in, verified candidate µGraphs out, cheapest predicted first.

``units.py`` enumerates kernels and ``plans.py`` puts them together, cheapest plan first; here the
plans are verified, by the callable that the pipeline passes in. Within its bound the enumeration is
exhaustive; every prune is counted. Units can be run by several processes (``shared_units.py``), but
the plans are walked by one: what the search takes, counts and reports does not depend on them.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf

from mirage_onnx import deadline
from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.garbage import young_only
from mirage_onnx.ir import Candidate, Region, UGraph, print_ugraph
from mirage_onnx.superopt.axioms import AXIOMS, Axiom
from mirage_onnx.superopt.certain_plans import certain_plans
from mirage_onnx.superopt.choices import Counts, StateLimitError
from mirage_onnx.superopt.expected_time import too_slow
from mirage_onnx.superopt.hooks import Hooks, NoStore
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_units import KeptUnits
from mirage_onnx.superopt.outlines import Depth, Reads
from mirage_onnx.superopt.plans import KernelPlan, Plans
from mirage_onnx.superopt.progress import ProgressMeter
from mirage_onnx.superopt.reach import with_limits
from mirage_onnx.superopt.result import (
  Allow,
  ProofLike,
  SearchBound,
  SearchReport,
  SearchResult,
  Stop,
  Verified,
  Verify,
  default_bound,
  is_partial,
  proven_graph,
  varied,
)
from mirage_onnx.superopt.shared_units import SharedUnits
from mirage_onnx.superopt.space import EMITTED, Space
from mirage_onnx.superopt.unit_worker import Job
from mirage_onnx.superopt.units import Built, UnitResult
from mirage_onnx.target import Target

__all__ = ["SearchBound", "SearchReport", "SearchResult", "Stop", "Verified", "Verify", "search"]

#: Of programs of streaming and row kernels only so many are tried beside the others, until one is proven.
CERTAIN = 2


class StoppedError(Exception):
  """The search ends here, with what it has."""

  def __init__(self, stop: Stop) -> None:
    super().__init__(stop)
    self.stop = stop


@young_only()
def search(
  region: Region,
  target: Target,
  verify: Verify,
  *,
  bound: SearchBound | None = None,
  space: Space = EMITTED,
  budget_s: float = 60.0,
  axioms: tuple[Axiom, ...] = AXIOMS,
  allow: Allow | None = None,
  hooks: Hooks | None = None,
  workers: int = 1,
  worth_us: float = inf,
) -> SearchResult:
  """Search µGraphs for ``region`` on ``target`` and verify the cheapest ones.

  The store of ``hooks`` is not used where there is ``allow``, which no key can hold.
  ``workers``: processes, this one among them; the others start when a search takes long.
  ``worth_us``: what is expected to take longer is not proven: NOT_FASTER is among the refusals.
  """
  start = time.monotonic()
  limits, ends = bound or default_bound(space), hooks or Hooks()
  try:
    with deadline.until(start + budget_s):
      units = SharedUnits(region, target, limits, axioms, space, allow, workers=workers, kin=ends.kin)
      kept = KeptUnits(units, ends.store if allow is None else NoStore())
      proofs = _Proofs(region, target, verify, limits, worth_us, units, kept, ends, start, budget_s)
      return proofs.result(proofs.to_its_end())
  except deadline.OverdueError:  # the region has so many spellings that it came to no plan
    report = SearchReport(time.monotonic() - start, 0, 0, 0, Stop.BUDGET, (), ())
    return SearchResult((), report)


@dataclass(slots=True)
class _Proofs:
  """From plan to plan, the cheapest first, and what was proven of them.

  ``accepted``: verdicts by text; ``taken``: plans that were proven, or would be if they were worth it;
  ``good``: programs that count for the bound. ``early`` and ``slow``: proven, and not worth it, before their
  turn, when they count.
  """

  region: Region
  target: Target
  verify: Verify
  limits: SearchBound
  worth_us: float
  units: SharedUnits
  kept: KeptUnits
  ends: Hooks
  start: float
  budget_s: float
  meter: ProgressMeter = field(init=False)
  plans: Plans = field(init=False)
  pruned: Counts = field(default_factory=Counts)
  results: list[UnitResult] = field(default_factory=list)
  known: dict[tuple[tuple[int, ...], Reads], tuple[Built, ...]] = field(default_factory=dict)
  accepted: dict[str, ProofLike | Rejection] = field(default_factory=dict)
  refused: list[Rejection] = field(default_factory=list)
  out: list[Verified] = field(default_factory=list)
  early: dict[str, list[Verified]] = field(default_factory=dict)
  slow: set[str] = field(default_factory=set)
  taken: dict[str, KernelPlan] = field(default_factory=dict)
  good: int = 0

  def __post_init__(self) -> None:
    self.meter = ProgressMeter(self.region.key, self.budget_s, self.ends.emit)
    self.units.poll = self.poll
    self.plans = Plans(self.units, self.run, Counts(), self.offer if self.units.is_shared else None)

  def poll(self, running: Counts | None = None) -> None:
    """Called between pieces of work; ``running`` are the counts of a unit that is not done."""
    stop = Stop.BUDGET if time.monotonic() > self.start + self.budget_s else self.ends.stop()
    if stop is not None:
      raise StoppedError(stop)
    if self.meter.is_due:
      proven = chain(self.out, *self.early.values())
      self.meter.tick(
        self.units.states + (running.states if running else 0),
        self.pruned.pruned,
        min((v.candidate.predicted_us for v in proven), default=None),
        units_done=len(self.results),
        units_known=self.units.known,
      )

  def run(self, classes: tuple[int, ...], reads: Reads) -> tuple[Built, ...]:
    """The kernels of a unit."""
    if (classes, reads) not in self.known:
      self.poll()
      self.results.append(unit := self.kept.run(classes, reads))
      self.pruned.pruned.update(unit.counts.pruned)
      self.known[classes, reads] = unit.kernels
    return self.known[classes, reads]

  def offer(self, floor_us: float, job: Job) -> None:
    """Let a worker begin what no earlier search has kept."""
    classes, what = job
    if isinstance(what, Depth) or not self.kept.holds(classes, what):
      self.units.offer(floor_us, job)

  def to_its_end(self) -> Stop:
    """Walks until there is enough, or nothing left, or no time.

    Raises:
        MirageError: JOURNAL, what an earlier search has kept is none of it.
    """
    stop = Stop.EXHAUSTED
    try:
      try:
        self._by_cost()
      except StateLimitError:
        stop = Stop.STATE_LIMIT
      with suppress(StateLimitError):
        self._certain()
    except StoppedError as error:
      stop = error.stop
    except UNREADABLE as error:
      if not self.kept.taken:
        raise
      what = f"{type(error).__name__}: {error}"
      raise MirageError("JOURNAL", f"an entry of the search is none of it ({what})") from error
    except deadline.OverdueError:  # in the middle of a proof
      stop = Stop.BUDGET
    finally:
      self.units.close()
    return stop

  def _by_cost(self) -> None:
    walk = self.plans.cheapest_first()
    # Asked before the walk goes on: to the next plan, which nobody wants, it may be far.
    while self.good < self.limits.verified and len(self.accepted) < self.limits.tried:
      if (found := next(walk, None)) is None:
        break
      plan, is_early = found
      self.poll()
      graph = self.plans.ugraph(plan)
      text = print_ugraph(graph)
      if text in self.accepted:
        self._again(text, is_early)
      elif proven := self._judged(plan, graph, text):
        if is_early:
          self.early[text] = proven
        else:
          self._take(proven)
      elif text in self.taken:
        # One of the best, as if it were proven: what comes next is no better by the search's own cost.
        self.slow |= {text} if is_early else set()
        self.good += not is_early

  def _again(self, text: str, is_early: bool) -> None:
    """A program of which the verdict is known: its turn has come, or another plan is the same program."""
    if text in self.early and not is_early:
      self._take(self.early.pop(text))
    elif text in self.slow and not is_early:
      self.slow.discard(text)
      self.good += 1
    else:
      self.plans.counts.prune("the same program twice")

  def _take(self, proven: list[Verified]) -> None:
    self.good += not is_partial(proven[0].proof)
    self.out += proven

  def _certain(self) -> None:
    """One of streaming and row kernels beside the others."""
    for plan in islice(certain_plans(self.plans, self.known, self.run, self.taken.values()), CERTAIN):
      self.poll()
      graph = self.plans.ugraph(plan)
      text = print_ugraph(graph)
      if text not in self.accepted and (proven := self._judged(plan, graph, text)):
        self._take(proven)
        break

  def _judged(self, plan: KernelPlan, graph: UGraph, text: str) -> list[Verified]:
    """What is proven of a plan; nothing where it is refused, or not worth a proof."""
    numbers, plans = list(self.plans.numbers(plan)), self.plans
    if self.worth_us < inf:
      every = (Candidate(graph, p, us) for us, p in numbers)
      if late := too_slow(self.region, every, self.target, self.worth_us):
        self.accepted[text], plans.found, self.taken[text] = late, True, plan
        self.refused.append(late)
        return []
    verdict = self.accepted[text] = self.verify(self.region, graph, numbers[0][1])
    if isinstance(verdict, Rejection):
      self.refused.append(verdict)
      plans.blame.learn(verdict, tuple(b for _, b in plan.kernels))
      return []
    plans.found, self.taken[text] = True, plan
    graph = with_limits(self.region, proven_graph(verdict, graph))
    return [Verified(Candidate(graph, p, us), verdict) for us, p in numbers]

  def result(self, stop: Stop) -> SearchResult:
    """All that was found, by predicted time, and the report."""
    if stop is not Stop.EXHAUSTED or not self.out:
      self.good += len(self.early)
      self.out += chain(*self.early.values())
    if stop is Stop.EXHAUSTED and not self.units.complete:
      stop = Stop.STATE_LIMIT
    counts = self.plans.counts
    counts.pruned.update(self.pruned.pruned)
    counts.pruned.update(self.units.pruned)
    report = SearchReport(
      seconds=time.monotonic() - self.start,
      states=self.units.states,
      built=sum(u.built for u in self.results),
      verified=self.good,
      stop=stop,
      pruned=tuple(sorted(counts.pruned.items())),
      refused=(*self.refused, *chain.from_iterable(u.reasons for u in self.results)),
    )
    ranked = sorted(self.out, key=lambda v: v.candidate.predicted_us)
    return SearchResult(varied(ranked, self.limits.candidates), report)
