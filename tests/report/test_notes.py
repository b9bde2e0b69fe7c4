"""What models are given about the run that makes them: the same, whatever there was time for."""

import onnx
import pytest

from mirage_onnx import api, pipeline
from mirage_onnx.report import run_record
from tests.support.small_models import Net

pytestmark = pytest.mark.slow  # two searches


def test_the_same_bytes_with_time_for_the_emulator_and_without(tmp_path, monkeypatch):
  net = Net(seed=1)
  x = net.rms(net.input(8, 128))
  onnx.save(net.model(net.Relu(net.MatMul(x, net.weight(128, 128)))), tmp_path / "in.onnx")
  rows, written = [], []
  for seconds in (0.0, 1000.0):
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / f"cache {seconds}"))
    monkeypatch.setattr(pipeline, "_spare_s", lambda *_, seconds=seconds: seconds)
    out = tmp_path / f"{seconds}" / "out.onnx"
    out.parent.mkdir()
    made = api.optimize(tmp_path / "in.onnx", out, target="h200", margin=-9.0, workers=1)
    rows += [r["ran"] for r in made.report["regions"] if r["ran"]]
    written.append(out.read_bytes())
  assert rows == ["never ran", "emulated"]
  assert written[0] == written[1]
  assert [r.ran for r in run_record.read(onnx.load(out)).regions] == [""]
