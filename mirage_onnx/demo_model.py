"""The model of ``mirage-onnx demo``, made on the spot: the feed-forward block of a decoder, of one token.

    y = x + down(silu(gate(rms(x))) * up(rms(x)))

As exporters write it: the norm in fp32 between two casts, silu as a sigmoid and a product.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Widths of a decoder of half a billion parameters; the weights take 17 MB.
HIDDEN, INNER = 1024, 2816
_OPSET, _IR_VERSION = 20, 10
_EPSILON = 1e-5


def gated_mlp(hidden: int = HIDDEN, inner: int = INNER, seed: int = 0) -> onnx.ModelProto:
  """The model, of random weights; its input is (1, ``hidden``), in fp16."""
  rng = np.random.default_rng(seed)

  def node(op: str, inputs: str, output: str, name: str, to: int | None = None) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=name, to=to)

  def weight(name: str, *shape: int) -> onnx.TensorProto:
    values = rng.standard_normal(shape, np.float32) * 0.02 + (len(shape) == 1)
    return numpy_helper.from_array(values.astype(np.float16), name)

  nodes = (
    node("Cast", "x", "x32", "norm.widen", to=TensorProto.FLOAT),
    node("Pow", "x32 two", "squares", "norm.square"),
    node("ReduceMean", "squares last", "mean", "norm.mean"),
    node("Add", "mean epsilon", "mean_epsilon", "norm.add_epsilon"),
    node("Sqrt", "mean_epsilon", "root", "norm.root"),
    node("Div", "x32 root", "normed32", "norm.divide"),
    node("Cast", "normed32", "normed", "norm.narrow", to=TensorProto.FLOAT16),
    node("Mul", "normed norm.weight", "h", "norm.scale"),
    node("MatMul", "h gate.weight", "gate", "gate"),
    node("MatMul", "h up.weight", "up", "up"),
    node("Sigmoid", "gate", "sigmoid", "silu.sigmoid"),
    node("Mul", "gate sigmoid", "silu", "silu.mul"),
    node("Mul", "silu up", "gated", "gated"),
    node("MatMul", "gated down.weight", "down", "down"),
    node("Add", "x down", "y", "residual"),
  )
  weights = (
    weight("norm.weight", hidden),
    weight("gate.weight", hidden, inner),
    weight("up.weight", hidden, inner),
    weight("down.weight", inner, hidden),
    numpy_helper.from_array(np.array(2, np.float32), "two"),
    numpy_helper.from_array(np.array(_EPSILON, np.float32), "epsilon"),
    numpy_helper.from_array(np.array([-1]), "last"),
  )
  x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, hidden]) for n in "xy")
  return helper.make_model(
    helper.make_graph(nodes, "gated_mlp", [x], [y], weights),
    opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION,
  )  # fmt: skip
