"""Products whose weights a DequantizeLinear widens, by ``small_models.Net``."""

import ml_dtypes
import numpy as np
from packed_models import model_of
from small_models import Net

KINDS = {
  "u8": (np.uint8, 0, 256), "i8": (np.int8, -128, 128),
  "u4": (ml_dtypes.uint4, 0, 16), "i4": (ml_dtypes.int4, -8, 8),
  "e4m3": (ml_dtypes.float8_e4m3fn, -128, 128), "e5m2": (ml_dtypes.float8_e5m2, -128, 128),
}  # fmt: skip


def widened(net, shape, axis, *, kind="u8", block=0, zero="", scale=1.0):
  """DequantizeLinear of random numbers; ``axis`` None: of the whole tensor. ``zero``: "", "same", "own".

  Zero points of floats are 0.
  """
  dtype, low, high = KINDS[kind]
  q = net.constant(net.rng.integers(low, high, shape), dtype)
  scale = scale * 256 / (high - low)
  own = (1,) if axis is None else (shape[axis],)
  if block:
    own = tuple(n // block if d == axis % len(shape) else n for d, n in enumerate(shape))
  if axis is None and net.rng.integers(2):
    own = ()
  inputs = [q, net.constant(scale * net.rng.uniform(0.5, 1.5, own) / 80)]
  if zero:
    drawn = net.rng.integers(low, high, own if zero == "own" else ()) * (kind[0] != "e")
    inputs.append(net.constant(np.broadcast_to(drawn, own), dtype))
  how = {} if axis is None else {"axis": axis}
  return net.DequantizeLinear(*inputs, **how, **({"block_size": block} if block else {}))


def dequantized(rows=2, k=512, n=96, *, axis=None, form="kn", dtype=np.float16, seed=0, **how):
  """``form``: "kn" as MatMul wants it, "nk" behind a Transpose, "gemm" for transB."""
  net = Net(dtype, seed=seed, opset=21)
  x = net.input(*((rows,) if isinstance(rows, (int, str)) else rows), k)
  along = axis if axis is None or form == "kn" else (1 - axis if axis >= 0 else -3 - axis)
  shape = (k, n) if form == "kn" else (n, k)
  w = widened(net, shape, along, scale=k**-0.5, **how)
  if form == "gemm":
    y = net.Gemm(x, w, transB=1)
  else:
    y = net.MatMul(x, w if form == "kn" else net.Transpose(w, perm=[1, 0]))
  return model_of(net, (y, (*((rows,) if isinstance(rows, (int, str)) else rows), n)))
