"""Random models and the promised cases, as recorded: none slower than ONNX Runtime."""

import json
from collections import Counter
from pathlib import Path

import pytest
from promised_cases import CASES
from random_model import plan

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
#: Slower than this with confidence breaks the promise.
SLOWER = 0.99


def rows(name):
  found = []
  for card in ("h100", "h200"):
    path = RESULTS / card / f"{name}.jsonl"
    found += [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []
  return found


@pytest.fixture(scope="module")
def models():
  return rows("never_slower")


def test_no_random_model_is_slower(models):
  assert len(models) == 300 and {r["result"] for r in models} <= {"replaced", "unchanged"}
  seeds = Counter(r["seed"] for r in models)
  assert max(seeds.values()) == 1 and max(seeds) < 300
  replaced = [r for r in models if r["result"] == "replaced"]
  assert len(replaced) == 156 and all(r["race"] for r in replaced)
  assert all(max(r["launches"]) > 0 for r in replaced if "launches" in r)
  assert all(w["high"] is None or w["high"] >= SLOWER for r in replaced for w in r["race"])


def test_rows_say_which_model_and_what_wrote_them(models):
  for r in models:
    p = plan(r["seed"])
    assert (r["type"], r["rows"], r["width"]) == (p.kind, p.rows, p.width)
  later = [r for r in models if "budget_s" in r]
  assert len(later) == 242 and all(r["gpu"] and len(r["commit"]) == 12 for r in later)


def test_no_random_model_chosen_by_prediction_is_slower():
  """``--target h200`` without a GPU, raced on an H100 afterwards."""
  predicted = rows("predicted_random")
  assert len({r["seed"] for r in predicted}) == len(predicted) == 126
  assert {r["type"] for r in predicted} == {"fp16", "bf16", "fp32"}
  replaced = [r for r in predicted if r["result"] == "replaced"]
  assert len(replaced) == 116 and {r["result"] for r in predicted} == {"replaced", "unchanged"}
  assert all(r["race"] and max(r["launches"]) > 0 for r in replaced)
  assert all(w["high"] is None or w["high"] >= SLOWER for r in replaced for w in r["race"])


def test_no_promised_case_is_slower():
  found = rows("promised_cases")
  assert {r["seed"] for r in found} == set(CASES)
  assert {r["result"] for r in found} <= {"replaced", "unchanged"}
  assert all(w["high"] is None or w["high"] >= SLOWER for r in found for w in r.get("race", ()))
