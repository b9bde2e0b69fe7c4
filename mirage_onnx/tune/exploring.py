"""Which regions are timed, in which order, and when that ends: the best expected gain per second first.

    expected gains (``expected.py``) of what was not timed, over what was --choice--> the regions to time
    the first few of them --tune--> what they take --> expected gains again

Where regions are still searched, those that are known are timed meanwhile, fewer between two choices, and
what is searched next is what the choice would take of the rest; no search is begun that is not worth its
seconds. What predictions would choose comes first (``predicted_first.py``). What is next is chosen while
something is timed, so that the GPU does not wait for the choice.

It ends when what is left is expected to bring less than a small part of the model's time, or less than the
seconds that it takes are worth; a larger budget is more patient. Equal regions are one.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum

from mirage_onnx.choosing.choice_process import RoughChoice, RoughHere
from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Program
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.tune.arriving import POLL_S, Arriving, Hands, News, Timed
from mirage_onnx.tune.expected import Expectations
from mirage_onnx.tune.kept_ends import UNSEARCHED, KeptEnds
from mirage_onnx.tune.outcome import Outcome

#: Parts of the model's time that are still worth something: at most, of what was gained so far, and at least.
#: What is left out so is 2 % of the gain at most, as far as it is expected.
WORTH_OF_MODEL, WORTH_OF_GAIN, LEAST_OF_MODEL = 0.005, 0.02, 0.001
#: What a second of timing has to bring, in parts of the model's time: twice as much gives 94 % of the gain of
#: 20 minutes, this 98 % (tests/tune/test_exploring_budget.py).
WORTH_PER_S = 0.0005
#: A region that is expected to bring less is not asked about.
LEAST_OF_REGION = 0.0005
#: Of what is not searched, so many are asked about: the choice takes seconds where there are hundreds.
UNSEARCHED_MOST = 64
#: Places of regions that are asked about, of what was searched and of what was not, those that gain most
#: first: of 28 layers there are 7,000, and a choice among them took 6 s.
PLACES_MOST = 2000
#: Regions that are timed before the choice is made again.
ROUND = 6
#: Seconds that a region has at least, and that a choice of what is timed next may take.
LEAST_S, PLAN_S = 5.0, 4.0
#: Where a choice takes longer, what seems best by itself is timed first: of 311 regions of 28 layers one took
#: 7 to 14 s on 16 cores, and the GPU waited for three of them.
SLOW_PLAN_S = 2.0
#: Seconds without a choice behind one, of its own: it takes one core and what Python's threads share, while
#: others search and compile. Where the GPU would wait none is rested.
REST = 3.0
#: Decimals of microseconds of guesses: equal layers are then equal to the last bit, and are one problem.
DECIMALS = 2
#: Regions that wait for a hand beyond those that have one, so that none waits for a choice.
SPARE = 1
#: The most that it has of the time that is left, where that is more.
SHARE = 0.1

#: Compiles and times a region, in so many seconds.
Tune = Callable[[Outcome, float], Outcome]
#: Of all outcomes, until then: what predictions would choose of what is not timed, and what each would gain.
First = Callable[[Mapping[str, Outcome], float], Mapping[str, float]]
#: Told which regions come next, so that they can be made ready.
Soon = Callable[[Sequence[Outcome]], None]


@dataclass(frozen=True, slots=True)
class TimingPlan:
  """``order``: keys to time, the most gain per second first; ``gain_us``: expected, of each.

  ``searches``: keys that are not searched yet, but are part of the choice, in the same order. ``model_us``:
  what the model takes now, ``gained_us``: what was gained so far.
  """

  order: tuple[str, ...]
  gain_us: Mapping[str, float]
  model_us: float
  gained_us: float
  searches: tuple[str, ...] = ()

  def begun_with(
    self, first: Mapping[str, float], expected: Expectations, found: Mapping[str, Outcome], patience: float,
    busy: Container[str],
  ) -> "TimingPlan":  # fmt: skip
    """With these keys in front, but for those that gain too little for the seconds that they take."""
    least = self.model_us * WORTH_PER_S / patience
    gain_us = {k: us for k, us in first.items() if us >= least * expected.seconds(found[k]) and k not in busy}
    order = (*gain_us, *(k for k in self.order if k not in gain_us))
    return replace(self, order=order, gain_us={**gain_us, **self.gain_us})


def explored(
  program: Program,
  outcomes: Mapping[str, Outcome],
  node_us: Mapping[str, float],
  alone: Mapping[str, tuple[str, float]] | None,
  expected: Expectations,
  tune: Tune,
  *,
  ends: Ends,
  late: Callable[[Outcome], Rejection],
  patience: float = 1.0,
  soon: Soon = lambda some: None,
  starts: Callable[[Sequence[Outcome]], None] = lambda some: None,
  arriving: Arriving | None = None,
  at_once: int = 1,
  known: Callable[[Outcome], bool] = lambda o: False,
  kept: KeptEnds | None = None,
  first: First = lambda found, until: {},
  choice: RoughChoice | None = None,
) -> tuple[dict[str, Outcome], str]:
  """``outcomes`` with what was timed, the rest refused; and how many were timed, and why no more.

  ``late``: the refusal where the time is over. ``patience``: how much more than usual a second may be
  wasted. ``starts``: told of what is timed next. ``arriving``: ``outcomes`` without a
  result are still searched, and come. ``at_once``: regions that are timed at a time. ``known``: whether all
  that is asked about a region is known; such regions come first, which takes no time, and no choice is made
  before. ``first``: what comes before all else, where it is worth its seconds. ``choice``: who chooses.
  ``kept``: where an earlier run has ended, this one does (of ``outcomes`` without a result those are
  refused that it has not searched).
  """
  found, news = dict(outcomes), arriving.news if arriving else News()
  plans = partial(
    planned, node_us=node_us, expected=expected, choice=choice or RoughHere(program, node_us, alone)
  )
  waiting = {key for key, o in found.items() if arriving and o.rejection is None and o.result is None}
  heard, told, timed, why, rested, plan_s = True, False, 0, "", 0.0, 0.0
  queue = deque[tuple[str, float]]()
  end = kept.known if kept else None
  comes = (lambda o: o.region.key in end.timed) if end else known
  again = deque(key for key, o in found.items() if _is_open(o) and o.result is not None and comes(o))
  repeated, cut_short, done = set(again), dict[str, Outcome](), list[str]()
  with Hands(tune, at_once, news, SPARE) as hands:
    while True:
      if ends.over:
        queue.clear()
        again.clear()
        hands.cancel()
        why = "the run was stopped" if ends.stopped() else "the time was over"
      elif (
        end is None and heard and len(queue) < at_once and not again and repeated.isdisjoint(hands.busy)
        and (time.monotonic() > rested or (not queue and hands.are_free))
      ):  # fmt: skip
        if plan_s > SLOW_PLAN_S and not (timed or hands.busy or queue):
          queue.extend((key, at_once * LEAST_S) for key in likely(found, node_us, expected, at_once))
          if queue:
            continue
        heard, begun = False, time.monotonic()
        until = min(ends.at, begun + PLAN_S)
        plan = plans(found, until=until, busy=hands.busy)
        wanted = plan
        if waiting and len(plan.order) < at_once:  # the GPU does not wait for what is not searched
          ready = {key: o for key, o in found.items() if o.result is not None or o.rejection is not None}
          plan = plans(ready, until=until, busy=hands.busy)
        plan = plan.begun_with(first(found, until), expected, found, patience, hands.busy)
        why = enough(plan, plan.order, expected, found, patience)
        if arriving and waiting:
          arriving.preferred = wanted.searches
          # What is timed now may say more of what is searched.
          if not hands.busy and why and enough(wanted, wanted.searches, expected, found, patience):
            wanted = plans(found, until=until, busy=hands.busy, most=len(found))
            arriving.preferred = wanted.searches
            if enough(wanted, wanted.searches, expected, found, patience):
              arriving.leave()
        if not why:
          worth = plan.model_us * WORTH_PER_S / patience
          some = plan.order[: at_once + 1 if waiting else ROUND]
          most = max(LEAST_S, SHARE * ends.seconds_left)
          seconds = {key: at_once * min(most, max(LEAST_S, plan.gain_us[key] / worth)) for key in some}
          queue = deque(seconds.items())
        else:
          queue.clear()
        now = time.monotonic()
        plan_s = now - begun
        rested = now + REST * plan_s
      if arriving and not waiting and not told:
        told = True
        arriving.over()
      if (again or queue) and hands.are_free:
        soon([found[key] for key in (*again, *(key for key, _ in queue))][: 1 + at_once])
        key, has_s = (again.popleft(), at_once * LEAST_S) if again else queue.popleft()
        starts([found[key]])
        hands.begin(found[key], has_s)
        continue
      if not (hands.busy or waiting):
        break
      for one in news.take(POLL_S if ends.over else min(POLL_S, ends.seconds_left)):
        heard = True
        if isinstance(one, Timed):
          key = one.before.region.key
          found[key] = after = hands.end(one)
          if _is_cut(after) and key not in cut_short and not ends.over:
            found[key] = one.before  # beside the searches its share was short; what it compiled is kept
            cut_short[key] = after
          expected.learn(one.before, after, one.seconds / at_once)
          done += [] if _is_cut(after) else [key]
          timed += 1
        elif one.outcome is not None:
          o = one.outcome
          waiting.discard(o.region.key)
          if o.result is not None:
            expected.searched(o)
          cut = arriving and arriving.is_left and o.rejection and o.rejection.code == "INTERRUPTED"
          if cut and not ends.stopped():
            o = replace(o, rejection=Rejection("NOT_TIMED", UNSEARCHED, o.region.nodes))
          found[o.region.key] = o
          if _is_open(o) and comes(o):
            again.append(o.region.key)
            repeated.add(o.region.key)
        elif one.error is not None:
          raise one.error
        else:
          waiting.clear()
  if end:
    why = why or end.why
  elif kept and not ends.over:
    kept.keep(found, done, why)
  left = [key for key, o in found.items() if o.rejection is None and o.compiled is None]
  if not left:
    return found, f"{timed} of {timed} regions timed, all of them were" if timed else ""
  reason = "timing it was expected to bring less than it takes"
  for key in left:
    o = found[key]
    if key in cut_short:
      found[key] = cut_short[key]
      continue
    why_not = late(o) if ends.over else Rejection("NOT_TIMED", reason, o.region.nodes)
    found[key] = replace(o, rejection=why_not)
  return found, f"{timed} of {timed + len(left)} regions timed, {why}"


def _is_cut(o: Outcome) -> bool:
  """Whether the share of time that it had was over before anything of it was timed."""
  return o.rejection is not None and o.rejection.code == "BUDGET"


def _is_open(o: Outcome) -> bool:
  """Whether a region was neither refused nor timed yet."""
  return o.rejection is None and o.compiled is None


def planned(
  found: Mapping[str, Outcome],
  node_us: Mapping[str, float],
  expected: Expectations,
  choice: RoughChoice,
  until: float,
  busy: Container[str] = (),
  most: int = UNSEARCHED_MOST,
) -> TimingPlan:
  """What to time, of ``found``: the choice in which what is not known counts as much as it may gain.

  What is ``busy`` being timed is not known either, but is no part of the answer. ``most``: of what is not
  searched, those that are asked about.

  That is what is expected over the best choice of what was timed. (Taking the best a second, one after the
  other, needs twice as many for as much: several small regions may be worth more than one large one.)
  """
  known = [(c, o) for o in found.values() if o.rejection is None and o.compiled for c in o.instances]
  prices = [o.price_us(0.0) for _, o in known]
  picked = choice([c for c, _ in known], [round(p, DECIMALS) for p in prices], until) if known else ()
  now_us = dict(node_us)
  for i in picked:
    c = known[i][0]
    whole = _sum(node_us, c)
    if whole > 0:
      part = min(1.0, prices[i] / whole)
      now_us |= {n: us * part for n in c.nodes if (us := now_us.get(n)) is not None}
  model_us = max(fsum(now_us.values()), 1e-9)
  asked = list[tuple[float, Outcome, list[float]]]()
  for o in found.values():
    if _is_open(o):
      own = [expected.gain_us(o, c, _sum(now_us, c)) for c in o.instances]
      if (whole_us := fsum(own)) >= LEAST_OF_REGION * model_us:
        asked.append((whole_us, o, own))
  asked.sort(key=lambda a: (a[1].result is None, -a[0], a[1].region.key))
  unsearched = [n for n, (_, o, _) in enumerate(asked) if o.result is None]
  first = unsearched[0] if unsearched else len(asked)
  offered, gains = list[tuple[RegionCandidate, Outcome]](), list[float]()
  for some in (asked[:first], asked[first : first + most]):
    end = len(gains) + PLACES_MOST
    for _, o, own in some:
      if len(gains) >= end:
        break
      offered += [(c, o) for c in o.instances]
      gains += own
  count = len(known)
  both = [c for c, _ in known] + [c for c, _ in offered]
  # With these prices a choice gains what it takes over now, and what is expected beyond that.
  prices += [_sum(now_us, c) - gain for (c, _), gain in zip(offered, gains, strict=True)]
  taken = choice(both, [round(p, DECIMALS) for p in prices], until) if offered else ()
  gain_us = defaultdict[str, float](float)
  for i in taken:
    if i >= count and (key := offered[i - count][1].region.key) not in busy:
      gain_us[key] += gains[i - count]
  order = sorted(gain_us, key=lambda key: (-gain_us[key] / expected.seconds(found[key]), key))
  ready = tuple(key for key in order if found[key].result is not None)
  searches = tuple(key for key in order if found[key].result is None)
  return TimingPlan(ready, dict(gain_us), model_us, fsum(node_us.values()) - model_us, searches)


def likely(
  found: Mapping[str, Outcome], node_us: Mapping[str, float], expected: Expectations, count: int
) -> list[str]:
  """At most so many keys of what was searched that may gain most a second, each by itself."""
  rates = list[tuple[float, str]]()
  for key, o in found.items():
    if _is_open(o) and o.result is not None:
      gain_us = fsum(expected.gain_us(o, c, _sum(node_us, c)) for c in o.instances)
      rates.append((-gain_us / expected.seconds(o), key))
  return [key for rate, key in sorted(rates)[:count] if rate < 0]


def enough(
  plan: TimingPlan,
  keys: Sequence[str],
  expected: Expectations,
  found: Mapping[str, Outcome],
  patience: float = 1.0,
) -> str:
  """Why none of ``keys`` is timed (or searched) any more, or nothing."""
  if not keys:
    return "no other was expected to gain anything"
  model_us, left_us = plan.model_us, fsum(plan.gain_us[key] for key in keys)
  worth_us = max(LEAST_OF_MODEL * model_us, min(WORTH_OF_MODEL * model_us, WORTH_OF_GAIN * plan.gained_us))
  if left_us < worth_us / patience:
    return f"the others were expected to gain {left_us / model_us:.2%} of the model's time"
  seconds = {key: expected.seconds(found[key]) for key in keys}
  rate = max(plan.gain_us[key] / seconds[key] for key in keys) / model_us
  if rate < WORTH_PER_S / patience:
    return f"the others were expected to gain {rate:.3%} of the model's time a second at most"
  return ""


def _sum(us: Mapping[str, float], c: RegionCandidate) -> float:
  return fsum(us.get(n, 0.0) for n in c.nodes)
