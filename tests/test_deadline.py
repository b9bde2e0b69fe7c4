"""The end of a run, for every stage: nobody goes on much longer, and what was not done stays as it was."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirage_onnx import deadline, judging, pipeline, search_run, search_workers, searching
from mirage_onnx.deadline import Budget, Ends, OverdueError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.pipeline import Options
from mirage_onnx.searching import Setting, search_all, search_region
from mirage_onnx.superopt import saturated
from mirage_onnx.superopt.result import SearchBound, Stop
from mirage_onnx.superopt.structures import StructureStore
from mirage_onnx.target import H200
from mirage_onnx.tune import realise

MODELS = Path(__file__).parents[1] / "models"


def slowly(seconds=60.0):
  """A long step that asks as it goes, as the interpreters do."""
  end = time.monotonic() + seconds
  while time.monotonic() < end:
    deadline.check()
    time.sleep(0.005)


@contextmanager
def soon_after(seconds, most_s):
  """What is within ends ``seconds`` from now, without more than ``most_s`` of the processor behind that.

  A busy machine makes it late by the clock; the steps that it must not wait for take a minute.
  """
  used, start = [], time.monotonic()
  timer = threading.Timer(seconds, lambda: used.append(time.process_time()))
  timer.start()
  try:
    yield
    now = time.process_time()
    assert time.monotonic() - start < seconds + 30
    timer.join()
    assert now - used[0] < most_s
  finally:
    timer.cancel()


def test_the_earliest_end_holds():
  now = time.monotonic()
  deadline.check()
  with deadline.until(now + 60), deadline.until(now - 1):
    with pytest.raises(OverdueError):
      deadline.check()
    with deadline.until(now + 99), pytest.raises(OverdueError):
      deadline.check()
  deadline.check()


def test_a_command_began_with_its_process():
  """What it takes to start Python and to import is part of a budget."""
  code = "import time; a = time.monotonic(); time.sleep(1); "
  code += "from mirage_onnx import deadline; print(a - deadline.process_start())"
  before = time.monotonic()
  said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
  assert -0.1 <= float(said) <= time.monotonic() - before - 1
  with deadline.command(7.0):
    assert deadline.command_began() == 7.0
  before = time.monotonic()
  assert before <= deadline.command_began() <= time.monotonic()


def test_shares():
  for measure, share in ((True, 0.7), (False, 0.85)):
    b = Budget(100.0, 60.0, measure)
    assert 100 < b.search < b.tune < b.checks < 160
    # 4 GB are written in 20 s; of what would take longer than half of the time, half is kept for it.
    assert Budget(0.0, 60.0, measure, 4 * 10**9).tune == pytest.approx(40 * share)
    assert Budget(0.0, 60.0, measure, 10**11).tune == pytest.approx(30 * share)
    # What is written is checked in time, too.
    assert Budget(0.0, 20.0, measure).tune == pytest.approx(14 * share)
    assert Budget(0.0, 300.0, measure).tune == pytest.approx(294 * share)


def test_ends(monkeypatch):
  monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: 100.0))
  assert Ends(99.0).over and not Ends(101.0).over and not Ends().over
  assert Ends(stopped=lambda: True).over
  assert Ends(105.0).seconds_left == 5.0 and Ends(99.0).seconds_left == 0.0


@pytest.mark.parametrize("measure", [True, False])
def test_tuning_ends(monkeypatch, measure):
  """Compiling (or timing) a region takes a minute: what is not done by the end stays as it was."""
  monkeypatch.setattr(realise, "tuned", lambda *args, **options: slowly())
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  with soon_after(4.0, 0.4):
    run = pipeline.run(loaded, Options(H200, budget_s=4.0, measure=measure))
  assert not run.chosen
  assert "BUDGET" in {o.rejection.code for o in run.outcomes.values() if o.rejection}
  assert run.model.SerializeToString() == loaded.proto.SerializeToString()


def test_who_stops_a_run_does_not_wait_for_its_timings(monkeypatch):
  """Regions were found before Ctrl-C; none was timed, so none is replaced."""
  searched = []
  search = judging.search_outcomes

  def searching_done(*args, tell, **more):
    told = []
    searched.append(search(*args, tell=told.append, **more))
    for o in told:
      tell(o)

  monkeypatch.setattr(judging, "search_outcomes", searching_done)
  monkeypatch.setattr(realise, "tuned", lambda *args, **options: pytest.fail("it was timed"))
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  options = Options(H200, measure=True, stop=lambda: Stop.INTERRUPTED if searched else None)
  run = pipeline.run(loaded, options)
  assert not run.chosen
  assert any(o.rejection is None for o in searched[0].values())
  assert "INTERRUPTED" in {o.rejection.code for o in run.outcomes.values() if o.rejection}


def regions_of(name):
  loaded = load_model(MODELS / f"{name}.onnx")
  found = {c.region.key: c.region for c in find_candidates(import_model(loaded)).candidates}
  return loaded, list(found.values())


@pytest.mark.parametrize("at", ["a proof", "the saturation"])
def test_a_search_ends_in_the_middle_of_a_step(monkeypatch, at):
  if at == "a proof":
    monkeypatch.setattr(searching, "prover", lambda *_, **options: lambda *_: slowly())
  else:
    monkeypatch.setattr(saturated, "saturate", lambda *_, **options: slowly())
  loaded, regions = regions_of("rmsnorm_linear")
  with soon_after(1.0, 1.0):
    result = search_region(loaded, regions[0], H200, SearchBound(), 1.0)
  assert result.report.stop is Stop.BUDGET and not result.candidates


def test_workers_that_hear_nothing_are_ended(monkeypatch):
  """A worker in a step that asks nobody: it is ended soon after the deadline, its region has no result."""
  loaded, regions = regions_of("bert")
  monkeypatch.setattr(search_workers.WorkerProcess, "receive", lambda self: slowly_dying(self))
  found = {}
  start = time.monotonic()
  setting = Setting(H200, SearchBound(), start + 1.0, structures=StructureStore(None, {}))
  search_all(loaded, regions[:12], setting, workers=2, done=found.__setitem__)
  assert time.monotonic() - start < 1.0 + search_run.GRACE_S + 30.0
  assert len(found) == 12
  assert all(r.report.stop is Stop.BUDGET for r in found.values())


@pytest.mark.parametrize("seconds", [-1.0, 0.05])
def test_the_end_comes_before_workers_are_started(monkeypatch, seconds):
  """What comes before the search took the time: workers are ended as they start, and nothing fails."""
  loaded, regions = regions_of("bert")
  monkeypatch.setattr(search_run, "GRACE_S", 0.0)
  real = search_workers.WorkerProcess.send

  def slow_send(worker, value):
    time.sleep(0.3)
    real(worker, value)

  monkeypatch.setattr(search_workers.WorkerProcess, "send", slow_send)
  found = {}
  setting = Setting(H200, SearchBound(), time.monotonic() + seconds, structures=StructureStore(None, {}))
  search_all(loaded, regions[:12], setting, workers=2, done=found.__setitem__)
  assert len(found) == 12 and {r.report.stop for r in found.values()} == {Stop.BUDGET}


@pytest.mark.parametrize("error", [OSError("no memory"), ValueError("write to closed file")])
def test_a_worker_that_cannot_be_started_costs_its_regions(monkeypatch, error):
  """Of two workers one never starts: nobody waits for it, and the other does what it is asked."""
  loaded, regions = regions_of("bert")
  real, started = search_workers.WorkerProcess, []

  def failing(module):
    started.append(module)
    if len(started) % 2:
      time.sleep(0.2)  # the other one is at work, or done, by then
      raise error
    return real(module)

  monkeypatch.setattr(search_workers, "WorkerProcess", failing)
  found = {}
  setting = Setting(H200, SearchBound(), time.monotonic() + 2.0, structures=StructureStore(None, {}))
  searched = threading.Thread(
    target=search_all, args=(loaded, regions[:12], setting), daemon=True,
    kwargs={"workers": 2, "done": found.__setitem__},
  )  # fmt: skip
  searched.start()
  searched.join(60.0)
  assert not searched.is_alive() and len(found) == 12


def slowly_dying(worker):
  """Nothing comes until the process has ended."""
  worker._process.wait()
  raise EOFError
