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
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

import onnx

from mirage_onnx import deadline
from mirage_onnx.cores import available_cores
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.inline import sent
from mirage_onnx.ir.region import Region
from mirage_onnx.search_run import RegionSearches, Setting, stopped, verifier
from mirage_onnx.search_workers import Crew
from mirage_onnx.source_digest import PROOF_SOURCES, source_digest
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.kept_results import KeptResults, are_of
from mirage_onnx.superopt.remote_hooks import Parent
from mirage_onnx.superopt.result import SearchBound, SearchResult, Stop
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.search_setting import setting_text
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.superopt.shared_searches import Job, SharedSearches, work
from mirage_onnx.superopt.space import ALL, EMITTED
from mirage_onnx.superopt.structures import StructureStore
from mirage_onnx.target import Target
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import ModelWeights, sample_weights
from mirage_onnx.worker_process import worker_streams

#: Fewer regions than this are searched here: starting a worker takes longer.
MIN_REGIONS = 8
#: Every worker has the model (not the weights that are in a file); what all copies may take.
MAX_COPIED_BYTES = 1 << 30


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
  return {**_setting_text(setting.target, setting.bound), "verifier": source_digest(*PROOF_SOURCES)}


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
  """Search every region; ``beside``: in workers whose work waits for that of others."""
  store = setting.structures or open_structures(cache_folder(), setting.target, setting.bound)
  given, crew = sent(loaded), Crew.of(workers)
  count = min(crew.count, len(regions), MAX_COPIED_BYTES // max(1, given.ByteSize()))
  shared = SharedSearches(regions, store, lambda: setting.seconds_left, twins, worths_us, max(1, count))
  searches = RegionSearches(shared, setting, weights, done, beside)
  if not crew.again and (count <= 1 or (len(regions) < MIN_REGIONS and not beside)):
    searches.here()
    return
  header = (given.SerializeToString(), loaded.known, setting.target, setting.bound)
  searches.by(crew, count, header, preferred)


def _serve() -> None:
  """The worker: header, then job -> answer, until stdin ends."""
  requests, answers = worker_streams()
  model, known, target, bound = pickle.load(requests)
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
      result = work(job, scope, verifier(weights, job), hooks)
    except Exception as error:  # told to the parent, which raises it
      parent.tell("failed", f"{type(error).__name__}: {error}", traceback.format_exc())
    else:
      parent.tell("result", result)


if __name__ == "__main__":
  try:
    _serve()
  except (KeyboardInterrupt, BrokenPipeError):
    sys.exit(130)
