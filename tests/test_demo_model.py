"""The demo's model: what its docstring says, and something to optimize."""

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from small_models import matches

from mirage_onnx.demo_model import gated_mlp


def test_is_the_formula():
  model = gated_mlp(64, 96)
  onnx.checker.check_model(model, full_check=True)
  w = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
  x = np.random.default_rng(1).standard_normal((1, 64)).astype(np.float16)
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  (got,) = session.run(None, {"x": x})
  wide = x.astype(np.float64)
  h = wide / np.sqrt(np.mean(wide**2) + 1e-5) * w["norm.weight"]
  gate = h @ w["gate.weight"]
  want = wide + (gate / (1 + np.exp(-gate)) * (h @ w["up.weight"])) @ w["down.weight"]
  np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)


def test_is_the_same_every_time():
  assert gated_mlp(64, 96) == gated_mlp(64, 96)


def test_offers_a_region_with_both_products():
  regions = matches(gated_mlp()).candidates
  assert any({"gate", "up", "gated", "norm.root"} <= set(c.nodes) for c in regions)
