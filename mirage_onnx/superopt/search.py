"""The search: region in, verified candidate µGraphs out, cheapest predicted first.

``units.py`` enumerates kernels and ``plans.py`` puts them together, cheapest plan first; here the
plans are verified, by the callable that the pipeline passes in. Within its bound the enumeration is
exhaustive; every prune is counted. Units can be run by several processes (``shared_units.py``), but
the plans are walked by one: what the search takes, counts and reports does not depend on them.
"""

import time
from contextlib import suppress
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
  try:
    with deadline.until(start + budget_s):
      return _searched(
        region, target, verify, bound or default_bound(space), space, budget_s, axioms, allow,
        hooks or Hooks(), workers, worth_us,
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
  worth_us: float,
) -> SearchResult:
  start = time.monotonic()
  meter = ProgressMeter(region.key, budget_s, ends.emit)
  units = SharedUnits(region, target, limits, axioms, space, allow, workers=workers, kin=ends.kin)
  kept = KeptUnits(units, ends.store if allow is None else NoStore())
  total = Counts()
  out: list[Verified] = []

  def poll(running: Counts | None = None) -> None:
    """Called between pieces of work; ``running`` are the counts of a unit that is not done."""
    stop = Stop.BUDGET if time.monotonic() > start + budget_s else ends.stop()
    if stop is not None:
      raise StoppedError(stop)
    if meter.is_due:
      meter.tick(
        units.states + (running.states if running else 0),
        total.pruned,
        min(
          (v.candidate.predicted_us for v in (*out, *chain(*early.values()))),
          default=None,
        ),
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
  accepted: dict[str, ProofLike | Rejection] = {}
  refused: list[Rejection] = []
  early, slow = dict[str, list[Verified]](), set[str]()
  taken: dict[str, KernelPlan] = {}
  good, stop = 0, Stop.EXHAUSTED

  def judged(plan: KernelPlan, graph: UGraph, text: str) -> list[Verified]:
    """What is proven of a plan; nothing where it is refused, or not worth a proof."""
    numbers = list(plans.numbers(plan))
    if worth_us < inf:
      every = (Candidate(graph, p, us) for us, p in numbers)
      if late := too_slow(region, every, target, worth_us):
        accepted[text], plans.found, taken[text] = late, True, plan
        refused.append(late)
        return []
    verdict = accepted[text] = verify(region, graph, numbers[0][1])
    if isinstance(verdict, Rejection):
      refused.append(verdict)
      plans.blame.learn(verdict, tuple(b for _, b in plan.kernels))
      return []
    plans.found, taken[text] = True, plan
    graph = with_limits(region, proven_graph(verdict, graph))
    return [Verified(Candidate(graph, p, us), verdict) for us, p in numbers]

  try:
    try:
      walk = plans.cheapest_first()
      # Asked before the walk goes on: to the next plan, which nobody wants, it may be far.
      while good < limits.verified and len(accepted) < limits.tried:
        if (found := next(walk, None)) is None:
          break
        plan, is_early = found
        poll()
        graph = plans.ugraph(plan)
        text = print_ugraph(graph)
        if text in accepted:
          if text in early and not is_early:  # Now it is its turn.
            proven = early.pop(text)
            good += not is_partial(proven[0].proof)
            out += proven
          elif text in slow and not is_early:
            slow.discard(text)
            good += 1
          else:
            counts.prune("the same program twice")
          continue
        proven = judged(plan, graph, text)
        if proven and is_early:
          early[text] = proven
        elif proven:
          good += not is_partial(proven[0].proof)
          out += proven
        elif text in taken:
          # One of the best, as if it were proven: what comes next is no better by the search's own cost.
          slow |= {text} if is_early else set()
          good += not is_early
    except StateLimitError:
      stop = Stop.STATE_LIMIT
    with suppress(StateLimitError):
      for plan in islice(certain_plans(plans, known, run, taken.values()), CERTAIN):
        poll()
        graph = plans.ugraph(plan)
        text = print_ugraph(graph)
        if text not in accepted and (proven := judged(plan, graph, text)):
          good += not is_partial(proven[0].proof)
          out += proven
          break
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
  if stop is not Stop.EXHAUSTED or not out:
    good += len(early)
    out += chain(*early.values())
  if stop is Stop.EXHAUSTED and not units.complete:
    stop = Stop.STATE_LIMIT
  counts.pruned.update(total.pruned)
  counts.pruned.update(units.pruned)
  for u in results:
    refused += u.reasons
  report = SearchReport(
    seconds=time.monotonic() - start,
    states=units.states,
    built=sum(u.built for u in results),
    verified=good,
    stop=stop,
    pruned=tuple(sorted(counts.pruned.items())),
    refused=tuple(refused),
  )
  ranked = sorted(out, key=lambda v: v.candidate.predicted_us)
  return SearchResult(varied(ranked, limits.candidates), report)
