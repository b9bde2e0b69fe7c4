"""Searching the regions of a model: the search with the verifier inside, on all cores.

Workers (``worker_process.py``) run this module; they are given the model and then regions.
The order of results is the order of the regions, whatever the number of workers.

A worker asks its parent for what a search is connected to (``superopt/remote_hooks.py``), so that one
process writes the journal and hears Ctrl-C. Regions that differ only in sizes (tokens, batch, weights nearly
as large) share one search (``superopt/shared_searches.py``), within a run and, through the user's cache
folder, from run to run (not with ``MIRAGE_ONNX_CACHE=off``).
"""

import itertools
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import onnx

from mirage_onnx import deadline
from mirage_onnx.cores import available_cores
from mirage_onnx.events import Emit, Event, WorkEnded, WorkStarted
from mirage_onnx.failures import refusal
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.inline import sent
from mirage_onnx.ir.region import Region
from mirage_onnx.search_workers import Crew, SearchWorker
from mirage_onnx.source_digest import PROOF_SOURCES, source_digest
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.kept_results import KeptResults, are_of
from mirage_onnx.superopt.remote_hooks import ANSWERED, Parent, answer
from mirage_onnx.superopt.result import SearchBound, SearchReport, SearchResult, Stop, Verify
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.search_setting import setting_text
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.superopt.shared_searches import Answer, Ask, Job, SharedSearches, work
from mirage_onnx.superopt.space import ALL, EMITTED
from mirage_onnx.superopt.structures import StructureStore
from mirage_onnx.target import Target
from mirage_onnx.verify.prover import prover, structure_prover
from mirage_onnx.verify.weights import ModelWeights, sample_weights
from mirage_onnx.worker_process import worker_streams

#: Fewer regions than this are searched here: starting a worker takes longer.
MIN_REGIONS = 8
#: The time for what only runs of other sizes have a use for, of that which the results took; and where
#: others wait for the cores (it had all 16 for 22 s while regions of BERT-base 8x512 were timed on an H200).
LEARN, LEARN_BESIDE = 0.25, 0.03
#: A worker that has not ended so long after the deadline is ended; it asks itself in every long step.
GRACE_S = 1.0
#: Every worker has the model (not the weights that are in a file); what all copies may take.
MAX_COPIED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Setting:
  """What all searches of a run share. ``structures``: of the user unless given; ``timed``: as of ``work``."""

  target: Target
  bound: SearchBound
  deadline: float  # of time.monotonic
  hooks: Hooks = field(default_factory=Hooks)
  structures: StructureStore | None = None
  timed: bool = False

  @property
  def seconds_left(self) -> float:
    return max(0.0, self.deadline - time.monotonic())


def open_journal(path: Path, target: Target, bound: SearchBound) -> Journal:
  """The journal for searches of regions with this target and bound.

  Raises:
      MirageError: JOURNAL.
  """
  return Journal(path, _setting_text(target, bound))


def open_structures(folder: Path | None, target: Target, bound: SearchBound) -> StructureStore:
  """What is known of families of regions for searches with this target and bound.

  ``folder``: where it is kept; None: in memory only.
  """
  return StructureStore(folder, _setting_text(target, bound))


def _setting_text(target: Target, bound: SearchBound) -> dict[str, str]:
  return setting_text(target, [a.name for a in AXIOMS], bound=bound, space=(EMITTED, ALL))


def search_region(
  loaded: LoadedModel,
  region: Region,
  target: Target,
  bound: SearchBound,
  seconds: float,
  hooks: Hooks | None = None,
) -> SearchResult:
  """Search one region; a candidate counts if it is proven equal and safe in floating point."""
  verify = prover(region, sample_weights(loaded, region), derived=True)
  scope = SearchScope.of(target, bound, region)
  return search(
    region, target, verify, bound=scope.bound, space=scope.space, budget_s=seconds, hooks=hooks,
  )  # fmt: skip


def _verifier(weights: ModelWeights, job: Job) -> Verify:
  """For probes without the checks of rounding: who uses a µGraph makes them at its own sizes."""
  if job.proven is not None:
    return structure_prover(job.region, weights.of(job.region))
  twins = [(r, weights.of(r)) for r in job.twins]
  return prover(job.region, weights.of(job.region), derived=True, twins=twins)


def search_all(
  loaded: LoadedModel,
  regions: Sequence[Region],
  setting: Setting,
  *,
  workers: int | str | None = None,
  done: Callable[[int, SearchResult], None],
  twins: Sequence[tuple[Region, ...]] = (),
  weights: ModelWeights | None = None,
  in_order: bool = True,
  preferred: Callable[[], Sequence[int]] = tuple,
  worths_us: Sequence[float] = (),
) -> None:
  """Search every region; ``done`` is told each result, ``in_order`` of the regions or as they come.

  ``preferred``: asked whenever a worker is free; the places of what is most wanted then.

  What an earlier run found for a region and its weights is taken from the cache folder. ``twins``: of
  each region other instances. A program that is safe for some of them only may be among the results,
  but does not count: who replaces an instance asks about its weights. ``weights``: of the model, with
  what is measured of them already. ``worths_us``: what programs that are worth a proof may take.
  """
  weights = weights or ModelWeights(loaded)
  own, worths = tuple(twins) or ((),) * len(regions), tuple(worths_us) or (inf,) * len(regions)
  kept = KeptResults(None if setting.structures else cache_folder("results"), _kept_setting(setting))
  seconds, digests, known = setting.seconds_left, dict[int, str](), dict[int, SearchResult]()
  with suppress(deadline.OverdueError), deadline.until(setting.deadline):
    if kept.folder:
      weights.hash_ahead([*regions, *itertools.chain.from_iterable(own)], available_cores())
    for i, region in enumerate(regions if kept.folder else ()):
      # What is found depends on the weights of the twins too.
      asked = [repr(worths[i])] if worths[i] < inf else []
      digests[i] = " ".join([*map(weights.digest, (region, *own[i])), *asked])
      found = kept.get(region, digests[i], seconds)
      if found is not None and are_of(region, [v.candidate for v in found.candidates]):
        known[i] = found
  left = [i for i in range(len(regions)) if i not in known]
  told = 0

  def tell() -> None:
    nonlocal told
    while not in_order and known:
      done(*known.popitem())
    while told in known:
      done(told, known.pop(told))
      told += 1

  def keep(n: int, result: SearchResult) -> None:
    i = left[n]
    if i in digests and result.failure is None:
      kept.put(regions[i], digests[i], seconds, result)
    known[i] = result
    tell()

  tell()
  if left and not seconds:  # there is no time to start anything
    for n in range(len(left)):
      keep(n, stopped(setting.hooks.stop() or Stop.BUDGET))
  elif left:
    rest, others = [regions[i] for i in left], [own[i] for i in left]
    place = {i: n for n, i in enumerate(left)}
    first = lambda: [place[i] for i in preferred() if i in place]  # noqa: E731
    wants = [worths[i] for i in left]
    _search_rest(loaded, rest, others, wants, setting, weights, workers, keep, not in_order, first)


def _kept_setting(setting: Setting) -> dict[str, str]:
  """What a result depends on beside the region and its weights: also who has verified it."""
  text = {**_setting_text(setting.target, setting.bound), "verifier": source_digest(*PROOF_SOURCES)}
  return {**text, "timed": "with wgmma"} if setting.timed else text


def _search_rest(
  loaded: LoadedModel,
  regions: Sequence[Region],
  twins: Sequence[tuple[Region, ...]],
  worths_us: Sequence[float],
  setting: Setting,
  weights: ModelWeights,
  workers: int | str | None,
  done: Callable[[int, SearchResult], None],
  beside: bool,
  preferred: Callable[[], Sequence[int]],
) -> None:
  """Search every region; ``beside``: in workers whose work waits for that of others.

  What runs of other sizes can use is found after the last result, in a fraction of the time that
  the results took.
  """
  start = time.monotonic()
  store = setting.structures or open_structures(cache_folder(), setting.target, setting.bound)
  given = sent(loaded)
  crew = Crew.of(workers)
  count = min(crew.count, len(regions), MAX_COPIED_BYTES // max(1, given.ByteSize()))
  shared = SharedSearches(regions, store, lambda: setting.seconds_left, twins, worths_us, max(1, count))

  def unless_stopped(ask: Ask) -> Ask:
    def asked(job: Job) -> Answer:
      stop = setting.hooks.stop() or (None if setting.seconds_left else Stop.BUDGET)
      return Answer(stopped(stop)) if stop else ask(job)

    return asked

  def until() -> Callable[[], float]:
    now = time.monotonic()
    end = min(setting.deadline, now + (LEARN_BESIDE if beside else LEARN) * (now - start))
    return lambda: end - time.monotonic()

  def unless_failed(ask: Ask) -> Ask:
    """What fails at one region is the refusal of that region."""

    def asked(job: Job) -> Answer:
      try:
        return ask(job)
      except Exception as error:
        why = refusal(error, "search", job.region.nodes)
        return Answer(replace(stopped(Stop.INTERRUPTED), failure=why))

    return asked

  if not crew.again and (count <= 1 or (len(regions) < MIN_REGIONS and not beside)):

    def alone(job: Job) -> Answer:
      scope = SearchScope.of(setting.target, setting.bound, job.region, job.worth_us)
      with _told(setting.hooks.emit, 0, job):
        return work(job, scope, _verifier(weights, job), setting.hooks, setting.timed)

    here = unless_stopped(unless_failed(alone))
    for i, result in shared.results(here):
      done(i, result)
    seconds_left = until()
    for i in shared.unlearned:
      shared.learn(i, here, seconds_left())
    return
  header = (given.SerializeToString(), loaded.known, setting.target, setting.bound, setting.timed)
  started: list[SearchWorker] = []
  local = threading.local()

  def end_workers() -> None:
    for worker in started:
      worker.kill()

  numbers = itertools.count(0)

  def start_worker() -> None:
    if not hasattr(local, "number"):
      local.number = next(numbers)
    local.worker = crew.make()
    started.append(local.worker)
    if beside:
      local.worker.yields()
    with suppress(BrokenPipeError):  # it was ended meanwhile, which is for ``ask`` to say
      local.worker.send(header)

  def begin() -> None:
    # A thread that fails to begin takes the word that ends the others out of their queue, and they wait
    # for ever: who asks this worker is told instead.
    with suppress(Exception):
      start_worker()

  def ask(job: Job) -> Answer:
    if not hasattr(local, "worker"):
      start_worker()
    for left in range(crew.again, -1, -1):
      try:
        with deadline.until(setting.deadline + GRACE_S), _told(hooks.emit, local.number, job):
          return _ask(local.worker, hooks, weights, job)
      except (EOFError, BrokenPipeError, deadline.OverdueError):
        local.worker.kill()
        if time.monotonic() >= setting.deadline:
          break
        start_worker()  # for the regions that come
        if not left:
          raise RuntimeError("a search worker ended without an answer") from None
    return Answer(stopped(Stop.BUDGET))

  there = unless_stopped(unless_failed(ask))
  one_at_a_time = threading.Lock()

  ended = threading.Event()

  def search_some() -> None:
    while not ended.is_set() and (i := shared.take(preferred())) is not None:
      result = shared.result(i, there)
      with one_at_a_time:
        done(i, result)

  def emit(event: Event) -> None:
    with one_at_a_time:
      setting.hooks.emit(event)

  hooks = Hooks(setting.hooks.store, setting.hooks.stop, emit)
  watchdog = threading.Timer(min(setting.seconds_left + GRACE_S, threading.TIMEOUT_MAX), end_workers)
  watchdog.daemon = True
  watchdog.start()
  with ThreadPoolExecutor(count, initializer=begin) as pool:
    try:
      for future in as_completed([pool.submit(search_some) for _ in range(count)]):
        future.result()
      seconds_left = until()
      for _ in pool.map(lambda i: shared.learn(i, there, seconds_left()), shared.unlearned):
        pass
    except BaseException:
      ended.set()
      pool.shutdown(wait=False, cancel_futures=True)
      raise
    finally:
      watchdog.cancel()
      for worker in started:
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


def _serve() -> None:
  """The worker: header, then job -> answer, until stdin ends."""
  requests, answers = worker_streams()
  model, known, target, bound, timed = pickle.load(requests)
  loaded = known.loaded(onnx.ModelProto.FromString(model))
  del model
  parent = Parent(requests, answers)
  hooks = Hooks(parent, parent.stop, parent.emit)
  weights = ModelWeights(loaded, lambda name, shape: parent.tell("measure", name, shape))
  while True:
    try:
      job: Job = pickle.load(requests)
    except EOFError:
      return
    try:
      scope = SearchScope.of(target, bound, job.region, job.worth_us)
      result = work(job, scope, _verifier(weights, job), hooks, timed)
    except Exception as error:  # told to the parent, which raises it
      parent.tell("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
    else:
      parent.tell("result", result)


if __name__ == "__main__":
  try:
    _serve()
  except (KeyboardInterrupt, BrokenPipeError):
    sys.exit(130)
