"""The canonical text of a region's ONNX nodes: equal for equal work, whatever it is called."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from small_models import Net

from mirage_onnx import pipeline
from mirage_onnx.importer import load_model
from mirage_onnx.tune.baseline_nodes import canonical_nodes
from mirage_onnx.tune.ort_run import region_model

MODELS = Path(__file__).resolve().parents[2] / "models"


def made(*, scale=1.0, prefix="", width=48, axis=-1, opset=18, order=1, dtype=np.float16):
  """x -> Softmax(x W + b) with names of its own."""
  w = np.full((64, width), scale, dtype)
  b = np.full(1, scale, dtype)
  n = [f"{prefix}{k}" for k in "xwbpsy"]
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  graph = helper.make_graph(
    [
      helper.make_node("MatMul", [n[0], n[1]], [n[3]]),
      helper.make_node("Add", [n[3], n[2]], [n[4]]),
      helper.make_node("Softmax", [n[4]], [n[5]], axis=axis),
    ],
    f"{prefix}graph",
    [helper.make_tensor_value_info(n[0], kind, [4, 64])],
    [helper.make_tensor_value_info(n[5], kind, [4, width])],
    [numpy_helper.from_array(w, n[1]), numpy_helper.from_array(b, n[2])][::order],
  )
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def test_names_orders_and_values_of_large_constants_are_none_of_it():
  text = canonical_nodes(made())
  assert canonical_nodes(made(prefix="layer.7/", order=-1)) == text
  assert "layer" not in canonical_nodes(made(prefix="layer.7/"))
  other = made()
  other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((64, 48), np.float16), "w"))
  assert canonical_nodes(other) == text


@pytest.mark.parametrize(
  "change", [{"scale": 2.0}, {"width": 96}, {"axis": 0}, {"opset": 13}, {"dtype": np.float32}]
)
def test_what_could_change_the_time_does(change):
  """A scalar's value too: it may be a shape or a number of heads."""
  assert canonical_nodes(made(**change)) != canonical_nodes(made())


def test_a_hollow_model_says_as_much():
  loaded = load_model(MODELS / "bert.onnx")
  matches = pipeline.find_candidates(pipeline.import_model(loaded))
  for region in {c.region.key: c.region for c in matches.candidates}.values():
    hollow = region_model(loaded, region, hollow=True)
    assert canonical_nodes(hollow) == canonical_nodes(region_model(loaded, region))
    sizes = [len(t.raw_data) for t in hollow.graph.initializer]
    assert max(sizes, default=0) <= 64 * 8


def test_layers_share_their_text(net: Net):
  x = net.input(4, 64)
  for _ in range(2):
    x = net.MatMul(net.rms(x), net.weight(64, 64))
  loaded = load_model(net.model(x))
  matches = pipeline.find_candidates(pipeline.import_model(loaded))
  same = {}
  for c in matches.candidates:
    same.setdefault(c.region.key, []).append(canonical_nodes(region_model(loaded, c.region, hollow=True)))
  twice = [texts for texts in same.values() if len(texts) == 2]
  assert twice and all(a == b for a, b in twice)
