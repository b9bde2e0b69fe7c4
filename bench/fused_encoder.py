"""An encoder as ONNX Runtime's optimizer writes it (optimum's O2 to O4): its fused operators, random weights.

    python3 bench/fused_encoder.py OUT.onnx [--layers 12] [--hidden 768] [--batch 8] [--length 512]

Attention with its projection, SkipLayerNormalization, BiasGelu, in fp16. ``whole.py --models OUT.onnx
--targets local`` times it.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"
F16, I32 = TensorProto.FLOAT16, TensorProto.INT32


class Encoder:
  def __init__(self, hidden, inner, heads, batch, length, mask):
    self.hidden, self.inner, self.heads = hidden, inner, heads
    self.rng, self.nodes, self.weights = np.random.default_rng(0), [], []
    x = helper.make_tensor_value_info("x", F16, (batch, length, hidden))
    shape = (batch,) if mask == "ends" else (batch, length)
    self.inputs = [x, helper.make_tensor_value_info("mask", I32, shape)]
    self.shape = (batch, length, hidden)

  def weight(self, *shape, around=0.0, scale=0.02):
    name = f"w{len(self.weights)}"
    values = around + scale * self.rng.standard_normal(shape, np.float32)
    self.weights.append(numpy_helper.from_array(values.astype(np.float16), name))
    return name

  def add(self, op, *inputs, domain=MS, **attributes):
    name = f"n{len(self.nodes)}"
    self.nodes.append(helper.make_node(op, inputs, [name], f"{op}_{name}", domain=domain, **attributes))
    return name

  def normed(self, a, b):
    gains, shifts = self.weight(self.hidden, around=1.0), self.weight(self.hidden)
    return self.add("SkipLayerNormalization", a, b, gains, shifts, self.weight(self.hidden), epsilon=1e-12)

  def layer(self, x):
    weights, bias = self.weight(self.hidden, 3 * self.hidden), self.weight(3 * self.hidden)
    y = self.add("Attention", x, weights, bias, "mask", num_heads=self.heads)
    x = self.normed(self.add("MatMul", y, self.weight(self.hidden, self.hidden), domain=""), x)
    y = self.add("MatMul", x, self.weight(self.hidden, self.inner), domain="")
    y = self.add("BiasGelu", y, self.weight(self.inner))
    return self.normed(self.add("MatMul", y, self.weight(self.inner, self.hidden), domain=""), x)

  def model(self, layers):
    x = "x"
    for _ in range(layers):
      x = self.layer(x)
    y = helper.make_tensor_value_info(x, F16, self.shape)
    graph = helper.make_graph(self.nodes, "encoder", self.inputs, [y], self.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("out", type=Path)
  for name, value in {
    "layers": 12,
    "hidden": 768,
    "inner": 3072,
    "heads": 12,
    "batch": 8,
    "length": 512,
  }.items():
    parser.add_argument(f"--{name}", type=int, default=value)
  parser.add_argument("--mask", choices=("ends", "keys"), default="ends")
  a = parser.parse_args()
  model = Encoder(a.hidden, a.inner, a.heads, a.batch, a.length, a.mask).model(a.layers)
  onnx.save(model, a.out)


if __name__ == "__main__":
  main()
