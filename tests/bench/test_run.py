"""``bench/run.py`` without a GPU: which cases it takes, and that nothing measured is lost."""

import json
import time

import pytest
import run
from cases import ROWS
from speed_table import GRAPH, LIMIT, MEASURED


def result(us):
  times = {"us": us, "q1": us, "q3": us}
  return {
    "name": "lora 1x1 b=1", "bytes": 8, "seconds": 1.0, "optimize": {}, "failed": [],
    "left_out": ["torch.compile"],
    "arms": {MEASURED + GRAPH: times, LIMIT: {**times, "us": us / 2}, "torch x": times},
  }  # fmt: skip


@pytest.fixture(autouse=True)
def no_facts(monkeypatch):
  monkeypatch.setattr(run, "facts", lambda: {"date": "today"})


def test_all_cases():
  found = run.selected(())
  assert len(found) == sum(len(r.sizes) + len(r.nearby) for r in ROWS.values())
  near = [run.is_nearby(c) for c in found]
  assert near == sorted(near)
  assert found[:3] == ("rmsnorm_linear/b1", "rmsnorm_linear/b8", "rmsnorm_linear/b16")


@pytest.mark.parametrize(
  ("names", "batches", "nearby", "want"),
  [
    (["ngpt_step"], [], "with", ["ngpt_step/b8", "ngpt_step/near", "ngpt_step/k3000"]),
    (["ngpt_step"], [], "without", ["ngpt_step/b8"]),
    (["ngpt_step"], [], "only", ["ngpt_step/near", "ngpt_step/k3000"]),
    (["lora"], [1, 16], "without", ["lora/b1", "lora/b16"]),
    (["lora/b8", "lora/near"], [1], "only", ["lora/b8", "lora/near"]),
    (["gqa_decode"], [1], "without", ["gqa_decode/one"]),
  ],
)
def test_selected(names, batches, nearby, want):
  assert list(run.selected(names, batches, nearby)) == want


def test_unknown_case():
  with pytest.raises(ValueError, match="lora/b2"):
    run.selected(["lora/b2"])


def test_recorded_after_every_case(tmp_path, capsys):
  def measure(case, seconds):
    if case == "lora/b8":
      kept = json.loads((tmp_path / "speed.json").read_text())
      assert [r["case"] for r in kept["results"]] == ["lora/b1"]
      raise RuntimeError("the GPU is gone")
    return result(20.0)

  names = ["lora/b1", "lora/b8", "lora/b16"]
  found = run.record(names, measure, tmp_path, seconds=9, total=0)
  assert json.loads((tmp_path / "speed.json").read_text()) == found
  assert [bool(r["failed"]) for r in found["results"]] == [False, True, False]
  assert "the GPU is gone" in found["results"][1]["failed"][0]
  assert found["left_out"] == []
  shown = capsys.readouterr().out
  assert "ours 20.00 us, limit 10.00, best peer 20.00 (torch x)" in shown
  assert "not run for want of time: torch.compile" in shown


def test_what_does_not_fit_is_left_out(tmp_path, monkeypatch):
  """Two cases of 40 s into 100 s, the second with what is left; no third."""
  clock, given = [0.0], []
  monkeypatch.setattr(time, "monotonic", lambda: clock[0])

  def measure(case, seconds):
    given.append(seconds)
    clock[0] += 40
    return result(20.0)

  names = ["lora/b1", "lora/b8", "lora/b16"]
  found = run.record(names, measure, tmp_path, seconds=70, total=100)
  assert given == [70, 60]
  assert found["left_out"] == ["lora/b16"]
