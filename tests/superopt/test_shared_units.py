"""A search that several processes share finds, counts and reports what one process does."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from search_programs import PROGRAMS
from search_summaries import after, summary
from small_models import prover

from mirage_onnx.superopt import unit_pool
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal import Journal
from mirage_onnx.superopt.outlines import Depth
from mirage_onnx.superopt.result import SearchBound, Stop, default_bound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.shared_units import SharedUnits
from mirage_onnx.superopt.space import ALL
from mirage_onnx.superopt.unit_pool import UnitPool
from mirage_onnx.superopt.unit_worker import Job
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200
from mirage_onnx.worker_process import WorkerProcess

#: More than any job of these tests takes.
LONG_S = 600.0
#: So few states that some outline does not get to its end.
SHORT = replace(default_bound(ALL), states=40)


@pytest.fixture
def started(monkeypatch):
  """The workers that were started, which is at once; the hashes of each differ from ours."""
  found = []

  def start(module):
    monkeypatch.setenv("PYTHONHASHSEED", str(7 + len(found)))
    found.append(worker := WorkerProcess(module))
    return worker

  monkeypatch.setattr(unit_pool, "START_AFTER_S", 0.0)
  monkeypatch.setattr(unit_pool, "WorkerProcess", start)
  return found


@pytest.fixture
def shared(monkeypatch, started):
  """Every other outline and every other unit that the search wants next, the first of each among
  them, waits for a worker; the jobs that workers found."""
  claim, result, asked, found = UnitPool.claim, UnitPool.result, list[Job](), list[Job]()

  def wait(pool, job):
    if job not in asked:
      asked.append(job)
      if sum(is_outline(other) == is_outline(job) for other in asked) % 2:
        pool.offer(-1.0, job)
        attended = pool._threads
        until(lambda: job in pool._begun or not any(t.is_alive() for t in attended))
    return claim(pool, job)

  def note(pool, job, seconds):
    answer = result(pool, job, seconds)
    found.extend([job] * (answer is not None))
    return answer

  monkeypatch.setattr(UnitPool, "claim", wait)
  monkeypatch.setattr(UnitPool, "result", note)
  return found


def searched(name, **options):
  options = {"bound": None, "budget_s": 600.0, **options}
  return summary(search(PROGRAMS[name](), H200, prover(), space=ALL, **options))


def is_outline(job):
  return isinstance(job[1], Depth)


def is_gone(pid):
  try:
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
  except (FileNotFoundError, ProcessLookupError):
    return True


def until(holds):
  end = time.monotonic() + LONG_S
  while not holds():
    assert time.monotonic() < end
    time.sleep(0.005)


@pytest.mark.parametrize(
  ("name", "bound", "stop"),
  [
    ("rmsnorm_linear", None, Stop.EXHAUSTED),
    ("layernorm_linear", None, Stop.EXHAUSTED),
    ("softmax_rows", None, Stop.EXHAUSTED),
    ("residual_rmsnorm", None, Stop.EXHAUSTED),
    ("gated_mlp_silu", None, Stop.EXHAUSTED),
    ("lora", None, Stop.EXHAUSTED),
    ("layernorm_linear", SHORT, Stop.STATE_LIMIT),
  ],
)
def test_any_number_of_workers_gives_the_same(name, bound, stop, shared):
  alone = searched(name, bound=bound)
  assert alone[4] is stop and alone[0]
  assert searched(name, bound=bound, workers=2) == alone
  assert {is_outline(job) for job in shared} == {True, False}


def test_what_workers_find_is_what_is_found_here(started):
  """Every outline and every unit of the output of a region, by two workers."""
  region, bound = PROGRAMS["layernorm_linear"](), default_bound(ALL)
  here = Units(region, H200, bound, AXIOMS, ALL)
  size = here.graph.size
  units = SharedUnits(region, H200, bound, AXIOMS, ALL, workers=3)
  try:
    outline = here.outline(units.outputs)
    assert units.outline(units.outputs) == outline
    assert list(units.outline(units.outputs).derivations) == list(outline.derivations)
    jobs = [(units.outputs, reads) for reads in outline.derivations]
    values = sorted({c for reads in outline.derivations for c in reads})
    jobs += [job for c in values for job in here.jobs((c,), None)]
    for job in jobs:
      units.offer(0.0, job)
    for job in jobs:
      classes, what = job
      with units._pool._changed:
        units._pool._changed.wait_for(lambda job=job: job in units._pool._begun, timeout=LONG_S)
      found = units._pool.result(job, LONG_S)
      if isinstance(what, Depth):
        assert found == here.outline_part(classes, what)
      else:
        assert found == here.run(classes, what)
    assert len(jobs) > 10 and len(started) == len(units.worker_pids) == 2
    # No job adds to what the numbers of classes stand for.
    assert here.graph.size == size
  finally:
    units.close()
  assert all(is_gone(w.pid) for w in started)


def test_journal_is_the_same(tmp_path, shared):
  one, two = tmp_path / "one", tmp_path / "two"
  for path, workers in ((one, 1), (two, 2)):
    with Journal(path, {"target": "h200"}) as journal:
      searched("rmsnorm_linear", workers=workers, hooks=Hooks(journal))
  assert shared and one.read_bytes() == two.read_bytes()


def test_nothing_kept_is_given_to_a_worker(tmp_path, started, monkeypatch):
  offered = []
  monkeypatch.setattr(UnitPool, "offer", lambda pool, floor_us, job: offered.append(job))
  with Journal(tmp_path / "journal", {"target": "h200"}) as journal:
    first = searched("rmsnorm_linear", workers=2, hooks=Hooks(journal))
    before = {job for job in offered if not is_outline(job)}
    offered.clear()
    assert searched("rmsnorm_linear", workers=2, hooks=Hooks(journal)) == first
  assert {job for job in offered if not is_outline(job)} < before


def test_a_short_search_starts_no_worker(monkeypatch):
  monkeypatch.setattr(unit_pool, "START_AFTER_S", LONG_S)
  monkeypatch.setattr(unit_pool, "WorkerProcess", None)
  start = time.monotonic()
  assert searched("rmsnorm_linear", workers=2)[4] is Stop.EXHAUSTED
  assert time.monotonic() - start < LONG_S


def test_a_worker_that_is_killed_changes_nothing(shared, started, monkeypatch):
  alone, send = searched("layernorm_linear"), WorkerProcess.send
  sent = []

  def send_and_kill(worker, value):
    send(worker, value)
    sent.append(worker)
    if len(sent) == 4:
      worker.kill()

  monkeypatch.setattr(WorkerProcess, "send", send_and_kill)
  assert searched("layernorm_linear", workers=2) == alone
  # What was sent after the fourth message went into a pipe that nobody reads.
  assert len(sent) >= 4 and len(started) == 1 and len(shared) >= 1


def test_a_worker_of_another_source_is_not_used(started, monkeypatch):
  alone = searched("rmsnorm_linear")
  monkeypatch.setattr(unit_pool, "generator_digest", lambda: "another")
  units = SharedUnits(PROGRAMS["rmsnorm_linear"](), H200, SearchBound(), AXIOMS, ALL, workers=2)
  try:
    units.offer(0.0, units.jobs(units.outputs, None)[0])
    units._pool._threads[0].join(LONG_S)
    assert len(started) == 1 and not units._pool._begun
  finally:
    units.close()
  assert searched("rmsnorm_linear", workers=2) == alone


def test_what_has_no_pickle_is_searched_here(started):
  allow = {"allow": lambda kernel, params: True}
  other = {"axioms": (replace(AXIOMS[0], name="another"), *AXIOMS[1:])}
  for options in (allow, other):
    assert searched("rmsnorm_linear", workers=2, **options)[4] is Stop.EXHAUSTED
  assert started == []


@pytest.mark.parametrize("polls", [0, 20])
def test_interrupted_no_worker_is_left(polls, shared, started):
  found = searched("layernorm_linear", workers=2, hooks=Hooks(stop=after(polls)))
  assert found[4] is Stop.INTERRUPTED
  assert (started or not polls) and all(is_gone(w.pid) for w in started)


SEARCH = """
import sys
sys.path[:0] = sys.argv[1:]
from mirage_onnx.superopt import unit_pool
unit_pool.START_AFTER_S = 0.0
start = unit_pool.WorkerProcess
def tell(module):
    worker = start(module)
    print(worker.pid, flush=True)
    return worker
unit_pool.WorkerProcess = tell
from test_shared_units import searched
searched("qknorm_rms_attention", workers=3)
"""


@pytest.fixture
def running(hears_interrupts):
  """A process in the middle of a search, and its workers."""
  folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
  process = subprocess.Popen(
    [sys.executable, "-c", SEARCH, *folders],
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
  )  # fmt: skip
  pids = [int(process.stdout.readline()) for _ in range(2)]
  yield process, pids
  process.kill()
  process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_parent(number, running):
  process, pids = running
  until(lambda: not any(map(is_gone, pids)))
  os.killpg(process.pid, number)
  assert process.wait(LONG_S) != 0
  until(lambda: all(map(is_gone, pids)))
