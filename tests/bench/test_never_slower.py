"""Random models: valid, of every kind, the same for a seed; and what the script says of them."""

import argparse
import json
import os
import time
from collections import Counter
from types import SimpleNamespace

import never_slower
import numpy as np
import onnx
import promised_cases
import pytest
import random_model


def test_plans_cover_types_and_blocks():
  """Without drawing weights: which models the seeds are."""
  found = [random_model.plan(seed) for seed in range(300)]
  assert {p.kind for p in found} == set(random_model.TYPES)
  blocks = Counter(name for p in found for name in p.names)
  assert set(blocks) == set(random_model.BLOCKS) and min(blocks.values()) > 10
  assert min(p.rows for p in found) == 1 and max(p.rows for p in found) == 8192
  assert min(p.width for p in found) == 64 and max(p.width for p in found) == 8192


@pytest.mark.parametrize("seed", [2, 3, 12])
def test_a_model(seed):
  model, what = random_model.draw(seed)
  onnx.checker.check_model(model, full_check=True)
  assert what["text"].startswith(f"{what['type']} {what['rows']}x{what['width']} ")
  (y,) = model.graph.output
  assert y.type.tensor_type.shape.dim[0].dim_value == what["rows"]
  again, _ = random_model.draw(seed)
  assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
  weights = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
  assert sum(w.nbytes for w in weights) < random_model.MOST_BYTES
  assert all(np.isfinite(w.astype(np.float32)).all() for w in weights)


def test_lines():
  race = [{"how": "graph", "us": [10.0, 5.0], "openings": 4, "mean": 2.0, "low": 1.9, "high": 2.1}]
  line = never_slower.line_of(
    {"seed": 7, "result": "replaced", "text": "fp16", "optimize_s": 3, "race": race}
  )
  assert line.startswith("seed    7 replaced") and "graph 10.0 -> 5.0 us 2.000 (1.900)" in line
  assert "no GPU" in never_slower.line_of({"seed": 1, "result": "failed", "reason": "no GPU"})


def test_the_promised_cases():
  """Those of small weights: valid, of the shapes that their names say."""
  small = [n for n in promised_cases.CASES if n.startswith(("ln_gelu.8x", "pool", "attention.1x"))]
  shapes = {}
  for name in small:
    model, what = promised_cases.draw(name)
    onnx.checker.check_model(model, full_check=True)
    assert what["text"] == f"fp16 {name}"
    shapes[name] = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
  assert shapes == {
    "ln_gelu.8x384x1536": [8, 1536], "pool_scale.16x196x768": [16, 196, 768],
    "attention.1x12x128x64": [1, 12, 128, 64],
  }  # fmt: skip
  assert len(promised_cases.CASES) == 29


class _Asked:
  """Stands for processes: notes what is asked of them; ``slow`` is written and waits for its race."""

  def __init__(self, monkeypatch):
    self.optimized, self.raced = [], []
    monkeypatch.setattr(never_slower, "answers", self)

  def __call__(self, seeds, cores, o, *, race=False):
    assert cores and not (race and self.running)
    assert float((o.work / "until").read_text()) > never_slower.time.monotonic()
    for seed in list(seeds):
      (self.raced if race else self.optimized).append(seed)
      self.running = not race
      yield {"seed": seed, "result": "replaced" if race else ("written" if seed % 2 else "unchanged")}
      self.running = False
      if seed == 4 and not race:
        return  # its process ended

  running = False


def options(tmp_path, jobs):
  rows = tmp_path / "rows.jsonl"
  return argparse.Namespace(jobs=jobs, out=rows, work=tmp_path, waiting=[], budget=1.0, gates=2)


def test_what_was_written_is_raced_alone_and_once(monkeypatch, tmp_path):
  asked, end = _Asked(monkeypatch), time.monotonic() + 600
  o = options(tmp_path, 2)
  never_slower.all_of(range(9), o, end)
  assert sorted(asked.optimized) == [*range(9)] and sorted(asked.raced) == [1, 3, 5, 7]
  assert not o.waiting
  kept = [json.loads(line) for line in o.out.read_text().splitlines()]
  assert {r["seed"]: r["result"] for r in kept} == {
    seed: "replaced" if seed % 2 else "unchanged" for seed in range(9)
  }
  never_slower.all_of(range(9), o, end)  # nothing is asked twice
  assert len(asked.optimized) == 9 and len(asked.raced) == 4


def test_nothing_is_begun_whose_race_has_no_time(monkeypatch, tmp_path):
  """Of a model at a time: its budget, and one race for each of what waits and of the one at work."""
  now = time.monotonic()
  monkeypatch.setattr(never_slower, "time", SimpleNamespace(monotonic=lambda: now))
  asked, o = _Asked(monkeypatch), options(tmp_path, 1)
  seconds = o.budget + never_slower.ABOUT_S * (never_slower.RACED + 1) + 3
  never_slower.all_of(range(40), o, now + seconds)
  # Two batches of two written models each: before the second there was room for its races.
  assert len(asked.optimized) == 4 and asked.raced == [1, 3] and not o.waiting


def test_workers_of_no_models_are_not_started():
  asked = []

  def ask(left):
    asked.append(list(left))
    return iter([{"seed": s} for s in left])

  assert len(list(never_slower.restarted([1, 2], ask, time.monotonic() + 60))) == 2
  assert asked == [[1, 2]]


@pytest.mark.slow
def test_regions_are_timed_and_noted(tmp_path):
  """A worker by made-up times: it stands in front of functions of the tuner, whose arguments may change."""
  (tmp_path / "until").write_text(str(time.monotonic() + 600))
  o = argparse.Namespace(
    budget=120.0, work=tmp_path, commit="", target="local", gates=1, choices=tmp_path / "choices", cpu=True,
    fake=True,
  )  # fmt: skip
  cores = sorted(os.sched_getaffinity(0))
  (row,) = never_slower.answers([147], cores, o)
  assert row["result"] in ("written", "unchanged") and "reason" not in row
  assert row["timed"] == 1 and set(row["gate_s"]) == {"waited", "raced"}
  (noted,) = map(json.loads, o.choices.read_text().splitlines())
  assert noted["seed"] == 147 and noted["timed"] and noted["ort_us"] > 0
