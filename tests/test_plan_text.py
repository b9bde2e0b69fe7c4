"""The launch plan that a model's bundle holds, as text."""

from pathlib import Path

import onnx
from onnx import numpy_helper

from mirage_onnx import api
from mirage_onnx.custom_op import parse_plan, read_bundle

MODEL = Path(__file__).parents[1] / "models" / "rmsnorm_linear.onnx"


def test_plan_of_the_exported_norm_and_linear(golden):
  model = api.optimize(MODEL, target="h200").model
  assert isinstance(model, onnx.ModelProto)
  (stored,) = (t for t in model.graph.initializer if t.name == "mirage.bundle")
  bundle = read_bundle(numpy_helper.to_array(stored).tobytes())
  (plan,) = bundle.plans
  assert parse_plan(plan).to_text() == plan
  (kernel,) = bundle.provenance[0]["kernels"]
  assert len(kernel["sha256"]) == 64
  assert plan.replace(kernel["name"], "KERNEL") == golden
