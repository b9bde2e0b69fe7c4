"""Connected random programs as ONNX models, and their meaning in plain numpy.

A program is made of choices, so a seed or hypothesis may make them: ``pick(options)`` returns one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from small_models import Net

Pick = Callable[[Sequence[Any]], Any]

UNARY = ("Exp", "Tanh", "Sigmoid", "Relu", "Abs", "square", "root")
BINARY = ("Add", "Mul", "Sub", "divide")
#: The second operand of a binary operation.
OPERANDS = ("earlier", "input", "column", "row", "number")


def random_model(pick, operations, prefix=""):
  """A model whose last value depends on every operation; one of at most two contractions."""
  net = Net(np.float16, prefix)
  rows, depth, columns = pick((3, 8, 1)), pick((64, 96)), pick((32, 48))
  inner = net.input(rows, depth)
  values = [(inner, depth)]
  contractions = 0
  for _ in range(operations):
    x, width = values[-1]
    kinds = ["unary", "binary", "binary"]
    if width > 1:
      kinds.append("reduce")
      if contractions < 2:
        kinds += ["contract"] * 2
    kind = pick(kinds)
    if kind == "unary":
      y = _unary(net, pick(UNARY), x)
    elif kind == "reduce":
      y = getattr(net, pick(("ReduceMean", "ReduceSum")))(x, [-1])
      width = 1
    elif kind == "contract":
      contractions += 1
      y = net.MatMul(x, net.weight(width, columns))
      width = columns
    else:
      y, width = _binary(net, pick, values, rows)
    values.append((y, width))
  return net.model(values[-1][0])


def _unary(net, op, x):
  if op == "Exp":
    return net.Exp(net.Mul(x, 0.125))
  if op == "square":
    return net.Mul(x, x)
  if op == "root":
    return net.Sqrt(net.Add(net.Mul(x, x), 0.25))
  return getattr(net, op)(x)


def _binary(net, pick, values, rows):
  x, width = values[-1]
  operand, op = pick(OPERANDS), pick(BINARY)
  if operand == "earlier":
    fitting = [v for v in values if v[1] in (width, 1) or width == 1]
    y, other = pick(fitting)
  elif operand == "input":
    y, other = net.input(rows, width), width
  elif operand == "column":
    y, other = net.weight(width, scale=0.5), width
  elif operand == "row":
    y, other = net.input(rows, 1), 1
  else:
    y, other = net.constant(pick((0.5, 2.0, -1.5, 3.0))), 1
  if op == "divide":
    y = net.Add(net.Abs(y), 0.5)
    op = "Div"
  if pick((False, True)) and op != "Div":
    x, y = y, x
  return getattr(net, op)(x, y), max(width, other)


def swapped(model):
  """The same program with the operands of commutative nodes exchanged, all names changed."""
  found = onnx.ModelProto()
  found.CopyFrom(model)
  graph = found.graph
  del graph.value_info[:]
  for node in graph.node:
    if node.op_type in ("Add", "Mul"):
      node.input[:] = [node.input[1], node.input[0]]
  names = {}

  def fresh(name):
    return names.setdefault(name, f"n{997 - len(names)}_{len(name)}")

  for node in graph.node:
    node.name = fresh(node.name)
    node.input[:] = [fresh(i) for i in node.input]
    node.output[:] = [fresh(o) for o in node.output]
  for item in (*graph.input, *graph.output, *graph.initializer):
    item.name = fresh(item.name)
  return onnx.shape_inference.infer_shapes(found)


def _reduce(fn):
  return lambda x, axes: fn(x, axis=tuple(int(a) for a in np.ravel(axes)), keepdims=True)


def _shaped(fn):
  return lambda x, shape: fn(x, tuple(int(n) for n in shape))


NUMPY = {
  "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Exp": np.exp,
  "Tanh": np.tanh, "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Relu": lambda x: np.maximum(x, 0),
  "Abs": np.abs, "Sqrt": np.sqrt, "MatMul": np.matmul, "Neg": np.negative, "Pow": np.power,
  "Reciprocal": lambda x: 1 / x, "Cast": lambda x: x, "Min": np.minimum, "Max": np.maximum,
  "Reshape": _shaped(np.reshape), "Expand": _shaped(np.broadcast_to), "Transpose": np.transpose,
  "ReduceMean": _reduce(np.mean), "ReduceSum": _reduce(np.sum), "ReduceMax": _reduce(np.max),
}  # fmt: skip


def in_float64(model, feeds):
  """Every tensor of the model, by its ONNX name, without any rounding."""
  values = {n: np.asarray(v, np.float64) for n, v in feeds.items()}
  for t in model.graph.initializer:
    values[t.name] = numpy_helper.to_array(t).astype(np.float64)
  for node in model.graph.node:
    assert not [a for a in node.attribute if a.name not in ("to", "keepdims", "perm")]
    perm = [tuple(a.ints) for a in node.attribute if a.name == "perm"]
    with np.errstate(all="ignore"):
      result = NUMPY[node.op_type](*(values[i] for i in node.input), *perm)
    values[node.output[0]] = result
  return values


def float64_feeds(model, rng):
  found = {}
  for v in model.graph.input:
    shape = [d.dim_value for d in v.type.tensor_type.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)
    found[v.name] = rng.standard_normal(shape).astype(dtype)
  return found
