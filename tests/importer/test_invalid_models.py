"""Graphs, types and sizes that are refused: a stable code and one sentence each."""

import numpy as np
from onnx import helper
from protos import new_node, typed

from tests.importer.refusals import F32, refusal, relu


def test_undefined_name(bench):
  model = relu(bench)
  model.graph.node[0].input[0] = "z"
  assert refusal(model) == "MODEL_INVALID: node Relu #0 reads 'z', which nothing defines"


def test_undefined_output(bench):
  model = relu(bench)
  model.graph.output[0].name = "z"
  assert refusal(model) == "MODEL_INVALID: the graph output 'z' is defined by nothing"


def test_defined_twice(bench):
  model = relu(bench)
  model.graph.node.append(new_node("Neg", "x", "y", name="again"))
  assert refusal(model) == ("MODEL_INVALID: the value 'y' is defined twice: node Relu #0 and node 'again'")


def test_node_defines_an_input(bench):
  model = relu(bench)
  model.graph.node.append(new_node("Neg", "y", "x"))
  assert refusal(model) == ("MODEL_INVALID: the value 'x' is defined twice: a graph input and node Neg #1")


def test_two_initializers(bench):
  model = relu(bench, weights={"w": np.ones(3, F32)})
  model.graph.initializer.append(model.graph.initializer[0])
  assert "MODEL_INVALID: the value 'w' is defined twice" in refusal(model)
  model = relu(bench, weights={"x": np.ones((2, 3), F32)})
  model.graph.initializer.append(model.graph.initializer[0])
  assert refusal(model) == "MODEL_INVALID: two initializers are called 'x'"


def test_cycle(bench):
  nodes = [
    new_node("Relu", "x", "a", name="before"),
    new_node("Add", "a d", "b", name="one"),
    new_node("Neg", "b", "c"),
    new_node("Exp", "c", "d", name="three"),
    new_node("Abs", "d", "y", name="after"),
  ]
  model = bench.model(nodes, {"x": (F32, [2])}, ["y"])
  assert refusal(model) == ("MODEL_INVALID: the graph has a cycle: 'one' -> Neg #2 -> 'three' -> 'one'")


def test_long_cycle_is_cut(bench):
  nodes = [helper.make_node("Relu", [f"v{(i - 1) % 30}"], [f"v{i}"]) for i in range(30)]
  model = bench.model(nodes, {"x": (F32, [2])}, ["v0"])
  text = refusal(model)
  assert text.startswith("MODEL_INVALID: the graph has a cycle: ") and " ... -> " in text
  assert text.count("->") == 7


def test_node_reads_itself(bench):
  model = relu(bench)
  model.graph.node[0].input[0] = "y"
  assert refusal(model) == ("MODEL_INVALID: the graph has a cycle: Relu #0 -> Relu #0")


def test_name_that_is_no_text(tmp_path, bench):
  path = tmp_path / "m.onnx"
  model = relu(bench)
  model.graph.node[0].name = "QQQQ"
  path.write_bytes(model.SerializeToString().replace(b"QQQQ", b"Q\xff\xfeQ"))
  assert refusal(path) == "MODEL_INVALID: the name b'Q\\xff\\xfeQ' is not UTF-8 text"


def test_shapes(bench):
  node = new_node("Add", "x w", "y", name="sum")
  model = bench.model(node, {"x": (F32, [2, 3]), "w": (F32, [4])}, ["y"])
  text = refusal(model)
  assert text.startswith("MODEL_INVALID: (op_type:Add, node name: sum): Incompatible")


def test_types(bench):
  node = new_node("Add", "x w", "y")
  model = bench.model(node, {"x": (F32, [2]), "w": (np.float16, [2])}, ["y"])
  assert refusal(model).startswith("MODEL_INVALID: (op_type:Add): B has inconsistent type")


def test_attributes(bench):
  for attributes, said in (
    ({"axis": 1.5}, "Mismatched attribute type"),
    ({"axle": 1}, "Unrecognized attribute: axle for operator Softmax"),
  ):
    node = new_node("Softmax", "x", "y", name="s", **attributes)
    text = refusal(bench.model(node, {"x": (F32, [2])}, ["y"]))
    assert text.startswith("MODEL_INVALID: node 's': ") and said in text


def test_arity(bench):
  node = new_node("Add", "x", "y")
  text = refusal(bench.model(node, {"x": (F32, [2])}, ["y"]))
  assert text.startswith("MODEL_INVALID: node Add #0: Node with schema(::Add:14)")


def test_wrong_declared_type_of_output(bench):
  model = relu(bench)
  model.graph.output[0].CopyFrom(typed("y", 10, [2, 3]))
  assert refusal(model).startswith("MODEL_INVALID: (op_type:Relu): Inferred elem type")


def test_tensor_of_wrong_size(bench):
  model = relu(bench, weights={"w": np.ones((2, 3), F32)})
  model.graph.initializer[0].raw_data = b"1234"
  assert refusal(model) == ("MODEL_INVALID: the tensor 'w' of shape [2, 3] holds 4 bytes instead of 24")
  model.graph.initializer[0].ClearField("raw_data")
  model.graph.initializer[0].float_data.extend([1.0] * 5)
  assert refusal(model) == ("MODEL_INVALID: the tensor 'w' of shape [2, 3] holds 5 elements instead of 6")
  model.graph.initializer[0].dims[0] = -2
  assert refusal(model) == "MODEL_INVALID: the tensor 'w' has a negative dimension"


def test_domain_without_import(bench):
  node = new_node("Foo", "x", "y", domain="my.domain", name="f")
  assert refusal(bench.model(node, {"x": (F32, [2])}, ["y"])) == (
    "MODEL_INVALID: node 'f' is of domain 'my.domain', which the model does not import"
  )
