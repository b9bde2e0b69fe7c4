"""Whole models side by side: the statistics, the models, and a run of the script without a GPU."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import kinds
import numpy as np
import onnx
import pytest
import whole_arms
import whole_model
from small_models import Net

from mirage_onnx import pipeline

ROOT = Path(__file__).resolve().parents[2]


def test_the_interval_holds_the_ratio():
  rng = np.random.default_rng(0)
  times = np.stack([200 + rng.standard_normal(61), 100 + rng.standard_normal(61)])
  ratio, (low, high) = whole_arms.ratio_of(times)
  assert low < ratio < high and low > 1.98 and high < 2.02
  assert whole_arms.ratio_of(times[::-1])[0] == pytest.approx(0.5, rel=1e-2)
  wide = whole_arms.ratio_of(times + 40 * rng.standard_normal(times.shape))[1]
  assert wide[1] - wide[0] > 5 * (high - low)


def test_the_worst_difference():
  want = [np.ones(4), np.array([1.0, np.inf])]
  assert whole_arms.worst_difference(want, want) == 0
  assert whole_arms.worst_difference([np.full(4, 1.1), want[1]], want) == pytest.approx(0.1)
  assert whole_arms.worst_difference([np.array([1, 1, 1, np.nan]), want[1]], want) == float("inf")


@pytest.fixture
def graphs(tmp_path):
  """A zip with one model, whose weight has no file."""
  net = Net()
  y = net.Add(net.MatMul(net.rms(net.input(2, 64)), net.weight(64, 64)), net.input(2, 64))
  model = net.model(y)
  path = tmp_path / "whole.onnx"
  onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
  saved = onnx.load(path, load_external_data=False)
  weights = []
  for t in saved.graph.initializer:
    if t.external_data:
      where = {e.key: e.value for e in t.external_data}
      size = int(where["length"])
      weights.append({"parameter": t.name, "shape": list(t.dims), "dtype": "FLOAT16", "bytes": size,
                      "offset": int(where.get("offset", 0))})  # fmt: skip
  total = max(w["offset"] + w["bytes"] for w in weights)
  found = tmp_path / "graphs.zip"
  with zipfile.ZipFile(found, "w") as z:
    z.writestr("small.onnx", path.read_bytes())
    z.writestr("small.json", json.dumps({"weights": weights, "bytes": total}))
  return found


def test_weights_are_the_same_every_time(graphs, tmp_path):
  assert whole_model.names_in(graphs) == ("small",)
  made = [onnx.load(whole_model.make(graphs, "small", tmp_path / name)) for name in "ab"]
  assert made[0].SerializeToString() == made[1].SerializeToString()
  feeds = whole_model.feeds_of(tmp_path / "a" / "model.onnx")
  assert {x.dtype for x in feeds.values()} == {np.dtype(np.float16)}
  assert 0.8 < np.std(np.concatenate([x.ravel() for x in feeds.values()]).astype(np.float32)) < 1.2


@pytest.mark.slow
def test_a_run_and_what_it_has_already(graphs, tmp_path):
  command = [
    sys.executable, str(ROOT / "bench" / "whole.py"), "--cpu", "--graphs", str(graphs), "--rounds", "3",
    "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"),
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  (line,) = (tmp_path / "out" / "whole.jsonl").read_text().splitlines()
  row = json.loads(line)
  assert (row["model"], row["target"]) == ("small", "h200")
  assert row["ratio"] > 0 and row["error"] < 1e-2 and row["custom_nodes"] == len(row["launches"]) > 0
  assert row["replaced"][0]["predicted_us"] > 0
  assert min(row["session_start_s"].values()) > 0 and row["gpu_memory_mib"] == {"original": 0, "optimized": 0}
  again = subprocess.run(command, capture_output=True, text=True)
  assert again.returncode == 0
  assert (tmp_path / "out" / "whole.jsonl").read_text().splitlines() == [line]


@pytest.mark.slow
def test_a_run_of_local_without_a_gpu(graphs, tmp_path):
  """All of it but kernels, as before a slot on a GPU."""
  command = [
    sys.executable, str(ROOT / "bench" / "whole.py"), "--fake", "--targets", "local", "--graphs", str(graphs),
    "--rounds", "3", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"),
  ]  # fmt: skip
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr
  (line,) = (tmp_path / "out" / "whole.jsonl").read_text().splitlines()
  row = json.loads(line)
  assert row["target"] == "local" and row["custom_nodes"] == len(row["launches"]) > 0
  assert row["replaced"][0]["measured_us"] > 0 and row["measured"]["rows"]


@pytest.mark.parametrize("dtype", kinds.TYPES)
@pytest.mark.parametrize("kind", sorted(kinds.KINDS))
def test_chains_are_models(kind, dtype):
  model, links = kinds.chain(kind, 2, 128, kinds.TYPES[dtype])
  onnx.checker.check_model(model, full_check=True)
  ends = 2 if dtype == "bf16" else 0  # casts: inputs and outputs are fp32, for numpy has no bfloat16
  assert links >= kinds.LEAST and (len(model.graph.node) - ends) % links == 0


def test_chains_are_optimized_without_the_limits():
  assert callable(pipeline.unpredicted_at)  # what kinds.optimize puts aside
