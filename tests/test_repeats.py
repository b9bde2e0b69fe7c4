"""The second run of ``--target local``: what it starts, compiles and asks, by a GPU with made-up times.

Seconds are of a machine (bench/spans.py); what a repeat of BERT-base once did in vain is counted here: a
process for the check and one for the race, compilers, texts of kernels that had lost, a solver for a choice.
"""

import shutil
from collections import Counter

import onnx
import pytest
from fake_gpu import FakeGpu
from small_models import Net

import mirage_onnx
from mirage_onnx import asked_targets, kept_runs, worker_process
from mirage_onnx.choosing import partition
from mirage_onnx.compiler import candidates
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.custom_op import race
from mirage_onnx.custom_op.race import Raced, Times
from mirage_onnx.kept_runs import EARLIER
from mirage_onnx.rewrite import kept_races
from mirage_onnx.target import H200
from mirage_onnx.tune import beside, kept_bench, kept_ends, kept_tuning, realise
from mirage_onnx.tune.machine import Machine
from mirage_onnx.tune.paired import speedup

#: Long enough for a busy machine: where the time is over a run has no end that a repeat could take.
BUDGET_S = 300.0


def projections(net):
  """Two projections of one value behind a norm."""
  x = net.rms(net.input(16, 256))
  return net.model(*(net.Relu(net.MatMul(x, net.weight(256, n))) for n in (256, 128)))


@pytest.fixture
def counts(monkeypatch, tmp_path):
  """What is counted, of the runs since it was cleared."""
  found = Counter()
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))

  def counted(owner, name, what):
    own = getattr(owner, name)

    def call(*rest, **more):
      found[what] += 1
      return own(*rest, **more)

    monkeypatch.setattr(owner, name, call)

  # What processes of larger machines make is counted there.
  monkeypatch.setattr(realise, "available_cores", lambda: 2)
  gpu = FakeGpu(monkeypatch)
  monkeypatch.setattr(gpu, "busy", lambda seconds: found.update(gpu=1))
  machine = Machine("a fake", "0", "0", "0")
  for module in (kept_bench, kept_ends, kept_tuning, kept_races, kept_runs):
    monkeypatch.setattr(module, "present_machine", lambda: machine)
  monkeypatch.setattr(asked_targets, "asked_target", lambda name: (H200, True))

  def raced(question, ask=None):
    """Results are faster, and so is nothing that is left out."""
    found["races"] += 1
    ratio = 0.9 if any(a.bodies for a in question.arms) else 1.1
    one = speedup(tuple(ratio * (1 + e) for e in (0.0, 0.001, -0.001, 0.0)), 0.01)
    return Times((Raced("", "run", (2.0,) * len(question.arms), (one,) * len(question.pairs)),), (0, 1))

  monkeypatch.setattr(race, "race", raced)
  counted(worker_process.WorkerProcess, "__init__", "processes")
  counted(compiler, "_nvrtc", "compilations")
  counted(candidates, "emit_kernel", "texts")
  counted(partition, "_best_choice", "choices")
  counted(beside, "side_by_side", "combinations")
  return found


@pytest.fixture
def written(counts, tmp_path):
  """What a first run has written: source, output, lock, its report, and what it took."""
  source, output, lock = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "out.lock"
  onnx.save(projections(Net()), source)
  report = run(source, output, lock)
  assert [r for r in report["regions"] if r["status"] == "replaced"]
  once = dict(counts)
  counts.clear()
  return source, output, lock, report, once


def run(source, output, lock, **more):
  options = {"target": "local", "budget_s": BUDGET_S, "workers": 1, "lock": lock, **more}
  return mirage_onnx.optimize(source, output, **options).report


def test_a_repeat_starts_and_asks_nothing(counts, written, tmp_path):
  """Where the run itself is not known any more: all that it is made of is."""
  source, output, lock, first, once = written
  assert all(once[what] > 0 for what in ("gpu", "races", "processes", "compilations", "texts", "choices"))
  assert once["combinations"] > 1
  data = output.read_bytes()
  shutil.rmtree(tmp_path / "cache" / "runs")
  again = run(source, output, lock)
  assert [r["ops"] for r in again["regions"] if r["status"] == "replaced"] == [
    r["ops"] for r in first["regions"] if r["status"] == "replaced"
  ]
  assert output.read_bytes() == data
  assert "earlier run" in again["checked"]
  # The winner of each region that was timed, and of those beside each other, is put together again.
  assert counts.pop("combinations", 0) <= 1 and counts["texts"] <= again["found"]["regions"] + 2
  assert counts.pop("texts") < 0.2 * once["texts"]
  assert not +counts, counts
  # And where it is, nothing of that; whatever differs is another run.
  data, locked = output.read_bytes(), lock.read_bytes()
  same = run(source, output, lock)
  assert not +counts and same["checked"].endswith(EARLIER)
  assert {**same, "seconds": 0, "checked": 0} == {**again, "seconds": 0, "checked": 0}
  assert (output.read_bytes(), lock.read_bytes()) == (data, locked)
  for change in (
    lambda: run(source, output, None),
    lambda: run(source, output, lock, margin=0.3),
    lambda: run(source, tmp_path / "other.onnx", lock),
    lambda: (lock.write_text("{}"), run(source, output, lock)),
    lambda: (output.write_bytes(source.read_bytes()), run(source, output, lock)),
  ):
    counts.clear()
    change()
    assert counts["texts"] > 0
