"""What differs between two models: all of it, under the names of the original."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from refused import refused
from rewritten import chain
from small_models import Net

from mirage_onnx import api


@pytest.fixture(scope="module")
def three():
  return chain()


def saved(folder, *models):
  paths = []
  for name, model in zip("ab", models, strict=True):
    paths.append(folder / f"{name}.onnx")
    onnx.save(model, paths[-1])
  return paths


def copied(model):
  return onnx.load_from_string(model.SerializeToString())


def lists(report):
  names = ("changed", "gone", "added", "weights_gone", "interface")
  return {n: getattr(report, n) for n in names if getattr(report, n)}


def test_custom_nodes_stand_for_the_nodes_that_are_gone(three, tmp_path):
  original, optimized = three.original, three.model
  found = api.diff(*saved(tmp_path, original, optimized))
  assert [n.node for n in found.nodes] == list(three.nodes)
  assert [set(n.replaces) for n in found.nodes] == [set(r.nodes) for r in three.regions]
  assert sum(sum(n.ops.values()) for n in found.nodes) == len(original.graph.node)
  assert found.unchanged == 0 and set(lists(found)) <= {"weights_gone"}
  bundle = next(w for w in found.weights_added if w.name == "mirage.bundle")
  assert bundle.bytes > 1000


def test_nodes_without_names(tmp_path):
  """They are known by the names that the importer gives them."""
  net = Net()
  product = net.MatMul(net.rms(net.input(8, 64)), net.weight(64, 64))
  model = net.model(net.Relu(product))
  for node in model.graph.node:
    node.name = ""
  source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(model, source)
  api.optimize(source, out, target="h200", margin=-9.0, workers=1)
  found = api.diff(source, out)
  assert found.nodes and all(n.replaces and len(n.replaces) == sum(n.ops.values()) for n in found.nodes)
  assert not found.gone and not found.changed and not found.added


def test_nothing(three, tmp_path):
  found = api.diff(*saved(tmp_path, three.original, three.original))
  assert not found.nodes and not lists(found) and found.unchanged == len(three.original.graph.node)


def test_every_kind_of_difference(tmp_path):
  net = Net()
  x = net.input(8, 64)
  a = net.model(net.Relu(net.MatMul(x, net.weight(64, 64))))
  b = copied(a)
  product, relu = b.graph.node
  product.input[1] = "other"
  b.graph.initializer[0].name = "other"
  relu.output[0] = "elsewhere"
  relu.name = ""
  b.graph.output[0].name = "elsewhere"
  b.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
  b.opset_import[0].version += 1
  found = api.diff(*saved(tmp_path, a, b))
  assert found.changed == [product.name] and found.gone == [a.graph.node[1].name]
  assert found.added == ["Relu_1"] and found.unchanged == 0
  assert [(w.name, w.bytes) for w in found.weights_added] == [("other", 64 * 64 * 2)]
  assert [w.bytes for w in found.weights_gone] == [64 * 64 * 2]
  version = a.opset_import[0].version
  assert found.interface == [
    f"input {x} has another type",
    f"output {a.graph.output[0].name} is gone",
    "output elsewhere is new",
    f"operator set ai.onnx is {version + 1}, was {version}",
  ]


def test_attributes_and_weights_of_every_type(tmp_path):
  attribute = helper.make_node("Softmax", ["x"], ["y"], name="s", axis=0)
  value = helper.make_tensor_value_info("x", 1, [2, 2]), helper.make_tensor_value_info("y", 1, [2, 2])
  a = helper.make_model(helper.make_graph([attribute], "g", [value[0]], [value[1]]))
  b = copied(a)
  b.graph.node[0].attribute[0].i = 1
  text = helper.make_tensor("text", onnx.TensorProto.STRING, [2], [b"ab", b"c"])
  packed = onnx.TensorProto(name="packed", data_type=onnx.TensorProto.INT4, dims=[3], raw_data=b"\0\0")
  b.graph.initializer.extend([text, packed, numpy_helper.from_array(np.zeros(3, np.bool_), "flags")])
  found = api.diff(*saved(tmp_path, a, b))
  assert found.changed == ["s"]
  assert {w.name: w.bytes for w in found.weights_added} == {"text": 3, "packed": 2, "flags": 3}


def test_no_file(tmp_path):
  with refused("FILE_MISSING"):
    api.diff(tmp_path / "a.onnx", tmp_path / "b.onnx")
