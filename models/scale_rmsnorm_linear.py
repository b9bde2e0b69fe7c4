"""Write `rmsnorm_linear.onnx` at another size, with onnx and numpy only.

The nodes stay exactly what the exporter wrote; the weights are replaced by random ones of the
wanted size, and the dimensions of inputs, outputs and intermediate values follow.
"""

import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, shape_inference

TEMPLATE = Path(__file__).resolve().parent / "rmsnorm_linear.onnx"


def weight_shape(graph, name, hidden, out):
  """Return the shape of the linear weight in the layout its consumer wants."""
  (node,) = (node for node in graph.node if name in node.input)
  transposed = any(a.name == "transB" and a.i for a in node.attribute)
  if node.op_type not in ("MatMul", "Gemm") or node.input[1] != name:
    raise ValueError(f"unexpected consumer {node.op_type} of {name}")
  return (out, hidden) if transposed else (hidden, out)


def scale(template, batch, hidden, out, seed=0):
  """Return a copy of `template` for x [batch, hidden] and y [batch, out]."""
  model = onnx.ModelProto()
  model.CopyFrom(template)
  graph = model.graph
  rng = np.random.default_rng(seed)
  for tensor in graph.initializer:
    noise: np.ndarray
    if len(tensor.dims) == 2:
      shape = weight_shape(graph, tensor.name, hidden, out)
      noise = np.float32(0.02) * rng.standard_normal(shape, dtype=np.float32)
    elif numpy_helper.to_array(tensor).size > 1:
      noise = 1 + np.float32(0.1) * rng.standard_normal(hidden, dtype=np.float32)
    else:
      continue  # exponent, epsilon, axis: the same at any size
    tensor.CopyFrom(numpy_helper.from_array(noise.astype(np.float16), tensor.name))
  for value, dims in ((graph.input[0], (batch, hidden)), (graph.output[0], (batch, out))):
    for dim, size in zip(value.type.tensor_type.shape.dim, dims, strict=True):
      dim.dim_value = size
  del graph.value_info[:]
  return shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def main():
  """Parse the sizes and write the model."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--hidden", type=int, default=4096)
  parser.add_argument("--out", type=int, default=4096)
  parser.add_argument("--batch", type=int, default=8)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--template", type=Path, default=TEMPLATE)
  parser.add_argument("-o", "--output", type=Path, required=True)
  options = parser.parse_args()
  template = onnx.load(options.template)
  model = scale(template, options.batch, options.hidden, options.out, options.seed)
  onnx.save(model, options.output)


if __name__ == "__main__":
  main()
