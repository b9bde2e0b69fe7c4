"""Conv whose windows fill the image, as vision models have it, by ``small_models.Net``."""

import numpy as np
from small_models import Net


def patches(
  image=(8, 12), window=(4, 4), channels=3, columns=16, *, bias=True, batch=2, dtype=np.float32, opset=20,
  before=False, behind=False, **more,
):  # fmt: skip
  """x [batch, channels, *image] through Conv; ``before``: behind a function; ``behind``: with rows beside."""
  net = Net(dtype, opset=opset)
  x = net.input(batch, channels, *image)
  if before:
    x = net.Tanh(x)
  w = net.weight(columns, channels, *window, scale=0.2)
  operands = [x, w, net.constant(net.rng.standard_normal(columns))] if bias else [x, w]
  y = net.Conv(*operands, **{"strides": list(window), **more})
  if behind:
    count = int(np.prod(image) // np.prod(window))
    rows = net.Transpose(net.Reshape(y, [0, columns, count]), perm=[0, 2, 1])
    first = net.constant(net.rng.standard_normal((batch, 1, columns)))
    every = net.Concat(first, rows, axis=1)
    y = net.Tanh(net.Add(every, net.constant(net.rng.standard_normal((1, count + 1, columns)))))
  return net.model(y)
