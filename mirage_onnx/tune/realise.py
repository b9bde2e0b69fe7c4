"""Choose regions, compile (and measure) their kernels, and choose again without what failed."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from math import fsum, inf

from mirage_onnx import deadline, events
from mirage_onnx.choosing.choice_process import RoughApart, RoughChoice, RoughHere
from mirage_onnx.choosing.disappearing import shares
from mirage_onnx.choosing.partition import choose
from mirage_onnx.compiler.compile_processes import LEAST_CORES, compiling_in
from mirage_onnx.cores import available_cores
from mirage_onnx.cost.region_work import region_work
from mirage_onnx.deadline import NEVER, Ends
from mirage_onnx.errors import Rejection
from mirage_onnx.events import WorkEnded, WorkStarted
from mirage_onnx.failures import guarded, refusal
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Program
from mirage_onnx.match.candidates import RegionCandidate
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import Target
from mirage_onnx.tune.ahead import Ahead
from mirage_onnx.tune.arriving import Arriving
from mirage_onnx.tune.beside import with_siblings
from mirage_onnx.tune.dynamic import Dynamic
from mirage_onnx.tune.expected import Expectations, kind_of
from mirage_onnx.tune.exploring import Exploration
from mirage_onnx.tune.instances import Chosen, InstanceChecks
from mirage_onnx.tune.kept_ends import KeptEnds
from mirage_onnx.tune.kept_tuning import KeptTuning
from mirage_onnx.tune.measure import complaints_of, draws_of
from mirage_onnx.tune.outcome import Outcome
from mirage_onnx.tune.predicted_first import PredictedFirst
from mirage_onnx.tune.race import Lost
from mirage_onnx.tune.tuning import Look, elsewhere, second_numbers, tuned
from mirage_onnx.verify.weights import ModelWeights

#: Regions that are timed at a time: while some wait for the compiler, or check instances (37 % of the time of
#: qwen3's regions on an H200), another has the GPU. A region for so many cores, which the compiler has.
LEAST_AT_ONCE, MOST_AT_ONCE, CORES = 2, 6, 2
#: Looks at the numbers of a region go on for so many times its even share of the time, or so long.
FAIR, LEAST_S = 4.0, 5.0
#: Where none is timed, those that are compiled and run in the emulator at a time.
MOST_PREDICTED = 4
#: Seconds of a turn of a thread while regions are timed.
TURN_S = 5e-4
#: Seconds that are left for the last look at what is the fastest.
LAST_S = 1.0
#: Of the time that is left, the choice's: what it chooses has to be compiled.
CHOOSING_SHARE = 0.5


@dataclass(slots=True)
class Realisation:
  """The choice among ``outcomes``, compiled (and timed).

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
  for the next. ``patience``, ``arriving``, ``kept``: as of ``Exploration``; ``detail`` is given what it says.
  ``weights``: of the model, with what is known of them. ``predicted_margin``: by which predictions win, where
  it measures: what they would choose is timed first. ``helpers``: has the processes that compile and check
  until it is left; they are of use for what comes behind this, too.
  """

  loaded: LoadedModel
  program: Program
  outcomes: Mapping[str, Outcome]
  node_us: Mapping[str, float]
  target: Target
  _: KW_ONLY
  margin: float
  measure: bool
  tries: int
  dynamic: Dynamic | None = None
  instances: InstanceChecks | None = None
  alone: Mapping[str, tuple[str, float]] | None = None
  ends: Ends = NEVER
  checks: Ends | None = None
  look: Look | None = None
  patience: float = 1.0
  detail: list[str] | None = None
  emit: events.Emit = events.silent
  arriving: Arriving | None = None
  kept: KeptEnds | None = None
  weights: ModelWeights | None = None
  predicted_margin: float = 0.0
  helpers: ExitStack | None = None
  #: By key, what is known by now; places of instances of which a margin counts in the choice.
  found: dict[str, Outcome] = field(init=False)
  doubted: set[int] = field(init=False, default_factory=set)
  tuner: "_Tuner" = field(init=False)

  def __post_init__(self) -> None:
    self.found = dict(self.outcomes)
    self.tuner = _Tuner(
      self.loaded, self.target, self.measure, self.tries, self.ends, self.look, self.dynamic, self.emit,
      self.instances,
    )  # fmt: skip

  def run(self) -> tuple[tuple[Chosen, ...], dict[str, Outcome]]:
    """The chosen instances, each with compiled kernels, and all outcomes by region key."""
    if self.measure:
      self._explore()
    solutions, checks = kept_solutions(), _still_open(self.checks or self.ends, self.ends)
    picked, prices = tuple[int, ...](), list[float]()
    while True:
      live = [(c, o) for o in self.found.values() if o.rejection is None for c in o.instances]
      before, prices = prices, [_price_us(c, o, self.margin, self.doubted) for c, o in live]
      if prices != before:  # else they are the same candidates: nothing was refused
        until = time.monotonic() + CHOOSING_SHARE * self.ends.seconds_left
        offered = [c for c, _ in live]
        picked = choose(self.program, offered, prices, self.node_us, self.alone, until, kept=solutions)
      chosen = tuple(live[i] for i in picked)
      if doubts := _doubts(self.program, chosen, self.node_us, self.margin) - self.doubted:
        self.doubted |= doubts
        continue
      todo = [(c, o) for c, o in chosen if o.compiled is None]
      if not todo:
        if refused := self._refused(chosen, checks):
          self.found |= refused
          continue
        return self._joined(self._by_gain(chosen)), self.found
      if self.ends.over:
        waiting = [o for o in self.found.values() if o.rejection is None and o.compiled is None]
        self.found |= {o.region.key: replace(o, rejection=_too_late(o, self.ends)) for o in waiting}
        continue
      keys = _most_gain_first(todo, self.node_us, self.margin)
      self.found |= self.tuner.all([self.found[key] for key in keys], chosen)

  def _explore(self) -> None:
    """Times what is expected to bring most."""
    tuner, node_us = self.tuner, self.node_us
    draw = lambda o: draws_of(self.loaded, o.region)  # noqa: E731
    more = partial(second_numbers, target=self.target, tries=self.tries)
    at_once = max(LEAST_AT_ONCE, min(MOST_AT_ONCE, available_cores() // CORES))
    tuner.numbers = [*range(at_once)][::-1]
    ended = self.kept is not None and self.kept.known is not None
    weights = self.weights or ModelWeights(self.loaded)
    tuner.kept = KeptTuning(self.loaded, weights, self.target, self.tries, cut_too=ended)
    ahead = Ahead(self.target, self.tries, self.ends.at, draw, more, tuner.kept.knows)
    with ExitStack() as own:
      stays = self.helpers or own
      stays.enter_context(compiling_in(available_cores()))
      if self.instances and available_cores() >= LEAST_CORES:
        stays.enter_context(self.instances.apart(self.loaded, available_cores() // CORES))
      own.enter_context(quick_turns())
      choice = own.enter_context(_rough_choice(self.program, self.found, node_us, self.alone))
      tuner.ahead = own.enter_context(ahead)
      roof = lambda region: region_work(region).floor_us(self.target)  # noqa: E731
      expected = Expectations(node_us, partial(kind_of, target=self.target), roof, available_cores())
      self.found, said = Exploration(
        self.program, self.found, node_us, self.alone, expected, tuner, ends=self.ends,
        late=partial(_too_late, ends=self.ends), patience=self.patience, soon=tuner.ahead.soon,
        starts=tuner.starts, arriving=self.arriving, at_once=at_once, known=tuner.kept.knows, kept=self.kept,
        first=PredictedFirst(choice, node_us, self.predicted_margin), choice=choice,
      ).run()  # fmt: skip
    tuner.ahead = None
    if self.detail is not None and said:
      self.detail.append(said)

  def _refused(self, chosen: Sequence[Chosen], checks: Ends) -> Mapping[str, Outcome]:
    """What of the choice is unsafe with its own weights, or slower at other sizes."""
    if self.instances and (unsafe := self.instances.refused(chosen, checks)):
      return unsafe
    return self.dynamic.losers(chosen) if self.dynamic else {}

  def _by_gain(self, chosen: Sequence[Chosen]) -> tuple[Chosen, ...]:
    """Where names run out, the least is left as it was.

    Sums over sets are exact (fsum): a set has another order in every process, and ties are broken by place.
    """
    gain = [
      _price_us(c, o, self.margin, self.doubted) - fsum(self.node_us.get(n, 0.0) for n in c.nodes)
      for c, o in chosen
    ]
    return tuple(chosen[i] for i in sorted(range(len(chosen)), key=lambda i: (gain[i], i)))

  def _joined(self, chosen: tuple[Chosen, ...]) -> tuple[Chosen, ...]:
    """With those that are faster beside each other in one node."""
    if not self.measure:
      return chosen
    nodes, kept = tuple(n for c, _ in chosen for n in c.region.nodes), self.tuner.kept
    join = partial(
      with_siblings, self.loaded, self.program, chosen, self.target, self.ends, self.instances, kept
    )
    joined = guarded("kernels beside each other", nodes, join)
    if isinstance(joined, Rejection):  # each stays a node of its own
      return chosen
    self.found |= joined[1]
    return joined[0]


@contextmanager
def quick_turns() -> Iterator[None]:
  """Inside, a thread that waits for Python's lock has it sooner.

  Who times makes thousands of calls of the driver, and gets the lock back behind each: beside two threads
  that compute, after 4 ms (1 ms so).
  """
  before = sys.getswitchinterval()
  sys.setswitchinterval(min(before, TURN_S))
  try:
    yield
  finally:
    sys.setswitchinterval(before)


def _rough_choice(
  program: Program,
  outcomes: Mapping[str, Outcome],
  node_us: Mapping[str, float],
  alone: Mapping[str, tuple[str, float]] | None,
) -> AbstractContextManager[RoughChoice]:
  """Who chooses what is timed next: a process, where there are cores for one."""
  here = RoughHere(program, node_us, alone)
  if available_cores() < LEAST_CORES:
    return nullcontext(here)
  return RoughApart(here, [c for o in outcomes.values() for c in o.instances])


def predicting_threads() -> int:
  """How many regions are compiled at a time where none is timed."""
  return min(MOST_PREDICTED, available_cores())


def kept_solutions() -> KeptFolder | None:
  """Choices that earlier runs have proven to be the best, in the user's cache folder."""
  folder = cache_folder("choices")
  setting = {"partition": source_digest("choosing"), "scipy": version("scipy")}
  return None if folder is None else KeptFolder(folder, setting)


def _still_open(checks: Ends, ends: Ends) -> Ends:
  """``checks``, with their own time left where what is before them has ended after ``ends``.

  What was timed is of no use without: of 13 regions of a model on an H100, in 52 s, four went for that.
  """
  own_s = checks.at - ends.at if ends.at < inf else 0.0
  return replace(checks, at=max(checks.at, time.monotonic() + own_s))


@dataclass
class _Tuner:
  """Compiles (and times) a region, in any of several threads; a failure is that region's."""

  loaded: LoadedModel
  target: Target
  measure: bool
  tries: int
  ends: Ends
  look: Look | None
  dynamic: Dynamic | None
  emit: events.Emit
  instances: InstanceChecks | None
  ahead: Ahead | None = None
  kept: KeptTuning | None = None
  numbers: list[int] = field(default_factory=lambda: [0])

  def starts(self, some: Sequence[Outcome]) -> None:
    """Says which regions come next."""
    self.emit(events.RegionsStarted("tune", tuple((o.region.key, o.region.nodes) for o in some)))

  def all(self, some: Sequence[Outcome], chosen: Sequence[Chosen]) -> dict[str, Outcome]:
    """``some``, by key, as far as there is time, with what is known of their ``chosen`` instances.

    What is not timed is compiled, run in the emulator and checked on several cores; it is told of in the
    order in which it was begun.
    """
    self.starts(some)
    picked = defaultdict[str, list[RegionCandidate]](list)
    for c, o in chosen:
      picked[o.region.key].append(c)

    def one(n: int) -> Outcome | None:
      if self.ends.over:
        return None
      seconds = max(LEAST_S, FAIR * self.ends.seconds_left / (len(some) - n))
      return self._tune(some[n], seconds, picked[some[n].region.key])

    if not self.measure:
      self.numbers = [*range(predicting_threads())][::-1]
    found = dict[str, Outcome]()
    with ThreadPoolExecutor(predicting_threads(), thread_name_prefix="tune") as pool:
      each = (map if self.measure else pool.map)(one, range(len(some)))
      for before, after in zip(some, each, strict=True):
        found[before.region.key] = after or before
        if after is not None:
          self.emit(_tuned(after))
    return found

  def __call__(self, o: Outcome, seconds: float, picked: Sequence[RegionCandidate] = ()) -> Outcome:
    """``o``, for which there are so many seconds (``ends`` is the end in any case).

    ``picked``: the instances that are chosen, if nothing else refuses them.
    """
    o = self._tune(o, seconds, picked)
    self.emit(_tuned(o))
    return o

  def _tune(self, o: Outcome, seconds: float, picked: Sequence[RegionCandidate]) -> Outcome:
    at = min(self.ends.at - LAST_S, time.monotonic() + seconds)
    own, key = replace(self.ends, at=at), o.region.key
    number = self.numbers.pop()
    self.emit(WorkStarted("compile", number, key))
    try:
      with deadline.until(self.ends.at):
        o = self._known(o) or self._timed(o, own)
        if self.dynamic and o.measured and o.compiled:
          o = elsewhere(self.loaded, o, o.compiled, self.dynamic, self.target)
        asked = o.instances if o.measured else picked
        if self.instances and asked and o.compiled:
          # Asked at the end only, all that was timed would be in vain where that is late; where this is late
          # already, there is time for it then.
          with suppress(deadline.OverdueError):
            self.instances.verdicts(asked, o.compiled.candidate)
    except deadline.OverdueError:
      o = replace(o, compiled=None, measured=None, rejection=_too_late(o, self.ends))
    except Exception as error:
      why = refusal(error, "compile or measurement", o.region.nodes)
      o = replace(o, compiled=None, measured=None, rejection=why)
    finally:
      self.numbers.append(number)
    self.emit(WorkEnded("compile", number, key))
    return o

  def _known(self, o: Outcome) -> Outcome | None:
    """What became of it in an earlier run."""
    if self.kept is None:
      return None
    complaints = partial(complaints_of, self.loaded, target=self.target, weights=self.kept.weights)
    return self.kept.outcome(o, self.target, complaints)

  def _timed(self, before: Outcome, own: Ends) -> Outcome:
    """What becomes of it, which is kept, and whether all that it asks for was asked."""
    weights = self.kept.weights if self.kept else None
    after = tuned(
      self.loaded, before, self.target, measure=self.measure, tries=self.tries, ends=own, look=self.look,
      ahead=self.ahead, weights=weights,
    )  # fmt: skip
    if self.kept and (after.measured or isinstance(after.rejection, Lost)):
      self.kept.keep(before, after, cut=own.over)
    return after


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


def _price_us(instance: RegionCandidate, outcome: Outcome, margin: float, doubted: Set[int]) -> float:
  """What an instance costs in the choice. A margin below 0 (it may be slower) counts for all."""
  return outcome.price_us(margin if id(instance) in doubted else min(margin, 0.0))


def _doubts(
  program: Program, chosen: Sequence[Chosen], node_us: Mapping[str, float], margin: float
) -> set[int]:
  """The instances that win by less than the margin against their share of what disappears."""
  share = shares(program, [c for c, _ in chosen], node_us)
  return {id(c) for c, o in chosen if o.price_us(margin) > fsum(share.get(n, 0.0) for n in c.nodes)}
