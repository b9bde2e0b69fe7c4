"""What others make of whole models: lines of every arm, whatever happens; gains of a longer run."""

import json
import subprocess
from types import SimpleNamespace

import gains
import numpy as np
import pytest
import whole_peers

OPTIONS = SimpleNamespace(graphs="g.zip", rounds=3, work="w", cpu=False, model="bert")


def run_of(monkeypatch, out, error="", *, late=False):
  def run(command, **more):
    if late:
      raise subprocess.TimeoutExpired(command, more["timeout"], output=out.encode())
    return SimpleNamespace(stdout=out, stderr=error, returncode=1 if error else 0)

  monkeypatch.setattr(subprocess, "run", run)


def told(**more):
  return "some words\nRESULT " + json.dumps({"model": "bert", **more}) + "\n"


def test_every_arm_has_a_line(monkeypatch):
  out = told(target="fused", ratio=1.1)
  run_of(monkeypatch, out + told(target="compiled", ratio=1.4))
  rows = whole_peers.stage(OPTIONS, "bert", ("fused", "compiled"), 9.0)
  assert [(r["target"], r["ratio"]) for r in rows] == [("fused", 1.1), ("compiled", 1.4)]
  run_of(monkeypatch, out, late=True)
  rows = whole_peers.stage(OPTIONS, "bert", ("fused", "compiled"), 9.0)
  assert rows[0]["ratio"] == 1.1
  assert rows[1] == {"model": "bert", "target": "compiled", "failed": "ended after 9 s"}
  run_of(monkeypatch, "", "no GPU")
  rows = whole_peers.stage(OPTIONS, "bert", ("compiled",), 9.0)
  assert [r["failed"] for r in rows] == ["exit 1: no GPU"]


class Arms:
  """Two arms of made-up times; the second one's output is ``off``."""

  def __init__(self, off):
    self.arms, self.off = ["original", "old"], off

  def _sample(self, arm, calls):
    return 2000.0, 50.0

  def times(self, rounds):
    found = np.empty((2, 2, rounds))
    found[0, 0], found[0, 1], found[1] = 300.0, 200.0, 50.0
    return found

  def outputs(self):
    want = np.linspace(1.0, 2.0, 8)
    return [want], [want + self.off]


def test_an_arm_is_timed_beside_the_original():
  arms = Arms(1e-3)
  row = whole_peers.timed(arms, "new", 5)
  assert arms.arms == ["original", "new"] and arms.calls == 4
  assert (row["onnxruntime_us"], row["us"], row["ratio"], row["ratio_95"]) == (300.0, 200.0, 1.5, [1.5, 1.5])
  wrong = whole_peers.timed(Arms(0.5), "new", 5)
  assert "ratio" not in wrong and wrong["failed"].startswith("outputs differ by 0.3")


def test_the_share_of_a_longer_runs_gain():
  times = np.array([[100.0] * 9, [60.0] * 9, [50.0] * 9])
  assert gains.share_of(times) == (0.8, [0.8, 0.8])


@pytest.mark.parametrize("failing", ["default", "long"])
def test_a_run_that_fails_is_said(monkeypatch, tmp_path, failing):
  monkeypatch.setattr(gains, "make", lambda *_: None)
  seen = []

  def stage(o, which, seconds, **more):
    seen.append(more.get("name", which))
    return {"failed": "why"} if seen[-1] == failing else {"optimize_s": 1.0}

  monkeypatch.setattr(gains, "stage", stage)
  options = SimpleNamespace(base=tmp_path, graphs="", long=1200.0)
  row = gains.model_row(options, "bert", 1e12)
  assert row[failing] == {"failed": "why"} and seen[-1] == failing and "share" not in row
