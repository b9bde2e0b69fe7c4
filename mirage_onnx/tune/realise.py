"""Choose regions, compile (and measure) their kernels, and choose again without what failed."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from math import fsum, prod

from mirage_onnx import deadline, events
from mirage_onnx.codegen.candidates import Compiled, compile_candidates
from mirage_onnx.cores import available_cores
from mirage_onnx.deadline import NEVER, Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.events import WorkEnded, WorkStarted
from mirage_onnx.failures import guarded, refusal
from mirage_onnx.importer import LoadedModel
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import Candidate as IrCandidate
from mirage_onnx.ir import KernelParams, Program, Region
from mirage_onnx.match.candidates import Candidate
from mirage_onnx.match.disappearing import shares
from mirage_onnx.match.partition import choose
from mirage_onnx.superopt.result import varied
from mirage_onnx.target import Target
from mirage_onnx.tune.beside import with_siblings
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.instances import Chosen, InstanceChecks
from mirage_onnx.tune.measure import measure_region
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.refine import by_warpgroups, other_numbers

#: Where the fastest program has a tiled kernel, so many times as many of its numbers are tried in
#: the second look, and in all.
MORE, MOST = 3, 10
#: Elements of the largest tensor of a measurement at other sizes; its check is in float64.
MOST_MEASURED = 1 << 24
#: Looks at the numbers of a region go on for so many times its even share of the time, or so long.
FAIR, LEAST_S = 4.0, 5.0
#: Whether a program ran, and why it is refused if it does not do what the region does.
Look = Callable[[Region, IrCandidate], tuple[str, Rejection | None]]


def realise(
  loaded: LoadedModel,
  program: Program,
  outcomes: Mapping[str, Outcome],
  node_us: Mapping[str, float],
  target: Target,
  *,
  margin: float,
  measure: bool,
  tries: int,
  dynamic: Dynamic | None = None,
  instances: InstanceChecks | None = None,
  alone: Mapping[str, tuple[str, float]] | None = None,
  ends: Ends = NEVER,
  checks: Ends | None = None,
  look: Look | None = None,
  emit: events.Emit = events.silent,
) -> tuple[tuple[Chosen, ...], dict[str, Outcome]]:
  """The chosen instances, each with compiled kernels, and all outcomes by region key.

  Where it measures, those that do not need each other may be one (``beside.py``).

  A region wins by ``margin`` against its own nodes, or it is refused; among those that do, the
  choice is by what is expected, so that half of a region is not taken because it wins by more. One
  that wins by less against the nodes that disappear with it (others still read some) has to win
  by the margin in the choice too.

  ``tries``: candidates that are compiled (and timed) per region at most. ``dynamic``: what
  is known of other sizes. ``instances``: asked whether those that are chosen are safe with
  their own weights. ``alone``: as ``choose``. ``ends``: what is not compiled (and timed) by
  then stays as it was, the least gain first. ``checks``: the end of the questions to ``instances``, after
  ``ends``: else all time would go into timing what is refused then.
  ``look``: asked about each program that is chosen by prediction; one that it refuses makes way
  for the next.
  """
  found = dict(outcomes)
  picked, prices, doubted = tuple[int, ...](), list[float](), set[int]()
  while True:
    live = [(c, o) for o in found.values() if o.rejection is None for c in o.instances]
    before, prices = prices, [_price_us(c, o, margin, doubted) for c, o in live]
    if prices != before:  # else they are the same candidates: nothing was refused
      picked = choose(program, [c for c, _ in live], prices, node_us, alone, ends.at)
    chosen = tuple(live[i] for i in picked)
    if doubts := _doubts(program, chosen, node_us, margin) - doubted:
      doubted |= doubts
      continue
    todo = _most_gain_first([(c, o) for c, o in chosen if o.compiled is None], node_us, margin)
    if todo and ends.over:
      waiting = [o for o in found.values() if o.rejection is None and o.compiled is None]
      found |= {o.region.key: replace(o, rejection=_too_late(o, ends)) for o in waiting}
      continue
    if not todo and instances and (unsafe := instances.refused(chosen, checks or ends)):
      found |= unsafe
    elif not todo and dynamic and (less := dynamic.losers(chosen)):
      found |= less
    elif not todo:
      # Sums over sets are exact (fsum): a set has another order in every process, and ties are
      # broken by place. Most gain first: where names run out, the least is left as it was.
      gain = [
        _price_us(c, o, margin, doubted) - fsum(node_us.get(n, 0.0) for n in c.nodes) for c, o in chosen
      ]
      order = sorted(range(len(chosen)), key=lambda i: (gain[i], i))
      chosen = tuple(chosen[i] for i in order)
      if measure:
        nodes = tuple(n for c, _ in chosen for n in c.region.nodes)
        join = partial(with_siblings, loaded, program, chosen, target, ends, instances)
        joined = guarded("kernels beside each other", nodes, join)
        if not isinstance(joined, Rejection):  # else each stays a node of its own
          chosen, together = joined
          found |= together
      return chosen, found
    emit(events.RegionsStarted("tune", tuple((key, found[key].region.nodes) for key in todo)))
    for n, key in enumerate(todo):
      if ends.over:
        break
      share = max(LEAST_S, FAIR * ends.seconds_left / (len(todo) - n))
      own = replace(ends, at=min(ends.at, time.monotonic() + share))
      o = found[key]
      emit(WorkStarted("compile", 0, key))
      try:
        with deadline.until(ends.at):
          o = _compile(loaded, o, target, measure=measure, tries=tries, ends=own, look=look)
          if dynamic and o.measured and o.compiled:
            o = _elsewhere(loaded, o, o.compiled, dynamic, target)
      except deadline.OverdueError:
        o = replace(o, compiled=None, measured=None, rejection=_too_late(o, ends))
      except Exception as error:
        why = refusal(error, "compile or measurement", o.region.nodes)
        o = replace(o, compiled=None, measured=None, rejection=why)
      emit(WorkEnded("compile", 0, key))
      found[key] = o
      emit(_tuned(o))


def _tuned(o: Outcome) -> events.RegionTuned:
  predicted = o.compiled.candidate.predicted_us if o.compiled else None
  us = o.measured.kernel_us if o.measured else predicted
  return events.RegionTuned(o.region.key, o.region.nodes, us, o.rejection.code if o.rejection else None)


def _most_gain_first(todo: Sequence[Chosen], node_us: Mapping[str, float], margin: float) -> list[str]:
  """The keys of what is chosen and not compiled, in the order of what all instances save."""
  gain = defaultdict[str, float](float)
  for c, o in todo:
    gain[o.region.key] += fsum(node_us.get(n, 0.0) for n in c.nodes) - o.price_us(min(margin, 0.0))
  return sorted(gain, key=lambda key: (-gain[key], key))


def _too_late(o: Outcome, ends: Ends) -> Rejection:
  """Why a region that there was no time for stays: nothing is replaced that was not looked at."""
  if ends.stopped():
    return Rejection("INTERRUPTED", "the run was stopped before its kernels were ready", o.region.nodes)
  return Rejection("BUDGET", "the time ended before its kernels were compiled and timed", o.region.nodes)


def _price_us(instance: Candidate, outcome: Outcome, margin: float, doubted: Set[int]) -> float:
  """What an instance costs in the choice. A margin below 0 (it may be slower) counts for all."""
  return outcome.price_us(margin if id(instance) in doubted else min(margin, 0.0))


def _doubts(
  program: Program, chosen: Sequence[Chosen], node_us: Mapping[str, float], margin: float
) -> set[int]:
  """The instances that win by less than the margin against their share of what disappears."""
  share = shares(program, [c for c, _ in chosen], node_us)
  return {id(c) for c, o in chosen if o.price_us(margin) > fsum(share.get(n, 0.0) for n in c.nodes)}


def _compile(
  loaded: LoadedModel,
  outcome: Outcome,
  target: Target,
  *,
  measure: bool,
  tries: int,
  ends: Ends,
  look: Look | None,
) -> Outcome:
  region, result = outcome.region, outcome.result
  assert result is not None
  candidates = [v.candidate for v in varied(result.candidates, tries)]
  beside = _by_warpgroups(region, candidates, target, tries) if measure else []
  keep, workers = (tries, available_cores()) if measure else (1, 1)
  compiled, refused = compile_candidates(region, candidates, target, keep=keep, workers=workers)
  if beside:
    compiled += compile_candidates(region, beside, target, keep=tries, workers=workers)[0]
  if not compiled:
    return replace(outcome, rejection=refused[0])
  if not measure:
    return _looked_at(outcome, compiled[0], candidates, target, look)

  looked, asked = set[tuple[KernelParams, ...]](), [c.candidate for c in compiled]

  def more(best: Compiled, tried: Sequence[Compiled]) -> Sequence[Compiled]:
    # First numbers of every kind, then the neighbours of each that turns out the fastest.
    near = len(tried) > len(compiled)
    at, left = best.candidate.params, MOST * tries - len(tried)
    if left <= 0 or at in looked or ends.over:
      return ()
    looked.update([at] if near else [])
    count = min(left, 2 * tries if near else MORE * tries)
    # What the compiler refused is not asked again either.
    known = {c.params for c in asked if c.ugraph == best.candidate.ugraph} if near else None
    if WGMMA.name in {p.instruction for p in at}:
      own = by_warpgroups(region, best.candidate, target, count)
      others = tuple(c for c in own if c.params not in {a.params for a in asked})
    else:
      others = other_numbers(region, best.candidate, target, count, known)
    asked.extend(others)
    return compile_candidates(region, others, target, keep=count, workers=workers)[0]

  best, measured = measure_region(loaded, region, compiled, target, more)
  if isinstance(measured, Rejection):
    return replace(outcome, rejection=measured)
  return replace(outcome, compiled=best, measured=measured)


def _by_warpgroups(
  region: Region, candidates: Sequence[IrCandidate], target: Target, count: int
) -> list[IrCandidate]:
  """Of every µGraph the best numbers with wgmma, then the second best, ..."""
  graphs = list({c.ugraph: c for c in reversed(candidates)}.values())[::-1]
  own = [by_warpgroups(region, c, target, count) for c in graphs]
  most = max(map(len, own), default=0)
  return [found[n] for n in range(most) for found in own if n < len(found)][:count]


def _looked_at(
  outcome: Outcome, best: Compiled, candidates: Sequence[IrCandidate], target: Target, look: Look | None
) -> Outcome:
  """``outcome`` with the first program that compiles and that ``look`` does not refuse."""
  region = outcome.region
  while look is not None:
    ran, wrong = look(region, best.candidate)
    if wrong is None:
      return replace(outcome, compiled=best, ran=ran)
    candidates = candidates[candidates.index(best.candidate) + 1 :]
    others = compile_candidates(region, candidates, target, keep=1)[0]
    if not others:
      return replace(outcome, rejection=wrong)
    best = others[0]
  return replace(outcome, compiled=best)


def _elsewhere(
  loaded: LoadedModel, outcome: Outcome, best: Compiled, dynamic: Dynamic, target: Target
) -> Outcome:
  """``outcome``, refused where its kernels are wrong or slower at other sizes of a run."""
  for region in dynamic.sized(outcome.region)[1:]:
    shapes = [region.shape(t.source) for t in (*region.inputs, *region.outputs)]
    if max(map(prod, shapes)) > MOST_MEASURED:
      continue
    _, measured = measure_region(loaded, region, [best], target)
    if isinstance(measured, Rejection):
      at = " ".join(f"{name}={size}" for name, size in region.symbols.items())
      reason = f"at {at}: {measured.reason}"
      refusal = Rejection(measured.code, reason, measured.nodes)
      return replace(outcome, compiled=None, measured=None, rejection=refusal)
  return outcome
