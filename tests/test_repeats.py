"""The second run of ``--target local``: what it starts, compiles and asks, by a GPU with made-up times.

Seconds are of a machine (bench/spans.py); what a repeat of BERT-base once did in vain is counted here: a
process for the check and one for the race, compilers, texts of kernels that had lost, a solver for a choice.
"""

from collections import Counter

import onnx
import pytest
from fake_gpu import FakeGpu
from small_models import Net

import mirage_onnx
from mirage_onnx import api, worker_process
from mirage_onnx.choosing import partition
from mirage_onnx.compiler import candidates
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.custom_op import race
from mirage_onnx.custom_op.race import Raced, Times
from mirage_onnx.rewrite import kept_races
from mirage_onnx.target import H200
from mirage_onnx.tune import beside, kept_bench, kept_ends, kept_tuning
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

  gpu = FakeGpu(monkeypatch)
  monkeypatch.setattr(gpu, "busy", lambda seconds: found.update(gpu=1))
  machine = Machine("a fake", "0", "0", "0")
  for module in (kept_bench, kept_ends, kept_tuning, kept_races):
    monkeypatch.setattr(module, "present_machine", lambda: machine)
  monkeypatch.setattr(api, "_target", lambda name: (H200, True))

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


def test_a_repeat_starts_and_asks_nothing(counts, tmp_path):
  source, output = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(projections(Net()), source)
  first = mirage_onnx.optimize(source, output, target="local", budget_s=BUDGET_S, workers=1).report
  once, data = dict(counts), output.read_bytes()
  assert all(once[what] > 0 for what in ("gpu", "races", "processes", "compilations", "texts", "choices"))
  assert once["combinations"] > 1
  replaced = [r for r in first["regions"] if r["status"] == "replaced"]
  counts.clear()
  again = mirage_onnx.optimize(source, output, target="local", budget_s=BUDGET_S, workers=1).report
  assert replaced and [r["ops"] for r in again["regions"] if r["status"] == "replaced"] == [
    r["ops"] for r in replaced
  ]
  assert output.read_bytes() == data
  assert "earlier run" in again["checked"]
  # The winner of each region that was timed, and of those beside each other, is put together again.
  assert counts.pop("combinations", 0) <= 1 and counts["texts"] <= again["found"]["regions"] + 2
  assert counts.pop("texts") < 0.2 * once["texts"]
  assert not +counts, counts
