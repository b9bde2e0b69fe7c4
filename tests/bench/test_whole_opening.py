"""Starts of sessions that seem unlike are asked again; the least of each counts."""

import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import whole_opening
from small_models import Net


@pytest.mark.parametrize(
  ("starts", "count", "ratio"),
  [
    ({"a": [0.2, 0.21], "b": [0.2, 0.22]}, 2, 1.0),
    ({"a": [0.2, 0.2, 0.2], "b": [0.3, 0.3, 0.21]}, 3, 1.05),  # luck
    ({"a": [0.2] * 6, "b": [0.3] * 6}, 6, 1.5),  # it is slower
  ],
)
def test_starts_that_are_unlike_are_asked_again(monkeypatch, starts, count, ratio):
  left = {name: iter(own) for name, own in starts.items()}

  def run(command, **more):
    row = {"session_start_s": next(left[command[2]]), "gpu_memory_mib": 100.0}
    return SimpleNamespace(returncode=0, stdout=json.dumps(row) + "\n", stderr="")

  monkeypatch.setattr(whole_opening.subprocess, "run", run)
  found = whole_opening.openings(["a", "b"], cpu=True)
  assert found["openings"] == count and found["session_start_s_ratio"] == ratio
  assert found["gpu_memory_mib_ratio"] == 1.0


def test_starts_in_turns(tmp_path):
  net = Net(dtype=np.float32)
  x = net.input(4, 8)
  model = net.model(net.MatMul(x, net.weight(8, 8)))
  paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
  for path in paths:
    onnx.save(model, path)
  found = whole_opening.starts(paths, cpu=True, rounds=3)
  assert found["rounds"] == 3 and min(found["session_start_s"].values()) > 0
  assert found["ratio_95"][0] <= found["ratio"] <= found["ratio_95"][1]
