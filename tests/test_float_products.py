"""Products with floats of 8 bits as onnxruntime-genai's builder writes them, from model to session.

onnxruntime has the operator on GPUs only, so neither originals nor bodies run here.
"""

import ml_dtypes
import numpy as np
import pytest
from float_products import float8, widened
from region_meaning import largest_region
from slow_nodes import choose_slow
from small_models import check_stored_once, feeds, replaced_ops, search_region

import mirage_onnx

OP = "MatMulBlockQuantizedFp8Weight"


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
  """A prediction chooses none by itself; here one takes ONNX Runtime 100 us."""
  choose_slow(monkeypatch, {OP}, 100.0)


CASES = {
  "one row": {},
  "blocks of 128": {"block": 128},
  "bias": {"rows": 8, "bias": True},
  "blocks of 32, bias": {"rows": 3, "block": 32, "n": 200, "bias": True},
  "rows of three tiles": {"rows": 20},
  "a batch": {"rows": (2, 3), "n": 256},
  "bf16": {"rows": 2, "dtype": ml_dtypes.bfloat16, "n": 256},
}


@pytest.mark.parametrize("name", CASES)
def test_replaced(name):
  model = float8(**CASES[name])
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  (region,) = (r for r in result.report["regions"] if r["status"] == "replaced")
  assert "p4m3[" in region["ugraph"]
  if "dtype" in CASES[name]:
    return  # numpy gives onnxruntime no bf16
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  values = feeds(model, np.random.default_rng(0))
  (got,), want = session.run(None, values), widened(model, values)
  assert np.linalg.norm(got - want) <= 5e-4 * np.linalg.norm(want)
  assert all(mirage_onnx.launches(session).values())


def test_beside_a_norm():
  """One region, as with any weights."""
  region = largest_region(float8(2, 256, norm=True, n=128))
  assert len(region.nodes) == 2 and search_region(region).candidates


def test_the_weights_are_stored_once_and_as_they_were():
  model = float8(n=256)
  check_stored_once(model)
