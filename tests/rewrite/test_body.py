"""Function bodies: canonical text."""

from itertools import permutations

import numpy as np
import onnx
import onnxruntime
from small_models import Net

from mirage_onnx.rewrite.body import build_body
from mirage_onnx.rewrite.constants import Constants
from mirage_onnx.rewrite.model import rewrite_model
from mirage_onnx.rewrite.replacement import Replacement

EXPECTED = """\
i2_restored = Transpose(i2) perm=[1, 0]
c0 = Constant() value=f16[]
c1 = Constant() value=i64[1]
c2 = Constant() value=f16[]
v0 = Pow(i0, c0)
v1 = ReduceMean(v0, c1)
v2 = Add(v1, c2)
v3 = Sqrt(v2)
v4 = Div(i0, v3)
v5 = Mul(v4, i1)
o0 = MatMul(v5, i2_restored)
workspace_shape = Constant() value=i64[1]
workspace = ConstantOfShape(workspace_shape) value=u8[1]
"""
KINDS = {10: "f16", 7: "i64", 2: "u8"}


def text(function):
  lines = []
  for node in function.node:
    line = f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)})"
    for a in node.attribute:
      value = (
        KINDS[a.t.data_type] + str(list(a.t.dims)) if a.HasField("t") else onnx.helper.get_attribute_value(a)
      )
      line += f" {a.name}={value}"
    lines.append(line + "\n")
  return "".join(lines)


def test_text(toy):
  (function,) = rewrite_model(toy.build(), [toy.region(0)], b"").functions
  assert text(function) == EXPECTED


def test_the_body_does_not_depend_on_names_or_order(toy):
  model = toy.build(2)
  bodies = []
  for i in range(2):
    nodes = [n for n in model.graph.node if n.name in toy.region(i).nodes]
    for order in (nodes, nodes[::-1]):
      body = build_body(order, toy.region(i), Constants(model), {"": 20})
      bodies.append(body.text)
  assert len(set(bodies)) == 1


def test_optional_inputs_and_outputs_stay_omitted(toy):
  node = onnx.helper.make_node("Clip", ["x", "", "high"], ["y"], name="clip")
  drop = onnx.helper.make_node("LayerNormalization", ["y", "s"], ["z", "", "inv"], name="ln")
  region = Replacement(("clip", "ln"), ("x", "high", "s"), (), ("z",), False, 0)
  body = build_body([node, drop], region, Constants(toy.build()), {"": 20})
  assert list(body.function.node[0].input) == ["i0", "", "i1"]
  assert list(body.function.node[1].output) == ["o0", "", "v1"]


def test_doc_strings_and_metadata_are_dropped(toy):
  model = toy.build()
  assert model.graph.node[0].metadata_props
  nodes = [n for n in model.graph.node if n.name in toy.region(0).nodes]
  body = build_body(nodes, toy.region(0), Constants(model), {"": 20})
  assert not any(n.metadata_props for n in body.function.node)


def test_a_norm_and_its_copy_are_one_again(tmp_path):
  """onnxruntime merges them, and then the Add before them, whatever the order of attributes."""
  net = Net(np.float32, seed=1)
  x = net.input(2, 6, 16)
  total = net.Add(x, net.Tanh(x))
  norm = net.LayerNormalization(total, net.weight(16), net.weight(16), axis=-1, epsilon=1e-12, stash_type=1)
  weight = net.weight(16, 16)
  product = net.MatMul(norm, weight)
  model = net.model(net.Sigmoid(product), net.Erf(norm))
  norm, matmul = (n for n in model.graph.node if n.op_type in ("LayerNormalization", "MatMul"))
  region = Replacement((norm.name, matmul.name), (*norm.input, weight), (), (product,), False, 0)
  for attributes in permutations(list(norm.attribute)):
    del norm.attribute[:]
    norm.attribute.extend(attributes)
    result = rewrite_model(model, [region], b"")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "seen.onnx")
    onnxruntime.InferenceSession(result.SerializeToString(), options, ["CPUExecutionProvider"])
    seen = [n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node]
    assert seen.count("SkipLayerNormalization") == 1, seen
    assert "LayerNormalization" not in seen
