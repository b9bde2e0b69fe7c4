"""Parts of models are models: valid, with what they read as inputs, and they compute the same values."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from small_models import Net, feeds

from mirage_onnx.reduction.pieces import ModelParts


def run(model, values):
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  names = [o.name for o in model.graph.output]
  return dict(
    zip(names, session.run(names, {i.name: values[i.name] for i in model.graph.input}), strict=True)
  )


def everything(model):
  """A model that yields all values of another."""
  made = onnx.ModelProto()
  made.CopyFrom(model)
  have = {o.name for o in model.graph.output}
  inferred = onnx.shape_inference.infer_shapes(made)
  made.graph.output.extend(v for v in inferred.graph.value_info if v.name not in have)
  return made


@pytest.fixture
def given(net):
  x = net.input(4, 32)
  y = net.MatMul(net.rms(x, net.weight(32)), net.weight(32, 16))
  return net.model(net.Relu(y), net.Softmax(net.Add(y, 1.0), axis=-1))


def test_every_part_computes_what_the_model_computes(given, rng):
  values = feeds(given, rng)
  values |= run(everything(given), values)
  pieces = ModelParts(given)
  for _ in range(25):
    some = rng.choice(len(given.graph.node), size=rng.integers(1, len(given.graph.node)), replace=False)
    part = pieces.part(tuple(map(int, some)))
    onnx.checker.check_model(part, full_check=True)
    assert len(part.graph.node) == len(some)
    assert [o.name for o in part.graph.output] == pieces.yields(tuple(map(int, some)))
    for name, got in run(part, values).items():
      np.testing.assert_allclose(got, values[name], rtol=1e-2, atol=2e-3, err_msg=name)  # as fused


def test_fewer_outputs_and_weights_as_inputs(given, rng):
  pieces = ModelParts(given)
  every = tuple(range(len(given.graph.node)))
  first, second = pieces.yields(every)
  nodes = pieces.needed(every, [first])
  assert 0 < len(nodes) < len(every)
  weights = [t.name for t in given.graph.initializer if t.dims == [32, 16]]
  part = pieces.part(nodes, [first], weights)
  onnx.checker.check_model(part, full_check=True)
  assert [o.name for o in part.graph.output] == [first] and second not in str(part)
  assert weights[0] in [i.name for i in part.graph.input]
  assert weights[0] not in [t.name for t in part.graph.initializer]


def test_what_has_no_type_is_no_part():
  strange = helper.make_node("Strange", ["x"], ["a"], domain="some.where", name="n0")
  node = helper.make_node("Relu", ["a"], ["y"], name="n1")
  value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])  # noqa: E731
  graph = helper.make_graph([strange, node], "g", [value("x")], [value("y")])
  imports = [helper.make_opsetid("", 20), helper.make_opsetid("some.where", 1)]
  pieces = ModelParts(helper.make_model(graph, opset_imports=imports))
  assert pieces.part((0,)) is None and pieces.part((1,)) is None
  assert pieces.part((0, 1)) is not None


def test_functions_and_subgraphs_come_along(net):
  y = net.Abs(net.input(4, 8))
  then, other = (
    helper.make_graph([helper.make_node(op, [y], [f"z{op}"])], op, [],
                      [helper.make_tensor_value_info(f"z{op}", TensorProto.FLOAT16, (4, 8))])
    for op in ("Neg", "Relu")
  )  # fmt: skip
  z = net.If(net.input(1, dtype=bool), then_branch=then, else_branch=other)
  model = net.model(net.Exp(z))
  for name in ("Used", "Unused"):
    imports = [helper.make_opsetid("", 20)]
    nodes = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(helper.make_function("mine", name, ["a"], ["b"], nodes, imports))
  model.graph.node.append(helper.make_node("Used", [z], ["w"], domain="mine"))
  model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT16, (4, 8)))
  model.opset_import.append(helper.make_opsetid("mine", 1))
  at = [n.op_type for n in model.graph.node]
  pieces = ModelParts(model)
  part = pieces.part((at.index("If"), at.index("Used")))
  onnx.checker.check_model(part)
  assert y in [i.name for i in part.graph.input]  # the branches read it
  assert [f.name for f in part.functions] == ["Used"]
  assert not pieces.part((at.index("Exp"),)).functions


def test_nodes_in_another_order_than_they_compute():
  net = Net()
  model = net.model(net.Exp(net.Abs(net.input(2, 2))))
  nodes = [*model.graph.node][::-1]
  del model.graph.node[:]
  model.graph.node.extend(nodes)
  part = ModelParts(model).part((0, 1))
  assert [n.op_type for n in part.graph.node] == ["Abs", "Exp"]
  assert np.all(run(part, {"x0": np.zeros((2, 2), np.float16)})[part.graph.output[0].name] == 1)
