"""The searches of a run that no earlier one has made: in this process, or by workers.

A thread waits for each worker and asks it for one region after the other; who tells a result, or what happens
meanwhile, has the others wait. What runs of other sizes can use is found after the last result, in a fraction
of the time that the results took.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from mirage_onnx import deadline
from mirage_onnx.events import Emit, Event, WorkEnded, WorkStarted
from mirage_onnx.failures import refusal
from mirage_onnx.search_workers import Crew, SearchWorker
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.remote_hooks import ANSWERED, answer
from mirage_onnx.superopt.result import SearchBound, SearchReport, SearchResult, Stop, Verify
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.superopt.shared_searches import Answer, Ask, Job, SharedSearches, work
from mirage_onnx.superopt.structures import StructureStore
from mirage_onnx.target import Target
from mirage_onnx.verify.prover import prover, structure_prover
from mirage_onnx.verify.weights import ModelWeights

#: The time for what only runs of other sizes have a use for, of that which the results took; and where
#: others wait for the cores (it had all 16 for 22 s while regions of BERT-base 8x512 were timed on an H200).
LEARN, LEARN_BESIDE = 0.25, 0.03
#: A worker that has not ended so long after the deadline is ended; it asks itself in every long step.
GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
  """What all searches of a run share. ``structures``: of the user unless given."""

  target: Target
  bound: SearchBound
  deadline: float  # of time.monotonic
  hooks: Hooks = field(default_factory=Hooks)
  structures: StructureStore | None = None

  @property
  def seconds_left(self) -> float:
    return max(0.0, self.deadline - time.monotonic())


def verifier(weights: ModelWeights, job: Job) -> Verify:
  """For probes without the checks of rounding: who uses a µGraph makes them at its own sizes."""
  if job.proven is not None:
    return structure_prover(job.region, weights.of(job.region))
  twins = [(r, weights.of(r)) for r in job.twins]
  return prover(job.region, weights.of(job.region), derived=True, twins=twins)


@dataclass(frozen=True, slots=True)
class RegionSearches:
  """``shared``: of regions, whose results ``done`` is told; ``beside``: others wait for the cores."""

  shared: SharedSearches
  setting: Setting
  weights: ModelWeights
  done: Callable[[int, SearchResult], None]
  beside: bool
  start: float = field(default_factory=time.monotonic)

  def here(self) -> None:
    """In this process, in the order of the regions."""
    setting = self.setting

    def alone(job: Job) -> Answer:
      scope = SearchScope.of(setting.target, setting.bound, job.region, job.worth_us)
      with _told(setting.hooks.emit, 0, job):
        return work(job, scope, verifier(self.weights, job), setting.hooks)

    ask = self._careful(alone)
    for i, result in self.shared.results(ask):
      self.done(i, result)
    seconds_left = self._learning()
    for i in self.shared.unlearned:
      self.shared.learn(i, ask, seconds_left())

  def by(self, crew: Crew, count: int, header: object, preferred: Callable[[], Sequence[int]]) -> None:
    """By so many workers, which are given the ``header`` first; ``preferred``: as of ``search_all``."""
    one_at_a_time, ended = threading.Lock(), threading.Event()

    def emit(event: Event) -> None:
      with one_at_a_time:
        self.setting.hooks.emit(event)

    hooks = Hooks(self.setting.hooks.store, self.setting.hooks.stop, emit)
    workers = _Workers(crew, header, hooks, self.weights, self.setting.deadline, self.beside)
    ask = self._careful(workers.ask)

    def search_some() -> None:
      while not ended.is_set() and (i := self.shared.take(preferred())) is not None:
        result = self.shared.result(i, ask)
        with one_at_a_time:
          self.done(i, result)

    longest = min(self.setting.seconds_left + GRACE_S, threading.TIMEOUT_MAX)
    watchdog = threading.Timer(longest, workers.kill)
    watchdog.daemon = True
    watchdog.start()
    with ThreadPoolExecutor(count, initializer=workers.begin) as pool:
      try:
        for future in as_completed([pool.submit(search_some) for _ in range(count)]):
          future.result()
        seconds_left = self._learning()
        for _ in pool.map(lambda i: self.shared.learn(i, ask, seconds_left()), self.shared.unlearned):
          pass
      except BaseException:
        ended.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
      finally:
        watchdog.cancel()
        workers.close()

  def _careful(self, ask: Ask) -> Ask:
    """Asks nothing where the run is over; what fails at one region is the refusal of that region."""

    def asked(job: Job) -> Answer:
      stop = self.setting.hooks.stop() or (None if self.setting.seconds_left else Stop.BUDGET)
      if stop:
        return Answer(stopped(stop))
      try:
        return ask(job)
      except Exception as error:
        why = refusal(error, "search", job.region.nodes)
        return Answer(replace(stopped(Stop.INTERRUPTED), failure=why))

    return asked

  def _learning(self) -> Callable[[], float]:
    now = time.monotonic()
    end = min(self.setting.deadline, now + (LEARN_BESIDE if self.beside else LEARN) * (now - self.start))
    return lambda: end - time.monotonic()


class _Workers:
  """One for each thread that asks."""

  def __init__(
    self, crew: Crew, header: object, hooks: Hooks, weights: ModelWeights, end: float, beside: bool
  ) -> None:
    self._crew, self._header, self._hooks, self._weights = crew, header, hooks, weights
    self._end, self._beside = end, beside
    self._started: list[SearchWorker] = []
    self._numbers, self._local = itertools.count(0), threading.local()

  def _start(self) -> None:
    own = self._local
    if not hasattr(own, "number"):
      own.number = next(self._numbers)
    own.worker = self._crew.make()
    self._started.append(own.worker)
    if self._beside:
      own.worker.yields()
    with suppress(BrokenPipeError):  # it was ended meanwhile, which is for ``ask`` to say
      own.worker.send(self._header)

  def begin(self) -> None:
    """Starts one for this thread.

    A thread that fails to begin takes the word that ends the others out of their queue, and they wait
    for ever: who asks this worker is told instead.
    """
    with suppress(Exception):
      self._start()

  def ask(self, job: Job) -> Answer:
    """The answer of this thread's worker.

    Raises:
        RuntimeError: it failed, or ended without one.
    """
    own = self._local
    if not hasattr(own, "worker"):
      self._start()
    for left in range(self._crew.again, -1, -1):
      try:
        with deadline.until(self._end + GRACE_S), _told(self._hooks.emit, own.number, job):
          return _ask(own.worker, self._hooks, self._weights, job)
      except (EOFError, BrokenPipeError, deadline.OverdueError):
        own.worker.kill()
        if time.monotonic() >= self._end:
          break
        self._start()  # for the regions that come
        if not left:
          raise RuntimeError("a search worker ended without an answer") from None
    return Answer(stopped(Stop.BUDGET))

  def kill(self) -> None:
    """Ends all, whatever they are doing."""
    for worker in self._started:
      worker.kill()

  def close(self) -> None:
    """The same, and nothing is held of them."""
    for worker in self._started:
      worker.kill()
      worker.close()


@contextmanager
def _told(emit: Emit, worker: int, job: Job) -> Iterator[None]:
  """Says when a worker begins and ends."""
  emit(WorkStarted("search", worker, job.region.key))
  try:
    yield
  finally:
    emit(WorkEnded("search", worker, job.region.key))


def stopped(stop: Stop) -> SearchResult:
  """What is known of a region whose search was not begun."""
  return SearchResult((), SearchReport(0.0, 0, 0, 0, stop, (), ()))


def _ask(worker: SearchWorker, hooks: Hooks, weights: ModelWeights, job: Job) -> Answer:
  worker.send(job)
  while True:
    name, arguments = worker.receive()
    if name == "result":
      found: Answer = arguments[0]
      return found
    if name == "failed":
      error = RuntimeError(arguments[0])
      error.add_note(arguments[1])
      raise error
    measuring = name == "measure"
    told = weights.extremes(*arguments) if measuring else answer(hooks, name, arguments)
    if name in ANSWERED:
      worker.send(told)
