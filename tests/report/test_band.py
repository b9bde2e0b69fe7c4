"""The band of predicted speedups is that of the record."""

import json
from pathlib import Path

import pytest

from mirage_onnx.report.band import MODELS, REALISED, speedup_band

RECORD = Path(__file__).resolve().parents[2] / "bench" / "results" / "h200" / "whole.jsonl"


def shares():
  """Measured over predicted gain of every model that was written by prediction and timed."""
  for line in RECORD.read_text(encoding="utf-8").splitlines():
    row = json.loads(line)
    if "ratio" in row and row["target"] != "local" and (row["predicted"] or {}).get("after_us"):
      predicted = row["predicted"]["before_us"] / row["predicted"]["after_us"]
      yield (row["ratio"] - 1) / (predicted - 1)


def test_it_holds_all_models_that_were_measured_and_no_more():
  found = sorted(shares())
  assert len(found) == MODELS
  assert pytest.approx((found[0], found[-1]), abs=0.006) == REALISED


def test_of_a_speedup():
  low, high = speedup_band(200.0, 100.0)
  assert (low, high) == (1 + REALISED[0], 1 + REALISED[1])
  assert speedup_band(100.0, 100.0) is None and speedup_band(100.0, 0.0) is None
