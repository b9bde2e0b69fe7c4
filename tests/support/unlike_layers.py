"""Layers with equal regions and other weights, and two programs for them: one overflows early."""

import numpy as np
from goldens import edited, golden
from small_models import Net, matches

GOLDEN = golden("norm_linear")


#: The same with the weight scaled instead of the input: finite for any input.
SAFE = edited(
  GOLDEN.ugraph,
  ("%3 = mul %0 %1 : f32[a0,a2]", "%3 = mul %2 %1 : f32[a0,a1]"),
  ("%4 = cast %3 : f16[a0,a2]", "%4 = cast %3 : f16[a0,a1]"),
  ("%5 = matmul[a0] %4 %2", "%5 = matmul[a0] %4 %0"),
)


def layers(*gammas, narrow=(), depth=512, width=256):
  """The region of the golden with each of these scales (one, or one a channel), side by side.

  ``narrow``: the layers that square in 16 bits.
  """
  net = Net(seed=1, opset=18)
  outputs = []
  for n, gamma in enumerate(gammas):
    x = net.input(16, depth)
    wide = net.cast(x, np.float32)
    square = net.cast(net.Mul(x, x), np.float32) if n in narrow else net.Mul(wide, wide)
    root = net.Sqrt(net.Add(net.ReduceMean(square, [-1]), net.constant(1e-5, np.float32)))
    normed = net.cast(net.Div(wide, root), np.float16)
    scale = np.broadcast_to(np.asarray(gamma, np.float16), depth)
    weight = net.weight(depth, width, scale=depth**-0.5 / max(1.0, float(abs(scale).max())))
    outputs.append(net.MatMul(net.Mul(normed, net.constant(scale)), weight))
  return net.model(*outputs)


def instances(model):
  """The candidates that hold a whole layer, in the order of the layers."""
  most = {}
  for c in matches(model).candidates:
    (output, *more) = c.outputs
    if not more and len(c.nodes) > len(most.get(output, c).nodes) - (output not in most):
      most[output] = c
  whole = [c for c in most.values() if c.region.structure == GOLDEN.region.structure]
  return sorted(whole, key=lambda c: [n.name for n in model.graph.output].index(*c.outputs))
