"""Models of real width with what exporters write rarely: each ends well, and its kernels are right."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import Net

from mirage_onnx import api

ROWS, WIDTH, INNER = 3, 1000, 1152  # no powers of two


def value(name, kind=TensorProto.FLOAT16, shape=(ROWS, WIDTH)):
  return helper.make_tensor_value_info(name, kind, shape)


def gated(x, weight, name, function):
  """Nodes of x @ weight times a function of it."""
  return [
    helper.make_node("MatMul", [x, weight], [f"{name}_m"], name=f"{name}_m"),
    helper.make_node(function, [f"{name}_m"], [f"{name}_f"], name=f"{name}_f"),
    helper.make_node("Mul", [f"{name}_m", f"{name}_f"], [name], name=name),
  ]


def branch(name, nodes, shape):
  return helper.make_graph(nodes, name, [], [value(nodes[-1].output[0], shape=shape)])


def nested_branches():
  """An If in an If; all branches read a norm and weights of outside."""
  net, wide = Net(), (ROWS, INNER)
  x, a, b = net.input(ROWS, WIDTH), net.input(dtype=np.bool_), net.input(dtype=np.bool_)
  first, second = net.weight(WIDTH, INNER), net.weight(WIDTH, INNER)
  z = net.rms(x, net.weight(WIDTH))
  inside = {
    "then_branch": branch("t2", gated(z, first, "p", "Sigmoid"), wide),
    "else_branch": branch("e2", gated(z, second, "q", "Tanh"), wide),
  }
  nodes = [helper.make_node("If", [b], ["inner"], name="inner", **inside)]
  outside = {
    "then_branch": branch("t1", nodes, wide),
    "else_branch": branch("e1", gated(z, second, "r", "Sigmoid"), wide),
  }
  net.nodes.append(helper.make_node("If", [a], ["outer"], name="outer", **outside))
  return net.model(net.MatMul("outer", net.weight(INNER, WIDTH)))


def branch_in_a_loop():
  """A state that grows by one of two products, as the number of the round says."""
  net = Net()
  x, two = net.input(ROWS, WIDTH), net.constant(2, np.int64)
  weights = net.weight(WIDTH, WIDTH), net.weight(WIDTH, WIDTH)
  scale, scaled = net.weight(WIDTH), (ROWS, WIDTH)
  both = {
    f"{k}_branch": branch(k, gated("n", w, f"{k}_y", "Sigmoid"), scaled)
    for k, w in zip(("then", "else"), weights, strict=True)
  }
  nodes = [
    helper.make_node("LayerNormalization", ["s", scale], ["n"], name="n", axis=-1, epsilon=1e-3),
    helper.make_node("Less", ["i", two], ["early"], name="early"),
    helper.make_node("If", ["early"], ["y"], name="if", **both),
    helper.make_node("Add", ["y", "s"], ["s_out"], name="add"),
    helper.make_node("Identity", ["go"], ["go_out"], name="go_out"),
  ]
  inputs = [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("s")]
  body = helper.make_graph(nodes, "body", inputs, [value("go_out", TensorProto.BOOL, []), value("s_out")])
  arguments = [net.constant(4, np.int64), net.constant(True, np.bool_), x]
  net.nodes.append(helper.make_node("Loop", arguments, ["last"], name="loop", body=body))
  model = net.model(net.Mul("last", 2.0))
  model.graph.output[0].CopyFrom(value(model.graph.output[0].name))
  return model


def one_layer_three_times():
  """ALBERT: the same weights in each layer, and each hidden state an output."""
  net, states = Net(), []
  x = net.input(ROWS, WIDTH)
  up, down, scale, shift = (
    net.weight(*s) for s in ((WIDTH, INNER), (INNER, WIDTH), (WIDTH,), (WIDTH,))
  )  # fmt: skip
  for _ in range(3):
    y = net.Add(net.MatMul(net.Gelu(net.MatMul(x, up)), down), x)
    x = net.LayerNormalization(y, scale, shift, axis=-1, epsilon=1e-5)
    states.append(x)
  return net.model(*states)


def left_out():
  """Inputs that are left out in the middle and at the end; initializers that are graph inputs too."""
  net = Net(np.float32, opset=18)
  x = net.input(ROWS, WIDTH)
  net.nodes.append(helper.make_node("Clip", [x, "", net.constant(2.0)], ["c"], name="clip"))
  y = net.LayerNormalization(net.Gemm("c", net.weight(WIDTH, INNER)), net.weight(INNER), axis=-1)
  net.nodes.append(helper.make_node("Dropout", [y, "", ""], ["d"], name="dropout"))
  net.nodes.append(helper.make_node("Clip", ["d", net.constant(-1.0), ""], ["e"], name="clip2"))
  z = net.MatMul("e", net.weight(INNER, 600))
  model = net.model(net.Mul(z, net.Sigmoid(z)))
  model.graph.input.extend(value(t.name, t.data_type, t.dims) for t in model.graph.initializer)
  return model


def the_same_twice():
  """Products of the same operands, a value with itself, outputs of what is used inside."""
  net = Net()
  x, w = net.input(ROWS, WIDTH), net.weight(WIDTH, WIDTH)
  c = net.Add(net.MatMul(x, w), net.MatMul(x, w))
  y = net.Add(net.Mul(c, net.Sigmoid(c)), net.Sub(x, x))
  return net.model(c, y, net.MatMul(net.Add(x, x), w), net.Identity(y), net.Identity(x))


MODELS = (nested_branches, branch_in_a_loop, one_layer_three_times, left_out, the_same_twice)


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_a_model(make, tmp_path):
  before, after = tmp_path / "in.onnx", tmp_path / "out.onnx"
  onnx.save(make(), before)
  onnx.checker.check_model(str(before))
  result = api.optimize(before, after, target="h200", margin=-100.0, budget_s=2400.0)
  found = Counter(r["reason"] for r in result.report["regions"])
  assert not found.keys() & {"REGION_FAILED", "CHECK_FAILED", "KERNEL_WRONG"}
  verified = api.verify(before, after, emulate=True)
  assert verified.passed
  assert any(n.launches for n in verified.nodes)
