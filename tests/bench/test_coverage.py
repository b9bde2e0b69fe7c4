"""``bench/coverage.py`` on two small models: what every table must satisfy."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import weights
from coverage_table import watched as watched_module
from coverage_table.inputs import draw
from coverage_table.kinds import DECODE, ENCODER, QUANTIZED, kind_of
from coverage_table.stage import Said
from coverage_table.watched import watched

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, str(ROOT / "bench" / "coverage.py")]
NAMES = ("ngpt_float32", "distilbert")


def test_unknown_model():
  done = subprocess.run([*COMMAND, "gpt7"], capture_output=True, text=True, check=False)
  assert done.returncode == 2
  assert "no such model: gpt7" in done.stderr


def test_kinds():
  assert kind_of("qwen2_decode4096") == DECODE
  assert kind_of("whole_bert_base_1x128") == ENCODER
  assert kind_of("llama_int4_prefill128") == QUANTIZED


def test_a_child_that_takes_too_long(tmp_path, monkeypatch):
  code = "x = bytearray(100 << 20)\nimport time\nprint('here', flush=True)\ntime.sleep(600)"
  now, log = [0.0], tmp_path / "log"

  def sleep(seconds):
    """The clock stands until the child is where it stays, whatever that takes."""
    time.sleep(seconds / 10)
    now[0] += 0.25 if log.read_bytes() else 0.0

  monkeypatch.setattr(watched_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
  ran = watched([sys.executable, "-c", code], 2, log)
  assert ran.code is None and ran.seconds == 2
  assert ran.text == "here\n"
  assert ran.memory > 100 << 20
  assert watched([sys.executable, "-c", "raise SystemExit(3)"], 60, tmp_path / "log").code == 3


def test_inputs():
  """The last tokens are masked, but not the one of a decode step."""
  values = [
    onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", 16]),
    onnx.helper.make_tensor_value_info("attention_mask", onnx.TensorProto.INT64, ["batch", 16]),
    onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, ["batch", 64]),
  ]
  model = onnx.helper.make_model(onnx.helper.make_graph([], "g", values, []))
  said = {"limits": {"input_ids": 5}, "sizes": {"batch": 3}}
  onnx.helper.set_model_props(model, {"inputs": json.dumps(said)})
  plain, hard = draw(model, "plain"), draw(model, "hard")
  assert plain["input_ids"].shape == (3, 16) and plain["input_ids"].max() < 5
  assert plain["attention_mask"].all() and hard["attention_mask"].sum() == 3 * 14
  assert hard["x"].dtype == np.float16 and np.abs(hard["x"]).max() > 4 * np.abs(plain["x"]).max()
  said["limits"]["position_ids"] = 9
  onnx.helper.set_model_props(model, {"inputs": json.dumps(said)})
  assert draw(model, "hard")["attention_mask"].sum() == 3 * 15


@pytest.mark.slow
def test_two_models(tmp_path):
  """Searches end long before their budget, on a busy machine too: one that was cut off replaced nothing."""
  for name in NAMES:
    onnx.save(weights.load(name), tmp_path / f"{name}.onnx")
  where = ["--from", str(tmp_path), "--out", str(tmp_path / "out"), "--scratch", str(tmp_path)]
  command = [*COMMAND, *where, "--flags", '{"budget_s": 600}']
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr + done.stdout
  data = json.loads((tmp_path / "out" / "coverage.json").read_text())
  text = subprocess.run([*command, "--show"], capture_output=True, text=True, check=True).stdout
  assert sorted(NAMES) == [m["name"] for m in data["models"]]
  assert data["command"].startswith("python bench/coverage.py --from")
  assert {"python", "onnx", "onnxruntime"} <= data["versions"].keys()
  for model in data["models"]:
    assert model["name"] in text
    assert model["stock"]["result"] == "identical", model["stock"]
    assert model["emulated"]["result"] == "passed" and model["emulated"]["inputs"] > 0, model["emulated"]
    assert model["memory_mb"] > 50 and model["seconds"] > 0
    c = model["coverage"]
    for share in (c["share"], c["share_apart"]):
      assert all(0 <= x <= 1 for x in share.values())
    assert c["share_apart"]["bytes"] >= c["share"]["bytes"]
    assert 0 < c["replaced_nodes"] <= c["nodes"]
    assert 0 < c["replaced"] <= c["instances"] <= c["candidates"]
    assert c["replaced"] <= c["regions"] <= c["candidates"]
    assert 0 < c["after_us"] < c["before_us"] and 0 < c["replaced_us"] <= c["before_us"]
    assert c["unsized"] == 0
    # Every node is replaced or has one reason, and the reasons account for all bytes.
    assert c["replaced_nodes"] + sum(k["nodes"] for k in c["kept"]) == c["nodes"]
    rest = sum(k["bytes"] for k in c["kept"])
    assert 1 - rest / c["bytes"] == pytest.approx(c["share"]["bytes"], abs=1e-3)
  kept = sum(k["bytes"] for m in data["models"] for k in m["coverage"]["kept"])
  assert sum(c["bytes"] for c in data["codes"]) == kept
  again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
  assert "ngpt_float32 " not in again  # they have a line


def test_how_far_a_run_said_that_it_is(monkeypatch):
  """The last line before a time, if the run went on; and the longest silence."""
  said = Said(0.0)
  for now, line in ((2.0, "match 1.0 s"), (10.0, "  superopt: region 1 of 9"), (61.0, "superopt 50 s")):
    monkeypatch.setattr(time, "monotonic", lambda now=now: now)
    print(line, file=said)
  assert said.at(60.0) == "superopt: region 1 of 9" and said.at(5.0) == "match 1.0 s"
  assert said.at(62.0) == said.at(1.0) == Said(0.0).at(60.0) == ""
  assert said.longest(70.0) == 51.0 and said.longest(200.0) == 139.0
