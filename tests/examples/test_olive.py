"""The Olive pass, with the real library where it is installed, as ``olive run`` calls it."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import Net, feeds, run_model

EXAMPLES = Path(__file__).parents[2] / "examples/olive"


def model():
  net = Net()
  y = net.MatMul(net.rms(net.input(8, 512), net.weight(512)), net.weight(512, 256))
  return net.model(net.Relu(y))


def test_the_package_file_names_a_class_and_the_run_file_its_pass():
  entry = json.loads((EXAMPLES / "package.json").read_text())["passes"]["MirageSuperoptimize"]
  module, name = entry["module_path"].rsplit(".", 1)
  text = Path(*module.split(".")).with_suffix(".py")
  assert f"class {name}(" in (EXAMPLES.parents[1] / text).read_text()
  run = json.loads((EXAMPLES / "run.json").read_text())
  assert [p["type"] for p in run["passes"].values()] == [name]


@pytest.mark.parametrize("outside", [False, True])
def test_olive_run(tmp_path, monkeypatch, outside):
  workflows = pytest.importorskip("olive.workflows")
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("OLIVE_DISABLE_TELEMETRY", "1")
  original = model()
  copied = onnx.ModelProto.FromString(original.SerializeToString())  # onnx.save changes what it is given
  onnx.save(copied, "model.onnx", save_as_external_data=outside, size_threshold=64, location="m.data")
  run = json.loads((EXAMPLES / "run.json").read_text())
  run |= {
    "cache_dir": str(tmp_path / "cache"),
    "output_dir": str(tmp_path / "out"),
    "evaluate_input_model": False,
  }
  found = workflows.run(run, package_config=str(EXAMPLES / "package.json"))
  path = Path(found.get_best_candidate().model_path)
  values = feeds(original, np.random.default_rng(0))
  saved = onnx.load(path / "model.onnx" if path.is_dir() else path)
  assert {n.domain for n in saved.graph.node} == {"ai.mirage.v1.sm90a"}
  assert run_model(saved, values)[0].tobytes() == run_model(original, values)[0].tobytes()
