"""Random models: valid, of every kind, the same for a seed; and what the script says of them."""

from collections import Counter

import never_slower
import numpy as np
import onnx
import pytest
import random_model


def test_plans_cover_types_and_blocks():
  """Without drawing weights: which models the seeds are."""
  found = [random_model.plan(seed) for seed in range(300)]
  assert {p.kind for p in found} == set(random_model.TYPES)
  blocks = Counter(name for p in found for name in p.names)
  assert set(blocks) == set(random_model.BLOCKS) and min(blocks.values()) > 10
  assert min(p.rows for p in found) == 1 and max(p.rows for p in found) == 8192
  assert min(p.width for p in found) == 64 and max(p.width for p in found) == 8192


@pytest.mark.parametrize("seed", [2, 3, 12])
def test_a_model(seed):
  model, what = random_model.draw(seed)
  onnx.checker.check_model(model, full_check=True)
  assert what["text"].startswith(f"{what['type']} {what['rows']}x{what['width']} ")
  (y,) = model.graph.output
  assert y.type.tensor_type.shape.dim[0].dim_value == what["rows"]
  again, _ = random_model.draw(seed)
  assert model.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
  weights = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer]
  assert sum(w.nbytes for w in weights) < random_model.MOST_BYTES
  assert all(np.isfinite(w.astype(np.float32)).all() for w in weights)


def test_lines():
  race = [{"how": "graph", "us": [10.0, 5.0], "openings": 4, "mean": 2.0, "low": 1.9, "high": 2.1}]
  line = never_slower.line_of(
    {"seed": 7, "result": "replaced", "text": "fp16", "optimize_s": 3, "race": race}
  )
  assert line.startswith("seed    7 replaced") and "graph 10.0 -> 5.0 us 2.000 (1.900)" in line
  assert "no GPU" in never_slower.line_of({"seed": 1, "result": "failed", "reason": "no GPU"})
