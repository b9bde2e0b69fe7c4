"""Starts of sessions that seem unlike are asked again; the least of each counts."""

import json
from types import SimpleNamespace

import pytest
import whole_opening


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
