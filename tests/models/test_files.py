"""The exported models: small, without traces of the exporting machine, and they run."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import packed
import pytest
from onnx import numpy_helper

MODELS = Path(__file__).parents[2] / "models"
NAMES = ["llama_decode", "lora", "bert", "rmsnorm_linear"]
INTEGER_BOUND = {"input_ids": 128, "attention_mask": 2, "position_ids": 16}
ABSOLUTE_PATH = re.compile(rb"/(?:work|root|home|tmp|opt|usr)/|[/\\]Users[/\\]")


def session(path):
  return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def random_feeds(runner, seed=0):
  rng = np.random.default_rng(seed)
  feeds = {}
  for value in runner.get_inputs():
    assert all(isinstance(dim, int) for dim in value.shape), value
    if value.type == "tensor(int64)":
      feeds[value.name] = rng.integers(INTEGER_BOUND[value.name], size=value.shape)
    else:
      assert value.type == "tensor(float16)"
      feeds[value.name] = rng.standard_normal(value.shape).astype(np.float16)
  return feeds


def test_every_model_is_listed():
  assert {path.stem for path in MODELS.glob("*.onnx")} == set(NAMES)
  assert all((MODELS / f"{name}.py").exists() for name in NAMES)
  assert set(packed.names()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_file(name):
  data = (MODELS / f"{name}.onnx").read_bytes()
  assert len(data) < 500_000
  assert not ABSOLUTE_PATH.search(data)
  model = onnx.load_from_string(data)
  onnx.checker.check_model(model, full_check=True)
  assert model.ir_version <= 13
  assert {entry.domain: entry.version for entry in model.opset_import} == {"": 20}
  assert not model.functions
  assert not model.metadata_props
  for node in model.graph.node:
    assert not node.metadata_props and not node.doc_string
  for tensor in model.graph.initializer:
    assert tensor.data_location == onnx.TensorProto.DEFAULT


@pytest.mark.parametrize("name", NAMES)
def test_runs(name):
  runner = session(MODELS / f"{name}.onnx")
  feeds = random_feeds(runner)
  for value, result in zip(runner.get_outputs(), runner.run(None, feeds), strict=True):
    assert result.dtype == np.float16
    assert list(result.shape) == value.shape
    assert np.isfinite(result).all()
    assert 0.05 < np.abs(result).max() < 50  # every output of the order of one


def test_padding_is_masked():
  """Cached values under a zero of the attention mask do not reach the logits."""
  runner = session(MODELS / "llama_decode.onnx")
  feeds = random_feeds(runner)
  feeds["attention_mask"] = np.ones_like(feeds["attention_mask"])
  feeds["attention_mask"][1, :3] = 0
  first = runner.run(["logits"], feeds)[0]
  feeds["past_value_0"][1, :, :3] += 1
  np.testing.assert_array_equal(runner.run(["logits"], feeds)[0], first)
  feeds["past_value_0"][0, :, :3] += 1
  assert (runner.run(["logits"], feeds)[0][0] != first[0]).any()


def test_no_adapter_is_zero():
  """A zero lora_B (PEFT's initial value) would hide the whole branch."""
  for tensor in onnx.load(MODELS / "lora.onnx").graph.initializer:
    if len(tensor.dims) == 2:
      assert np.abs(numpy_helper.to_array(tensor).astype(np.float32)).max() > 0.1


@pytest.mark.parametrize(("batch", "hidden", "out"), [(8, 64, 64), (3, 256, 96), (16, 512, 1024)])
def test_scale(tmp_path, batch, hidden, out):
  """Same nodes at another size, and the numbers of a float64 computation."""
  path = tmp_path / "scaled.onnx"
  sizes = ["--batch", str(batch), "--hidden", str(hidden), "--out", str(out)]
  script = str(MODELS / "scale_rmsnorm_linear.py")
  subprocess.run([sys.executable, script, *sizes, "-o", str(path)], check=True)
  model, template = onnx.load(path), onnx.load(MODELS / "rmsnorm_linear.onnx")
  onnx.checker.check_model(model, full_check=True)
  assert list(model.graph.node) == list(template.graph.node)
  intermediate = {name for node in template.graph.node for name in node.output} - {"y"}
  assert {value.name for value in model.graph.value_info} == intermediate
  runner = session(path)
  feeds = random_feeds(runner)
  (got,) = runner.run(None, feeds)
  assert got.shape == (batch, out)
  weights = {t.name: numpy_helper.to_array(t).astype(float) for t in model.graph.initializer}
  x = feeds["x"].astype(float)
  normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * weights["norm.weight"]
  want = normed @ weights["linear.weight"].T
  assert weights["linear.weight"].shape == (out, hidden)
  np.testing.assert_allclose(got.astype(float), want, rtol=0, atol=3e-3 * np.abs(want).max())
