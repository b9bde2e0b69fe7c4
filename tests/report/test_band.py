"""The band of predicted speedups is that of the records."""

import json
from pathlib import Path

from mirage_onnx.report.band import MEASURED, MODELS, speedup_band

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"


def shares():
  """Measured over predicted speedup of every model that was written by prediction and timed."""
  found = json.loads((RESULTS / "predictions.json").read_text(encoding="utf-8"))
  rows = (r for gpu in ("h100", "h200") for r in found[gpu]["models"])
  return [r["speedup"] / r["speedup_predicted"] for r in rows if "speedup" in r and r["target"] != "local"]


def test_it_holds_all_models_that_were_measured():
  found = shares()
  assert len(found) == MODELS
  low, high = MEASURED
  assert all(low <= s <= high for s in found)
  assert min(found) - low < 0.03 and high - max(found) < 0.03  # and is no wider than it has to be


def test_of_a_speedup():
  low, high = speedup_band(200.0, 100.0)
  assert (low, high) == (2 * MEASURED[0], 2 * MEASURED[1])
  assert speedup_band(100.0, 100.0) is None and speedup_band(100.0, 0.0) is None
