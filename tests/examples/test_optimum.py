"""The command of optimum-cli, with the real library where it is installed."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import Net, feeds, run_model

ROOT = Path(__file__).parents[2]


def model():
  net = Net()
  y = net.MatMul(net.rms(net.input(8, 512), net.weight(512)), net.weight(512, 256))
  return net.model(net.Relu(y))


@pytest.fixture
def namespace(tmp_path):
  """A folder for the path, with the example's file where optimum looks for commands."""
  pytest.importorskip("optimum.commands.onnxruntime")
  register = tmp_path / "site" / "optimum" / "commands" / "register"
  register.mkdir(parents=True)
  shutil.copy(ROOT / "examples/optimum/register_mirage.py", register)
  return register


def test_optimum_cli(namespace, tmp_path):
  original, folder, out = model(), tmp_path / "in", tmp_path / "out"
  folder.mkdir()
  copied = onnx.ModelProto.FromString(original.SerializeToString())  # onnx.save changes what it is given
  onnx.save(
    copied, folder / "model.onnx", save_as_external_data=True, size_threshold=64, location="model.onnx_data"
  )
  (folder / "config.json").write_text("{}")
  script = (  # in an installed environment the file lies in the namespace's own folder
    "import optimum.commands.register as r; "
    f"r.__path__.append({str(namespace)!r}); "
    "from optimum.commands.optimum_cli import main; main()"
  )
  command = ["mirage", "--onnx_model", str(folder), "-o", str(out), "--target", "h200"]
  done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True, check=False)
  assert done.returncode == 0 and "model.onnx: 1 regions replaced" in done.stdout, done.stdout + done.stderr
  values = feeds(original, np.random.default_rng(0))
  saved = onnx.load(out / "model.onnx")
  assert run_model(saved, values)[0].tobytes() == run_model(original, values)[0].tobytes()
  assert (out / "config.json").exists() and not (out / "model.onnx_data").exists()
