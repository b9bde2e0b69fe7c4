"""What of ``bench/picks.py`` needs no GPU."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import picks


def test_a_time_of_nothing_is_none():
  points = {"a": ["x", "y", "z"], "b": ["x"]}
  times = {"a": {"x": 0.0, "y": 3.0, "z": 2.0}, "b": {"x": "SPILLS"}}
  assert picks.first_over_fastest(points, times) == pytest.approx(1.5)
