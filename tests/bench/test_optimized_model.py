"""What the speed record keeps of a report; the predicted choice is that of the command line."""

import subprocess

import onnx
import pytest
from cases import ROWS
from optimized_model import Predicted, summary
from small_cases import SMALL


@pytest.fixture
def source(tmp_path):
  path = tmp_path / "qknorm.onnx"
  onnx.save(ROWS["qknorm"].make(**SMALL["qknorm"]).model, path)
  return path


def test_predicted(source):
  predicted = Predicted(source, 900)
  try:
    found = summary(predicted.report(1800), predicted.model)
  finally:
    predicted.close()
  nodes = onnx.load(predicted.model).graph.node
  assert 0 < found["nodes_left"] == sum(not n.op_type.startswith("MuGraph") for n in nodes)
  assert found["replaced"]
  assert sum(r["count"] for r in found["replaced"]) == len(found["params"])
  assert all("tile=" in text for texts in found["params"] for text in texts)
  assert all(k["reason"] and k["text"] for k in found["kept"])


def test_no_time(source):
  predicted = Predicted(source, 60)
  with pytest.raises(subprocess.TimeoutExpired):
    predicted.report(0)
  predicted.close()
  assert not predicted.model.exists()


def test_error(tmp_path):
  source = tmp_path / "broken.onnx"
  source.write_bytes(b"no model")
  predicted = Predicted(source, 60)
  with pytest.raises(RuntimeError, match="exit code 2"):
    predicted.report(1800)
