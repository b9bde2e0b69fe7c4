"""``bench/coverage.py`` on two models: what every table must satisfy."""

import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest
from coverage_table.checks import Check
from coverage_table.kinds import DECODE, ENCODER

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "bench" / "coverage.py")]
NAMES = {"ngpt_float32": DECODE, "distilbert": ENCODER}
#: Search time per model: what is not found by then is in the table as BUDGET.
BUDGET_S = 15


def test_unknown_model():
  done = subprocess.run([*COMMAND, "gpt7"], capture_output=True, text=True, check=False)
  assert done.returncode == 2
  assert "no such model: gpt7" in done.stderr


@pytest.mark.slow
def test_two_models(tmp_path):
  command = [*COMMAND, *NAMES, "--budget-s", str(BUDGET_S), "--out", str(tmp_path)]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr + done.stdout
  data = json.loads(lzma.decompress((tmp_path / "coverage.json.xz").read_bytes()))
  show = [*COMMAND, "--show", "--out", str(tmp_path)]
  text = subprocess.run(show, capture_output=True, text=True, check=True).stdout
  assert data["models"] and set(NAMES) == {m["name"] for m in data["models"]}
  assert data["command"].startswith("python bench/coverage.py ngpt_float32")
  assert {"python", "onnx", "onnxruntime"} <= data["versions"].keys()
  for model in data["models"]:
    assert model["name"] in text
    assert model["kind"] == NAMES[model["name"]]
    assert Check(**model["stock"]).result == "identical", model["stock"]
    c = model["coverage"]
    for share in (c["share"], c["share_apart"]):
      assert all(0 <= x <= 1 for x in share.values())
    assert c["share_apart"]["bytes"] >= c["share"]["bytes"]
    assert 0 < c["replaced_nodes"] <= c["nodes"]
    assert 0 < c["replaced"] <= c["instances"] <= c["candidates"]
    assert c["replaced"] <= c["regions"] <= c["candidates"]
    assert 0 < c["after_us"] < c["before_us"]
    assert c["unsized"] == 0
    # Every node is replaced or has one reason, and the reasons account for all bytes.
    assert c["replaced_nodes"] + sum(k["nodes"] for k in c["kept"]) == c["nodes"]
    rest = sum(k["bytes"] for k in c["kept"])
    assert 1 - rest / c["bytes"] == pytest.approx(c["share"]["bytes"], abs=1e-3)
  bytes_kept = sum(k["bytes"] for m in data["models"] for k in m["coverage"]["kept"])
  assert sum(r["kept"]["bytes"] for r in data["reasons"]) == bytes_kept
  assert sum(c["bytes"] for c in data["codes"]) == bytes_kept
  update(tmp_path, data)


def update(folder, before):
  command = [*COMMAND, "ngpt_float32", "--update", "--budget-s", "2", "--out", str(folder)]
  subprocess.run(command, capture_output=True, check=True)
  after = json.loads(lzma.decompress((folder / "coverage.json.xz").read_bytes()))
  lines = [{m["name"]: m for m in data["models"]} for data in (before, after)]
  assert lines[0].keys() == lines[1].keys()
  assert lines[0]["distilbert"] == lines[1]["distilbert"]
  assert lines[0]["ngpt_float32"]["seconds"] != lines[1]["ngpt_float32"]["seconds"]
  assert after["models of an earlier run"] == f"1, {before['date']}"
