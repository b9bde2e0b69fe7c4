"""What odd models are made of: values at the ends of their types, and protos in few words."""

from dataclasses import dataclass, field

import numpy as np
from onnx import AttributeProto, TensorProto, helper, numpy_helper

F, H, INT, B = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL


HUGE = (0, 1, -1, 2, 3, 7, 63, 64, 65, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32,
        1 << 40, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))  # fmt: skip


ODD_FLOATS = (0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4e38, float("inf"), float("-inf"), float("nan"), 65504.0, 65520.0,
              1.0, -1.0, 0.5)  # fmt: skip


ODD_BYTES = (
  b"\xff\xfe",
  b"\xc3\x28",
  b"\xed\xa0\x80",
  b"a\x00b",
  b"\n",
  b"\xe2\x80\xa8",
  b"",
  b"\xf4\x90\x80\x80",
)


@dataclass
class Odd:
  """``data``: the file; ``files``: those beside it, by name."""

  kind: str
  data: bytes
  files: dict[str, bytes] = field(default_factory=dict)


def info(name, kind=F, dims=(4, 64)):
  return helper.make_tensor_value_info(name, kind, list(dims))


def model(nodes, inputs, outputs, weights=(), functions=(), opset=20, extra=()):
  graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), list(weights))
  opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1), *extra]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def node(op, inputs, outputs, **attributes):
  inputs, outputs = (n.split() if isinstance(n, str) else n for n in (inputs, outputs))
  empty = {k: AttributeProto.INTS for k, v in attributes.items() if isinstance(v, list) and not v}
  made = helper.make_node(op, inputs, outputs, domain=attributes.pop("domain", ""))
  for name, value in attributes.items():
    made.attribute.append(helper.make_attribute(name, value, attr_type=empty.get(name)))
  return made


def weight(rng, name, dims, kind=np.float32):
  values = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(dims)
  return numpy_helper.from_array((values * 3).astype(kind), name)


def raw(message):
  return message.SerializeToString()


def plain(rng):
  """A right model: a norm, a product and something elementwise."""
  width = rng.choice((8, 64, 96))
  nodes = [
    node("LayerNormalization", "x s", "n", axis=-1),
    node("MatMul", "n w", "m"),
    node(rng.choice(("Relu", "Tanh", "Erf", "Sigmoid")), "m", "a"),
    node("Add", "a b", "y"),
  ]
  weights = [weight(rng, "s", (64,)), weight(rng, "w", (64, width)), weight(rng, "b", (width,))]
  return model(nodes, [info("x")], [info("y", F, (4, width))], weights)
