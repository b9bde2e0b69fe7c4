"""Models of real width with an If, a Loop or a Scan, of whose subgraphs each holds regions."""

import numpy as np
from onnx import TensorProto, helper
from small_models import Net

#: Width of every layer, and rows.
HIDDEN, ROWS = 512, 8


def layer(net, x):
  """x + norm(x) W"""
  return net.Add(x, net.MatMul(net.rms(x), net.weight(HIDDEN, HIDDEN)))


def subgraph(net, name, inputs, outputs):
  """``inputs``, ``outputs``: (name, element type or None for the net's own, shape)."""
  own = helper.np_dtype_to_tensor_dtype(net.dtype)
  given, made = (
    [helper.make_tensor_value_info(n, kind or own, shape) for n, kind, shape in values]
    for values in (inputs, outputs)
  )
  return helper.make_graph(net.nodes, name, given, made, net.weights)


def chosen(net, x):
  """If: a layer of its own in each branch, whose values have the same names."""
  branches = {}
  for seed, name in enumerate(("then_branch", "else_branch")):
    inner = Net(net.dtype, prefix="in_", seed=seed + 2)
    y = layer(inner, inner.Tanh(x) if seed else x)
    branches[name] = subgraph(inner, name, [], [(y, None, [ROWS, HIDDEN])])
  return net.If(net.input(dtype=np.bool_), **branches)


def repeated(net, x, count=3):
  """Loop: a layer of what it carries, and what is outside of it."""
  inner = Net(net.dtype, prefix="in_", seed=2)
  shape = [ROWS, HIDDEN]
  y = inner.Add(layer(inner, "had"), x)
  on = inner.Identity("on")
  given = [("i", TensorProto.INT64, []), ("on", TensorProto.BOOL, []), ("had", None, shape)]
  body = subgraph(inner, "body", given, [(on, TensorProto.BOOL, []), (y, None, shape)])
  return net.Loop(net.constant(count, np.int64), net.constant(True, np.bool_), x, body=body)


def scanned(net, x, count=4):
  """Scan: a layer of what it carries and the slice, and another of that."""
  inner = Net(net.dtype, prefix="in_", seed=2)
  shape = [ROWS, HIDDEN]
  state = layer(inner, inner.Add("had", "slice"))
  out = inner.MatMul(inner.rms(state), inner.weight(HIDDEN, HIDDEN))
  given, made = [("had", None, shape), ("slice", None, shape)], [(state, None, shape), (out, None, shape)]
  body = subgraph(inner, "body", given, made)
  net.nodes.append(
    helper.make_node(
      "Scan", [x, net.input(count, *shape)], ["last", "all"], "scan", body=body, num_scan_inputs=1
    )
  )
  return net.Add("last", net.ReduceSum("all", [0], keepdims=0))


def model(inner, dtype=np.float16):
  """A layer before and behind what ``inner`` is."""
  net = Net(dtype, seed=1)
  return net.model(layer(net, inner(net, layer(net, net.input(ROWS, HIDDEN)))))
