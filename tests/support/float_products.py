"""Products with weights that are floats of 8 bits, as onnxruntime-genai's builder writes them."""

import ml_dtypes
import numpy as np
from onnx import numpy_helper
from packed_models import MS, model_of
from small_models import Net

E4M3 = ml_dtypes.float8_e4m3fn


def float8(rows=1, k=1024, n=512, *, block=0, bias=False, dtype=np.float16, seed=0, norm=False, **how):
  """``block``: 0 for one scale of a row, as the builder has it. ``norm``: in front of it."""
  net, rows = Net(dtype, seed=seed), rows if isinstance(rows, tuple) else (rows,)
  x = net.input(*rows, k)
  if norm:
    x = net.SimplifiedLayerNormalization(x, net.constant(1 + 0.1 * net.rng.standard_normal(k)), axis=-1)
  inputs = [x, net.constant(net.rng.standard_normal((n, k)), E4M3)]
  scales = net.rng.uniform(0.5, 1.5, (n, -(-k // (block or k)))) * k**-0.5
  inputs.append(net.constant(scales, np.float32))
  inputs += ["", net.constant(net.rng.standard_normal(n))] if bias else []
  y = net.MatMulBlockQuantizedFp8Weight(*inputs, domain=MS, block_size=block or k, **how)
  return model_of(net, (y, (*rows, n)))


def widened(model, values):
  """What the schema says, in float64."""
  (node,) = (n for n in model.graph.node if n.op_type == "MatMulBlockQuantizedFp8Weight")
  stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
  b, scales = (stored[n] for n in node.input[1:3])
  block = next(a.i for a in node.attribute if a.name == "block_size")
  w = b.astype(np.float64) * np.repeat(scales.astype(np.float64), block, 1)[:, : b.shape[1]]
  y = values[node.input[0]].astype(np.float64) @ w.T
  return y + stored[node.input[4]].astype(np.float64) if len(node.input) > 4 else y
