"""Attention of com.microsoft, which projects its input, by ``small_models.Net``."""

import numpy as np
from onnx import helper
from small_models import Net

MS = "com.microsoft"
LENGTH = 24


def projecting(
  hidden=64, heads=4, *, mask="", added=False, opset=20, dtype=np.float32, batch=2, length=LENGTH, **more
):
  """x [batch, length, hidden] through Attention, with a norm before and a sum behind it."""
  net = Net(dtype, opset=opset)
  x = net.input(batch, length, hidden)
  y = net.LayerNormalization(x, net.constant(np.ones(hidden)))
  w, b = net.weight(hidden, 3 * hidden), net.constant(net.rng.standard_normal(3 * hidden))
  dims = {"keys": (batch, length), "ends": (batch,), "both": (2 * batch,), "one": (batch, 1)}
  inputs = [y, w, b, net.input(*dims[mask], dtype=np.int32) if mask else ""]
  inputs += ["", net.input(batch, heads, length, length)] if added else []
  z = net.Attention(*inputs, domain=MS, num_heads=heads, **more)
  model = net.model(net.Add(z, x))
  kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  model.graph.output[0].CopyFrom(helper.make_tensor_value_info(model.graph.output[0].name, kind, None))
  return model
