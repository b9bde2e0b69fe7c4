"""Products whose weights a DequantizeLinear widens, by ``small_models.Net``."""

import ml_dtypes
import numpy as np
from onnx import TensorProto
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


def between(rows=2, k=512, n=96, *, dtype=np.float16, kind=np.int8, point=3, axis=None, seed=0, **how):
  """A product of activations that are integers with such weights; ``axis``: of scales of the activations."""
  net = Net(dtype, seed=seed, opset=21)
  x = net.input(rows, k, dtype=kind)
  size = () if axis is None else (rows, k)[axis]
  scale = net.constant(net.rng.uniform(0.5, 1.5, size) / 80)
  zero = [] if point is None else [net.constant(np.full(size, point), kind)]
  activations = net.DequantizeLinear(x, scale, *zero, **({} if axis is None else {"axis": axis}))
  return net.model(net.MatMul(activations, widened(net, (k, n), 1, scale=k**-0.5, **how)))


def integers(model, seed=0):
  """Feeds of such a model."""
  rng, (x,) = np.random.default_rng(seed), model.graph.input
  shape = [d.dim_value for d in x.type.tensor_type.shape.dim]
  is_signed = x.type.tensor_type.elem_type == TensorProto.INT8
  return {x.name: rng.integers(-128, 128, shape).astype(np.int8)} if is_signed else {
    x.name: rng.integers(0, 256, shape).astype(np.uint8)
  }  # fmt: skip


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
