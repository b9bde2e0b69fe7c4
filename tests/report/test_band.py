"""The band of predicted speedups is that of the records."""

import json
from pathlib import Path

from mirage_onnx.report.band import MODELS, REALISED, speedup_band

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def pairs():
  """(predicted, measured) speedups of every model that was written by prediction and timed on an H200."""
  for line in (RESULTS / "h200" / "whole.jsonl").read_text(encoding="utf-8").splitlines():
    row = json.loads(line)
    if "ratio" in row and row["target"] != "local" and (row["predicted"] or {}).get("after_us"):
      yield row["predicted"]["before_us"] / row["predicted"]["after_us"], row["ratio"]


def test_it_holds_all_models_that_were_measured():
  found = list(pairs())
  assert len(found) == MODELS
  low, high = REALISED
  shares = [(measured - 1) / (predicted - 1) for predicted, measured in found]
  assert all(low <= s <= high for s in shares)
  assert min(shares) - low < 0.15 and high - max(shares) < 0.15  # and is no wider than it has to be


def test_of_a_speedup():
  low, high = speedup_band(200.0, 100.0)
  assert (low, high) == (1 + REALISED[0], 1 + REALISED[1])
  assert speedup_band(100.0, 100.0) is None and speedup_band(100.0, 0.0) is None
