"""What no kernel stands for comes through ``optimize`` as it was, and computes what it computed."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from exotic_models import EXOTIC, ROWS, WIDTH, with_region
from model_diff import custom_nodes, unexplained
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from small_models import run_model

from mirage_onnx import api


@pytest.fixture(scope="module")
def optimized():
  made = {}

  def get(name):
    if name not in made:
      made[name] = api.optimize(EXOTIC[name].build(), target="h200", workers=1).model
    return made[name]

  return get


@pytest.mark.parametrize("name", EXOTIC)
def test_only_the_region_changes(optimized, name):
  original, result = EXOTIC[name].build(), optimized(name)
  assert custom_nodes(result), "nothing was replaced, so nothing is tested"
  assert unexplained(original, result) == []


def run_plainly(model, feeds):
  options = ort.SessionOptions()
  options.log_severity_level = 3
  options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
  providers = ["CPUExecutionProvider"]
  return ort.InferenceSession(model.SerializeToString(), options, providers).run(None, feeds)


#: Where ONNX Runtime's own optimizer treats a weight that may be fed otherwise inside a function.
FED = {"old"}


@pytest.mark.parametrize("run", [run_model, run_plainly])
@pytest.mark.parametrize("name", [name for name, exotic in EXOTIC.items() if exotic.runs])
def test_same_results_without_the_library(optimized, name, run, rng):
  original = EXOTIC[name].build()
  feeds = {original.graph.input[0].name: rng.standard_normal((ROWS, WIDTH)).astype(np.float16)}
  for a, b in zip(run(original, feeds), run(optimized(name), feeds), strict=True):
    if name in FED and run is run_model:
      np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3)
    else:
      np.testing.assert_equal(a, b)
    assert type(a) is type(b)


def test_a_model_without_regions_stays_byte_for_byte():
  """Nothing to replace: the very message, whatever is in it."""
  model = EXOTIC["custom"].build()
  del model.graph.node[:-2]
  model.graph.input.append(typed(model.graph.node[0].input[0], TensorProto.FLOAT16, None))
  result = api.optimize(model, target="h200").model
  assert result.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


# A differ that finds nothing proves nothing.


@pytest.fixture
def pair(optimized):
  result = onnx.ModelProto()
  result.CopyFrom(optimized("decorated"))
  return EXOTIC["decorated"].build(), result


@pytest.mark.parametrize(
  ("change", "said"),
  [
    (lambda m: m.graph.node[-1].ClearField("name"), "changed or moved"),
    (lambda m: m.graph.node[-2].ClearField("doc_string"), "changed or moved"),
    (lambda m: m.graph.node[-2].metadata_props.pop(), "changed or moved"),
    (lambda m: m.graph.node.pop(), "gone, and read"),
    (lambda m: m.graph.node.reverse(), "changed or moved"),
    (lambda m: m.graph.initializer.add(name="more"), "'more' is new"),
    (lambda m: m.graph.value_info.add(name="more"), "'more' is new"),
    (lambda m: m.graph.input[0].ClearField("doc_string"), "header"),
    (lambda m: m.ClearField("producer_name"), "header"),
    (lambda m: m.graph.ClearField("doc_string"), "header"),
    (lambda m: m.metadata_props.pop(0), "metadata_props"),
    (lambda m: m.opset_import.add(domain="x", version=1), "opset_import"),
    (lambda m: setattr(m, "ir_version", 9), "IR version 10 became 9"),
    (lambda m: m.functions.add(name="f"), "functions"),
  ],
)
def test_seen(pair, change, said):
  original, result = pair
  assert unexplained(original, result) == []
  change(result)
  assert said in " | ".join(unexplained(original, result))


def test_a_changed_weight(optimized):
  result = onnx.ModelProto()
  result.CopyFrom(optimized("shared"))
  weight = next(t for t in result.graph.initializer if list(t.dims) == [WIDTH, WIDTH])
  weight.raw_data = bytes(len(weight.raw_data))
  assert "initializer" in " | ".join(unexplained(EXOTIC["shared"].build(), result))


def test_a_weight_that_is_an_output_stays():
  """It is read by the region and by the caller; ONNX Runtime then adds in another order."""
  model = with_region()
  weight = next(t for t in model.graph.initializer if list(t.dims) == [WIDTH, WIDTH])
  model.graph.output.append(typed(weight.name, TensorProto.FLOAT16, [WIDTH, WIDTH]))
  result = api.optimize(model, target="h200", workers=1).model
  assert custom_nodes(result) and unexplained(model, result) == []
  x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float16)
  feeds = {model.graph.input[0].name: x}
  (a, w), (b, v) = run_model(model, feeds), run_model(result, feeds)
  np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)
  assert np.array_equal(w, v) and np.array_equal(w, numpy_helper.to_array(weight))


def with_computed_shape(model, h):
  """A Reshape that joins the region, to a shape that a node outside it computes."""
  model.graph.node.extend(
    [
      helper.make_node("Shape", [model.graph.input[0].name], ["s"], name="shape"),
      helper.make_node("Reshape", [h, "s"], ["flat"], name="flat", allowzero=1),
      new_node("Neg", "flat", "z", name="neg"),
    ]
  )
  model.graph.output.append(typed("z", TensorProto.FLOAT16, None))
  model.graph.output.append(typed("s", TensorProto.INT64, None))


def test_a_shape_that_is_computed_outside_the_region(rng):
  """No kernel reads it, so it is no operand of the custom node: the body has it as a constant."""
  model = with_region(with_computed_shape)
  result = api.optimize(model, target="h200", workers=1).model
  assert [n.op_type for n in result.graph.node if n.domain == ""] == ["Shape"]
  (body,) = (f for f in result.functions if any(n.op_type == "Neg" for n in f.node))
  (reshape,) = (n for n in body.node if n.op_type == "Reshape")
  constants = {n.output[0]: n.attribute[0].t for n in body.node if n.op_type == "Constant"}
  assert numpy_helper.to_array(constants[reshape.input[1]]).tolist() == [ROWS, WIDTH]
  assert unexplained(model, result) == []
  feeds = {model.graph.input[0].name: rng.standard_normal((ROWS, WIDTH)).astype(np.float16)}
  for a, b in zip(run_model(model, feeds), run_model(result, feeds), strict=True):
    np.testing.assert_equal(a, b)
