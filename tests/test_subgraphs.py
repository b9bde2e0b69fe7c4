"""If and Loop: the main graph around them is optimized, and each says why its own nodes are not."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from small_models import Net, check_kernels, feeds

import mirage_onnx


def branch(name, op, x):
  out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [8, 64])
  inner = [helper.make_node(op, [x], [f"{name}_t"]), helper.make_node("Neg", [f"{name}_t"], [f"{name}_y"])]
  return helper.make_graph(inner, name, [], [out])


def with_if(net, x):
  chosen = net.input(dtype=np.bool_)
  return net.If(chosen, then_branch=branch("then", "Tanh", x), else_branch=branch("else", "Relu", x))


def with_loop(net, x):
  """Three times what it carries, plus a value from outside."""
  carried = [
    helper.make_tensor_value_info("i", TensorProto.INT64, []),
    helper.make_tensor_value_info("on", TensorProto.BOOL, []),
    helper.make_tensor_value_info("had", TensorProto.FLOAT, [8, 64]),
  ]
  nodes = [helper.make_node("Identity", ["on"], ["on2"]), helper.make_node("Add", ["had", x], ["has"])]
  made = [
    helper.make_tensor_value_info("on2", TensorProto.BOOL, []),
    helper.make_tensor_value_info("has", TensorProto.FLOAT, [8, 64]),
  ]
  body = helper.make_graph(nodes, "body", carried, made)
  count = net.constant(np.array(3), np.int64)
  on = net.constant(np.array(True), np.bool_)
  return net.Loop(count, on, net.Neg(x), body=body)


@pytest.mark.parametrize(
  ("inner", "replaced", "said"),
  [
    (with_if, 2, "If: its else_branch and then_branch (4 nodes, which read 1 values from outside)"),
    (with_loop, 1, "Loop: its body (2 nodes, which read 1 values from outside)"),
  ],
)
def test_the_main_graph_around_a_subgraph(inner, replaced, said):
  net = Net(np.float32, seed=1)
  before = net.MatMul(net.rms(net.input(8, 64)), net.weight(64, 64))
  after = net.MatMul(net.rms(inner(net, before)), net.weight(64, 64))
  model = net.model(after)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  # Both what the branches read and what reads their result.
  # (Nothing is known of the shape of what a Loop carries.)
  rows = [r for r in result.report["regions"] if r["status"] == "replaced"]
  assert sum(r["count"] * str(r["ops"]).count("MatMul") for r in rows) == replaced
  check_kernels(model, result, feeds(model, np.random.default_rng(0)))
  reasons = [r["reason_text"] for r in result.report["regions"] if r["reason"] == "SUBGRAPH"]
  assert len(reasons) == 1 and reasons[0].startswith(said)
  assert "in the main graph only" in reasons[0]
