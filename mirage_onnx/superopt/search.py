"""The search: region in, verified candidate µGraphs out, cheapest predicted first.

``units.py`` enumerates kernels and ``plans.py`` puts them together, cheapest plan first; here the
plans are verified, by the callable that the pipeline passes in. Within its bound the enumeration is
exhaustive; every prune is counted. Units can be run by several processes (``shared_units.py``), but
the plans are walked by one: what the search takes, counts and reports does not depend on them.
"""

import time
from itertools import chain

from mirage_onnx import deadline
from mirage_onnx.errors import MirageError
from mirage_onnx.garbage import young_only
from mirage_onnx.ir import Region
from mirage_onnx.superopt.axioms import AXIOMS, Axiom
from mirage_onnx.superopt.choices import Counts, StateLimitError
from mirage_onnx.superopt.hooks import Hooks, NoStore
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_units import KeptUnits
from mirage_onnx.superopt.outlines import Depth, Reads
from mirage_onnx.superopt.plans import Plans
from mirage_onnx.superopt.programs import Programs
from mirage_onnx.superopt.progress import ProgressMeter
from mirage_onnx.superopt.result import (
  Allow,
  SearchBound,
  SearchReport,
  SearchResult,
  Stop,
  Verified,
  Verify,
  default_bound,
  varied,
)
from mirage_onnx.superopt.shared_units import SharedUnits
from mirage_onnx.superopt.space import EMITTED, Space
from mirage_onnx.superopt.timed_plans import TimedPlans
from mirage_onnx.superopt.unit_worker import Job
from mirage_onnx.superopt.units import Built, UnitResult
from mirage_onnx.target import Target

__all__ = ["SearchBound", "SearchReport", "SearchResult", "Stop", "Verified", "Verify", "search"]


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
) -> SearchResult:
  """Search µGraphs for ``region`` on ``target`` and verify the cheapest ones.

  The store of ``hooks`` is not used where there is ``allow``, which no key can hold.
  ``workers``: processes, this one among them; the others start when a search takes long.
  """
  start = time.monotonic()
  try:
    with deadline.until(start + budget_s):
      return _searched(
        region, target, verify, bound or default_bound(space), space, budget_s, axioms, allow,
        hooks or Hooks(), workers,
      )  # fmt: skip
  except deadline.OverdueError:  # the region has so many spellings that it came to no plan
    report = SearchReport(time.monotonic() - start, 0, 0, 0, Stop.BUDGET, (), ())
    return SearchResult((), report)


def _searched(
  region: Region,
  target: Target,
  verify: Verify,
  limits: SearchBound,
  space: Space,
  budget_s: float,
  axioms: tuple[Axiom, ...],
  allow: Allow | None,
  ends: Hooks,
  workers: int,
) -> SearchResult:
  start = time.monotonic()
  meter = ProgressMeter(region.key, budget_s, ends.emit)
  units = SharedUnits(region, target, limits, axioms, space, allow, workers=workers)
  kept = KeptUnits(units, ends.store if allow is None else NoStore())
  total = Counts()

  def poll(running: Counts | None = None) -> None:
    """Called between pieces of work; ``running`` are the counts of a unit that is not done."""
    stop = Stop.BUDGET if time.monotonic() > start + budget_s else ends.stop()
    if stop is not None:
      raise StoppedError(stop)
    if meter.is_due:
      meter.tick(
        units.states + (running.states if running else 0),
        total.pruned,
        programs.best_us,
        units_done=len(results),
        units_known=units.known,
      )

  units.poll = poll
  counts, results = Counts(), list[UnitResult]()
  known: dict[tuple[tuple[int, ...], Reads], tuple[Built, ...]] = {}

  def run(classes: tuple[int, ...], reads: Reads) -> tuple[Built, ...]:
    if (classes, reads) not in known:
      poll()
      results.append(unit := kept.run(classes, reads))
      total.pruned.update(unit.counts.pruned)
      known[classes, reads] = unit.kernels
    return known[classes, reads]

  def offer(floor_us: float, job: Job) -> None:
    """Let a worker begin what no earlier search has kept."""
    classes, what = job
    if isinstance(what, Depth) or not kept.holds(classes, what):
      units.offer(floor_us, job)

  plans = Plans(units, run, counts, offer if units.is_shared else None)
  programs = Programs(region, verify, plans)
  timed = TimedPlans(plans, known)
  stop, unproven, was_timed = Stop.EXHAUSTED, set[str](), False
  try:
    try:
      for plan, is_early in plans.cheapest_first():
        if programs.good >= limits.verified or len(programs.tried) >= limits.tried:
          break
        poll()
        text = programs.text(plan)
        if text in unproven or (text in programs.tried and (is_early or not programs.in_turn(text))):
          counts.prune("the same program twice")
        elif text not in programs.tried and programs.good and not was_timed:
          unproven.add(text)  # One is enough to learn what ends other plans.
        elif text not in programs.tried:
          programs.judged(plan, text, is_early=is_early)
        if not was_timed and programs.good + len(unproven) >= limits.verified:
          was_timed, unproven = True, set()
          timed.judge(programs, sum(u.built for u in results), poll)
    except StateLimitError:
      stop = Stop.STATE_LIMIT
    timed.judge(programs, sum(u.built for u in results), poll)
  except StoppedError as error:
    stop = error.stop
  except UNREADABLE as error:
    if not kept.taken:
      raise
    what = f"{type(error).__name__}: {error}"
    raise MirageError("JOURNAL", f"an entry of the search is none of it ({what})") from error
  except deadline.OverdueError:  # in the middle of a proof
    stop = Stop.BUDGET
  finally:
    units.close()
  if stop is not Stop.EXHAUSTED or not programs.good:
    programs.early.clear()
  timed.settle(programs)
  if stop is Stop.EXHAUSTED and not units.complete:
    stop = Stop.STATE_LIMIT
  counts.pruned.update(total.pruned)
  counts.pruned.update(units.pruned)
  refused = [*programs.refused, *(r for u in results for r in u.reasons)]
  report = SearchReport(
    seconds=time.monotonic() - start,
    states=units.states,
    built=sum(u.built for u in results),
    verified=programs.good,
    stop=stop,
    pruned=tuple(sorted(counts.pruned.items())),
    refused=tuple(refused),
  )
  out = chain(*(programs.verified(text) for text in programs.proven if text not in programs.early))
  ranked = sorted(out, key=lambda v: v.candidate.predicted_us)
  return SearchResult(varied(ranked, limits.candidates), report)
