"""Small ONNX graphs of the golden µGraphs: what exporters write, at realistic extents."""

import numpy as np
from small_models import Net

#: Name -> graph; ``goldens`` says which µGraphs compute it.
MODELS = {}

EPSILON = 1e-5


def model(fn):
  """Registers what makes the graph whose outputs ``fn`` returns."""

  def made():
    net = Net()
    found = fn(net)
    return net.model(*(found if isinstance(found, tuple) else (found,)))

  MODELS[fn.__name__] = made
  return made


def wide_rms(net, x, gamma=None):
  wide = net.cast(x, np.float32)
  mean = net.ReduceMean(net.Mul(wide, wide), [-1])
  root = net.Sqrt(net.Add(mean, net.constant(EPSILON, np.float32)))
  y = net.cast(net.Div(wide, root), np.float16)
  return net.Mul(y, gamma) if gamma else y


def unit(net, x):
  wide = net.cast(x, np.float32)
  length = net.Sqrt(net.ReduceSum(net.Mul(wide, wide), [-1]))
  return net.cast(net.Div(wide, length), np.float16)


def heads(net, queries=64, keys=256, count=4):
  return net.input(count, queries, 64), net.input(count, keys, 64), net.input(count, keys, 64)


def scores(net, q, k, scale=0.125):
  s = net.MatMul(q, net.Transpose(k, perm=[0, 2, 1]))
  return net.Mul(s, scale) if scale else s


@model
def norm_linear(net):
  y = wide_rms(net, net.input(16, 512), net.weight(512))
  return net.MatMul(y, net.weight(512, 256))


@model
def layernorm_linear(net):
  x = net.LayerNormalization(net.input(32, 512), net.weight(512), net.weight(512), epsilon=1e-5)
  return net.MatMul(x, net.weight(512, 256))


def _gated(net, x):
  gate, up = (net.MatMul(x, net.weight(512, 256)) for _ in range(2))
  return net.Mul(net.Mul(gate, net.Sigmoid(gate)), up)


@model
def gated_mlp(net):
  return _gated(net, net.input(8, 512))


@model
def norm_gated_mlp(net):
  return _gated(net, wide_rms(net, net.input(4, 512), net.weight(512)))


@model
def pooled_linear(net):
  pooled = net.ReduceMean(net.input(8, 64, 128), [1], keepdims=0)
  return net.Add(net.MatMul(pooled, net.weight(128, 64)), net.weight(64))


@model
def lora(net):
  x = net.input(16, 512)
  low = net.MatMul(net.MatMul(x, net.weight(512, 16)), net.weight(16, 256))
  return net.Add(net.MatMul(x, net.weight(512, 256)), net.Mul(low, 2.0))


@model
def residual_norm(net):
  s = net.Add(net.input(64, 512), net.input(64, 512))
  return s, wide_rms(net, s, net.weight(512))


@model
def attention(net):
  q, k, v = heads(net)
  s = net.Add(scores(net, q, k), net.input(64, 256))
  return net.MatMul(net.Softmax(s, axis=-1), v)


@model
def decode(net):
  """Attention of few queries over a long cache, as an exporter decomposes it; no mask."""
  q, k, v = heads(net, queries=4, keys=512, count=8)
  s = net.cast(scores(net, q, k), np.float32)
  e = net.Exp(net.Sub(s, net.ReduceMax(s, [-1])))
  p = net.cast(net.Div(e, net.ReduceSum(e, [-1])), np.float16)
  return net.MatMul(p, v)


@model
def gqa_decode(net):
  """Four query heads share a key head; the keys are stored transposed, q comes scaled."""
  q, k, v = net.input(8, 4, 64), net.input(8, 64, 256), net.input(8, 256, 64)
  s = net.MatMul(net.Mul(q, 0.125), k)
  s = net.Add(s, net.input(256))
  return net.MatMul(net.Softmax(s, axis=-1), v)


@model
def qknorm_attention(net):
  """Queries and keys are normalised, so |q k^T| is bounded."""
  q, k, v = heads(net)
  q, k = wide_rms(net, q, net.weight(64)), wide_rms(net, k)
  return net.MatMul(net.Softmax(scores(net, q, k), axis=-1), v)


@model
def mla(net):
  """Absorbed multi-head latent attention: keys are [latent, rotary], values the latent."""
  q, q_rotary = net.input(8, 128), net.input(8, 32)
  latent, k_rotary = net.input(256, 128), net.input(256, 32)
  s = net.Add(
    net.MatMul(q, net.Transpose(latent, perm=[1, 0])),
    net.MatMul(q_rotary, net.Transpose(k_rotary, perm=[1, 0])),
  )
  return net.MatMul(net.Softmax(net.Mul(s, 0.0625), axis=-1), latent)


@model
def ngpt_step(net):
  x, h, alpha = net.input(8, 512), net.input(8, 256), net.weight(256)
  y = unit(net, net.MatMul(x, net.weight(512, 256)))
  return unit(net, net.Add(h, net.Mul(alpha, net.Sub(y, h))))


@model
def elementwise_chain(net):
  x, z = net.input(64, 256), net.input(64, 256)
  y = net.Gelu(net.Add(net.Mul(x, net.weight(256)), net.weight(256)), approximate="tanh")
  return net.Sub(net.Mul(y, net.Sigmoid(z)), net.Max(z, net.Div(x, 3.0)))


@model
def softmax_rows(net):
  return net.Softmax(net.Mul(net.input(64, 512), 0.5), axis=-1)


@model
def log_softmax(net):
  return net.LogSoftmax(net.Add(net.input(32, 512), net.weight(512)), axis=-1)


@model
def group_norm(net):
  """[batch, group, channel, pixel], normalised over the last two, scaled per channel."""
  x = net.input(4, 8, 16, 64)
  wide = net.cast(x, np.float32)
  shifted = net.Sub(wide, net.ReduceMean(wide, [-2, -1]))
  variance = net.ReduceMean(net.Mul(shifted, shifted), [-2, -1])
  root = net.Sqrt(net.Add(variance, net.constant(EPSILON, np.float32)))
  y = net.cast(net.Div(shifted, root), np.float16)
  return net.Add(net.Mul(y, net.weight(8, 16, 1)), net.weight(8, 16, 1))
