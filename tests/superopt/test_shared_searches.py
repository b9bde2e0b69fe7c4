"""Regions that share a structure share a search: who is searched, who waits, what is learned."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import pytest
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.result import SearchReport, SearchResult, Stop
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.superopt.shared_searches import FAIR, LEAST_S, Answer, Job, SharedSearches, work
from mirage_onnx.superopt.structures import StructureStore, family
from mirage_onnx.target import H200

SETTING = {"generator": "1"}
NORM, SOFTMAX = PROGRAMS["residual_rmsnorm"](), PROGRAMS["softmax_rows"]()


def at(region, size):
  weights = {a for i in region.inputs if i.is_weight for a in i.axes}
  other = dict.fromkeys(set(region.extents) - weights, size)
  return replace(region, extents={**region.extents, **other})


#: Two structures, the first at three sizes, one of them twice.
REGIONS = (at(NORM, 64), SOFTMAX, at(NORM, 128), at(NORM, 64), at(NORM, 256))


@cache
def entry():
  job = Job(NORM, 60)
  answer = work(job, SearchScope(H200), prover(), Hooks())
  found = work(Job(NORM, 60, None, answer.proven), SearchScope(H200), prover(), Hooks()).entry
  assert found is not None
  return found


def result(stop=Stop.EXHAUSTED):
  return SearchResult((), SearchReport(0.0, 1, 1, 1, stop, (), ()))


class Worker:
  """Keeps the jobs, and answers as a search that proves one µGraph would."""

  def __init__(self, stop=Stop.EXHAUSTED):
    self.stop, self.jobs = stop, list[Job]()

  def __call__(self, job):
    self.jobs.append(job)
    if job.proven is not None:
      return Answer(entry=entry())
    return Answer(result(self.stop), () if job.entry else ("proven",))

  @property
  def kinds(self):
    """Region -> whether it was searched, probed, or known."""
    names = {(False, True): "probes", (False, False): "search", (True, False): "known"}
    return [(REGIONS.index(j.region), names[j.entry is not None, j.proven is not None]) for j in self.jobs]


def searches(store):
  return SharedSearches(REGIONS, store, lambda: 60.0)


def test_one_search_and_one_set_of_probes_for_a_structure_of_several_sizes():
  worker = Worker()
  shared = searches(StructureStore(None, SETTING))
  assert [i for i, _ in shared.results(worker)] == [0, 1, 2, 3, 4]
  assert worker.kinds == [
    (0, "search"), (0, "probes"), (1, "search"), (2, "known"), (0, "known"), (4, "known"),
  ]  # fmt: skip
  assert worker.jobs[1].proven == ("proven",)
  # Nobody could use the probes of the other structure in another run: nothing is kept.
  assert shared.unlearned == ()


def test_no_search_gets_all_the_time_while_others_wait():
  worker, regions = Worker(Stop.BUDGET), REGIONS * 4
  list(SharedSearches(regions, StructureStore(None, SETTING), lambda: 100.0).results(worker))
  seconds = [j.seconds for j in worker.jobs]
  assert seconds[0] == FAIR * 100.0 / 20 and seconds[-1] == 100.0
  assert seconds == sorted(seconds) and len(seconds) == 20
  worker = Worker(Stop.BUDGET)
  list(SharedSearches(regions, StructureStore(None, SETTING), lambda: 100.0, at_once=4).results(worker))
  assert [j.seconds for j in worker.jobs] == [min(100.0, 4 * s) for s in seconds]
  short, worker = SharedSearches(regions, StructureStore(None, SETTING), lambda: 3.0), Worker()
  assert short.result(0, worker) and worker.jobs[0].seconds == 3.0 < LEAST_S


def test_later_runs_search_nothing(tmp_path):
  shared, worker = searches(StructureStore(tmp_path, SETTING)), Worker()
  list(shared.results(worker))
  assert shared.unlearned == (1,)
  shared.learn(1, worker, 60.0)
  assert worker.kinds[-1] == (1, "probes") and shared.unlearned == ()
  again = Worker()
  list(searches(StructureStore(tmp_path, SETTING)).results(again))
  assert {kind for _, kind in again.kinds} == {"known"}


def test_without_time_what_was_found_is_learned(tmp_path):
  shared, worker = searches(StructureStore(tmp_path, SETTING)), Worker()
  list(shared.results(worker))
  shared.learn(1, worker, 0.0)
  assert worker.jobs[-1].seconds == 0.0 and shared.unlearned == ()
  assert shared.store.get(family(SOFTMAX)) == entry()


@pytest.mark.parametrize("stop", [Stop.BUDGET, Stop.INTERRUPTED])
def test_after_a_search_that_was_cut_short_each_size_is_searched(stop):
  worker = Worker(stop)
  list(searches(StructureStore(None, SETTING)).results(worker))
  assert worker.kinds == [
    (0, "search"), (1, "search"), (2, "search"), (0, "search"), (4, "search"),
  ]  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_wait_for_the_first_of_a_structure(threads):
  shared, worker = searches(StructureStore(None, SETTING)), Worker()
  guard = threading.Lock()

  def ask(job):
    with guard:
      return worker(job)

  with ThreadPoolExecutor(threads) as pool:
    waiting = [pool.submit(shared.result, i, ask) for i in shared.order]
    assert all(w.result(60) for w in waiting)
  assert sorted(worker.kinds) == sorted([
    (0, "search"), (0, "probes"), (1, "search"), (2, "known"), (0, "known"), (4, "known"),
  ])  # fmt: skip


def test_the_preferred_one_is_next_and_before_it_the_first_of_its_family():
  shared, worker = searches(StructureStore(None, SETTING)), Worker()
  firsts = list(shared.order[: len(set(shared._families))])
  kin = next(i for i in shared.order if i not in firsts)
  first = shared._first[shared._families[kin]]
  assert shared.take([kin]) == first  # it would wait for that one
  other = next(i for i in firsts if i != first)
  assert shared.take([kin, other]) == other  # which is searched elsewhere
  shared.result(first, worker)
  assert shared.take([kin]) == kin
  rest = [shared.take(()) for _ in range(len(REGIONS) - 3)]
  assert sorted([first, other, kin, *rest]) == [*range(len(REGIONS))] and shared.take(()) is None


def test_kin_are_left_to_who_has_searched_them():
  """Half of the regions of a layer differ in the order of their outputs' axes: one worker has their units."""
  other = replace(SOFTMAX.outputs[0], axes=SOFTMAX.outputs[0].axes[::-1], dims=SOFTMAX.outputs[0].dims[::-1])
  assert other.axes != SOFTMAX.outputs[0].axes
  regions = (SOFTMAX, NORM, replace(SOFTMAX, outputs=(other,)), PROGRAMS["bias_relu"]())
  shared = SharedSearches(regions, StructureStore(None, SETTING), lambda: 60.0)
  assert shared.order == (0, 2, 1, 3)
  with ThreadPoolExecutor(1) as elsewhere:
    assert elsewhere.submit(shared.take, ()).result() == 0
    assert shared.take(()) == 1
    assert shared.take(()) == 3
    assert elsewhere.submit(shared.take, ()).result() == 2
  shared = SharedSearches(regions, StructureStore(None, SETTING), lambda: 60.0)
  with ThreadPoolExecutor(1) as elsewhere:
    assert elsewhere.submit(shared.take, ()).result() == 0
    assert [shared.take((2,)), shared.take(()), shared.take(())] == [2, 1, 3], "unless that is wanted"
  shared = SharedSearches(regions[:3], StructureStore(None, SETTING), lambda: 60.0)
  with ThreadPoolExecutor(1) as elsewhere:
    assert elsewhere.submit(shared.take, ()).result() == 0
    assert [shared.take(()), shared.take(()), shared.take(())] == [1, 2, None], "or nothing else is left"


def test_an_error_of_the_first_does_not_hold_the_others():
  shared = searches(StructureStore(None, SETTING))

  def fail(job):
    raise RuntimeError("a search worker failed")

  with ThreadPoolExecutor(1) as pool:
    waiting = [pool.submit(shared.result, i, fail) for i in shared.order]
    assert all(isinstance(w.exception(60), RuntimeError) for w in waiting)


def test_work_searches_where_nothing_known_is_safe():
  prove, asked = prover(), list[UGraph]()

  def verify(region, graph, params):
    asked.append(graph)
    if len(asked) <= len(entry().graphs):
      return Rejection("NUMERICS", "said so")
    return prove(region, graph, params)

  known = work(Job(NORM, 60, entry()), SearchScope(H200), prove, Hooks())
  assert known.result is not None and known.result.report.states == 0 and not known.proven
  answer = work(Job(NORM, 60, entry()), SearchScope(H200), verify, Hooks())
  assert answer.result is not None and answer.result.report.states > 0
  assert answer.result.candidates and answer.proven
