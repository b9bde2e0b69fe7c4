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
from dataclasses import KW_ONLY, dataclass, field, replace
from math import fsum

from mirage_onnx.choosing.choice_process import RoughChoice, RoughHere
from mirage_onnx.deadline import Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Program
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.superopt.result import Stop
from mirage_onnx.tune.arriving import POLL_S, Arriving, Hands, News, Searched, Timed
from mirage_onnx.tune.expected import Expectations
from mirage_onnx.tune.kept_ends import UNSEARCHED, End, KeptEnds
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


@dataclass(slots=True)
class Exploration:
  """One exploration of ``outcomes``.

  ``late``: the refusal where the time is over. ``patience``: how much more than usual a second may be
  wasted. ``soon``, ``starts``: told of what comes next, and of what begins. ``arriving``: those without a
  result are still searched, and come. ``at_once``: regions that are timed at a time. ``known``: whether all
  that is asked about a region is known; such regions come first, which takes no time, and no choice is made
  before. ``first``: what comes before all else, where it is worth its seconds. ``choice``: who chooses.
  ``kept``: where an earlier run has ended, this one does (of ``outcomes`` without a result those are
  refused that it has not searched).
  """

  program: Program
  outcomes: Mapping[str, Outcome]
  node_us: Mapping[str, float]
  alone: Mapping[str, tuple[str, float]] | None
  expected: Expectations
  tune: Tune
  _: KW_ONLY
  ends: Ends
  late: Callable[[Outcome], Rejection]
  patience: float = 1.0
  soon: Soon = lambda some: None
  starts: Callable[[Sequence[Outcome]], None] = lambda some: None
  arriving: Arriving | None = None
  at_once: int = 1
  known: Callable[[Outcome], bool] = lambda o: False
  kept: KeptEnds | None = None
  first: First = lambda found, until: {}
  choice: RoughChoice | None = None
  #: By key: what is known by now, and what would be said of those whose share of the time was short.
  found: dict[str, Outcome] = field(init=False)
  cut_short: dict[str, Outcome] = field(init=False, default_factory=dict)
  #: Keys: still searched, timed in an earlier run, to be timed (for so many seconds), and timed in this run.
  waiting: set[str] = field(init=False)
  again: deque[str] = field(init=False)
  repeated: set[str] = field(init=False)
  queue: deque[tuple[str, float]] = field(init=False, default_factory=deque)
  done: list[str] = field(init=False, default_factory=list)
  timed: int = field(init=False, default=0)
  #: Why no more is timed; whether something was heard since the last choice, how long that took, and until
  #: when there is no other one.
  why: str = field(init=False, default="")
  heard: bool = field(init=False, default=True)
  plan_s: float = field(init=False, default=0.0)
  rested: float = field(init=False, default=0.0)
  hands: Hands = field(init=False)
  end: End | None = field(init=False, default=None)

  def __post_init__(self) -> None:
    self.found = dict(self.outcomes)
    self.choice = self.choice or RoughHere(self.program, self.node_us, self.alone)
    self.end = self.kept.known if self.kept else None
    every = self.found.items()
    self.waiting = {k for k, o in every if self.arriving and o.rejection is None and o.result is None}
    self.again = deque(key for key, o in every if o.result is not None and self._comes_again(o))
    self.repeated = set(self.again)

  def run(self) -> tuple[dict[str, Outcome], str]:
    """``outcomes`` with what was timed, the rest refused; and how many were timed, and why no more."""
    news, told = self.arriving.news if self.arriving else News(), False
    with Hands(self.tune, self.at_once, news, SPARE) as self.hands:
      while True:
        if self.ends.over:
          self.queue.clear()
          self.again.clear()
          self.hands.cancel()
          self.why = "the run was stopped" if self.ends.stopped() else "the time was over"
        elif self._is_time_to_choose():
          if self.plan_s > SLOW_PLAN_S and not (self.timed or self.hands.busy or self.queue):
            few = likely(self.found, self.node_us, self.expected, self.at_once)
            self.queue.extend((key, self.at_once * LEAST_S) for key in few)
            if self.queue:
              continue
          self._choose()
        if self.arriving and not self.waiting and not told:
          told = True
          self.arriving.over()
        if (self.again or self.queue) and self.hands.are_free:
          self._begin()
          continue
        if not (self.hands.busy or self.waiting):
          break
        for one in news.take(POLL_S if self.ends.over else min(POLL_S, self.ends.seconds_left)):
          self._hear(one)
    return self._said()

  def _comes_again(self, o: Outcome) -> bool:
    """Whether no choice is made of it: an earlier run has timed it, or all about it is known."""
    return _is_open(o) and (o.region.key in self.end.timed if self.end else self.known(o))

  def _is_time_to_choose(self) -> bool:
    if self.end is not None or not self.heard or len(self.queue) >= self.at_once or self.again:
      return False
    if not self.repeated.isdisjoint(self.hands.busy):
      return False
    return time.monotonic() > self.rested or (not self.queue and self.hands.are_free)

  def _planned(self, found: Mapping[str, Outcome], until: float, most: int = UNSEARCHED_MOST) -> TimingPlan:
    assert self.choice is not None
    return planned(
      found, node_us=self.node_us, expected=self.expected, choice=self.choice, until=until,
      busy=self.hands.busy, most=most,
    )  # fmt: skip

  def _choose(self) -> None:
    """What is timed next, for how long, and what is searched."""
    self.heard, begun = False, time.monotonic()
    until = min(self.ends.at, begun + PLAN_S)
    plan = wanted = self._planned(self.found, until)
    if self.waiting and len(plan.order) < self.at_once:  # the GPU does not wait for what is not searched
      ready = {key: o for key, o in self.found.items() if o.result is not None or o.rejection is not None}
      plan = self._planned(ready, until)
    first = self.first(self.found, until)
    plan = plan.begun_with(first, self.expected, self.found, self.patience, self.hands.busy)
    self.why = enough(plan, plan.order, self.expected, self.found, self.patience)
    if self.arriving and self.waiting:
      self._prefer(wanted, until, self.arriving)
    self.queue.clear()
    if not self.why:
      worth = plan.model_us * WORTH_PER_S / self.patience
      most = max(LEAST_S, SHARE * self.ends.seconds_left)
      for key in plan.order[: self.at_once + 1 if self.waiting else ROUND]:
        self.queue.append((key, self.at_once * min(most, max(LEAST_S, plan.gain_us[key] / worth))))
    now = time.monotonic()
    self.plan_s = now - begun
    self.rested = now + REST * self.plan_s

  def _prefer(self, wanted: TimingPlan, until: float, arriving: Arriving) -> None:
    """Says what is searched next, or that nobody wants more."""
    arriving.preferred = wanted.searches
    # What is timed now may say more of what is searched.
    if self.hands.busy or not self.why:
      return
    if enough(wanted, wanted.searches, self.expected, self.found, self.patience):
      wanted = self._planned(self.found, until, most=len(self.found))
      arriving.preferred = wanted.searches
      if enough(wanted, wanted.searches, self.expected, self.found, self.patience):
        arriving.leave()

  def _begin(self) -> None:
    """Gives the next one to a hand."""
    next_ones = (*self.again, *(key for key, _ in self.queue))
    self.soon([self.found[key] for key in next_ones[: 1 + self.at_once]])
    key, has_s = (self.again.popleft(), self.at_once * LEAST_S) if self.again else self.queue.popleft()
    self.starts([self.found[key]])
    self.hands.begin(self.found[key], has_s)

  def _hear(self, one: Searched | Timed) -> None:
    self.heard = True
    if isinstance(one, Timed):
      self._hear_timed(one)
    elif one.outcome is not None:
      self._hear_searched(one.outcome)
    elif one.error is not None:
      raise one.error
    else:
      self.waiting.clear()

  def _hear_timed(self, one: Timed) -> None:
    key = one.before.region.key
    self.found[key] = after = self.hands.end(one)
    if _is_cut(after) and key not in self.cut_short and not self.ends.over:
      self.found[key] = one.before  # beside the searches its share was short; what it compiled is kept
      self.cut_short[key] = after
    self.expected.learn(one.before, after, one.seconds / self.at_once)
    self.done += [] if _is_cut(after) else [key]
    self.timed += 1

  def _hear_searched(self, o: Outcome) -> None:
    key = o.region.key
    self.waiting.discard(key)
    if o.result is not None:
      self.expected.searched(o)
    # Be it with some programs: a repeat does not know what it would have found, and wrote other bytes.
    cut_off = _is_cut(o, "INTERRUPTED") or (o.result and o.result.report.stop is Stop.INTERRUPTED)
    if self.arriving and self.arriving.is_left and cut_off and not self.ends.stopped():
      o = replace(o, rejection=Rejection("NOT_TIMED", UNSEARCHED, o.region.nodes))
    self.found[key] = o
    if self._comes_again(o):
      self.again.append(key)
      self.repeated.add(key)

  def _said(self) -> tuple[dict[str, Outcome], str]:
    """All outcomes, of what was not timed the refusal, and the reason in words."""
    if self.end:
      self.why = self.why or self.end.why
    elif self.kept and not self.ends.over:
      self.kept.keep(self.found, self.done, self.why)
    left = [key for key, o in self.found.items() if o.rejection is None and o.compiled is None]
    if not left:
      return self.found, f"{self.timed} of {self.timed} regions timed, all of them were" if self.timed else ""
    reason = "timing it was expected to bring less than it takes"
    for key in left:
      o = self.found[key]
      why_not = self.late(o) if self.ends.over else Rejection("NOT_TIMED", reason, o.region.nodes)
      self.found[key] = self.cut_short.get(key) or replace(o, rejection=why_not)
    return self.found, f"{self.timed} of {self.timed + len(left)} regions timed, {self.why}"


def _is_cut(o: Outcome, code: str = "BUDGET") -> bool:
  """Whether the share of time that it had was over before anything of it was timed."""
  return o.rejection is not None and o.rejection.code == code


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
