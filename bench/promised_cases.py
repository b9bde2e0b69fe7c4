"""Models of one or two operators by name, of which the promise was asked: a few kinds, each at many sizes.

Norm and linear with a GELU, the end of half a layer, pooled scales, a gated MLP and attention, in fp16 and in
the forms that torch exports them in (``Gemm`` of two dimensions, ``Transpose`` and ``MatMul`` of more).
"""

import numpy as np
from small_models import Net


def linear(net, x, k, n):
  """A Linear of torch on two dimensions."""
  return net.Gemm(x, net.weight(n, k, scale=k**-0.5), net.weight(n, scale=0.1), transB=1)


def linear_3d(net, x, k, n):
  return net.Add(net.MatMul(x, net.weight(k, n)), net.weight(n, scale=0.1))


def gamma(net, k):
  return net.constant(1 + 0.1 * net.rng.standard_normal(k))


def layer_norm(net, x, k):
  return net.LayerNormalization(x, gamma(net, k), net.weight(k, scale=0.1), axis=-1, epsilon=1e-5)


def ln_gelu(net, m, k, n):
  return net.Gelu(linear(net, layer_norm(net, net.input(m, k), k), k, n), approximate="tanh")


def out(net, m, k, n):
  x, r = net.input(m, k), net.input(m, n)
  return layer_norm(net, net.Add(linear(net, x, k, n), r), n)


def rms_linear(net, m, k, n):
  x = net.input(m, k)
  v = net.cast(x, np.float32)
  square = net.Pow(v, net.constant(2.0, np.float32))
  mean = net.ReduceMean(square, [-1], keepdims=1)
  root = net.Sqrt(net.Add(mean, net.constant(1e-5, np.float32)))
  y = net.Mul(net.cast(net.Mul(v, net.Reciprocal(root)), np.float16), gamma(net, k))
  return net.MatMul(y, net.weight(k, n))


def gated_mlp(net, m, k, n):
  x = net.input(m, k)
  gate = net.MatMul(x, net.weight(k, n))
  return net.Mul(net.Mul(gate, net.Sigmoid(gate)), net.MatMul(x, net.weight(k, n)))


def pool_scale(net, b, s, d):
  x = net.input(b, s, d)
  pooled = net.ReduceMean(x, [1], keepdims=1)
  h = net.Relu(linear_3d(net, pooled, d, d // 4))
  return net.Mul(x, net.Sigmoid(linear_3d(net, h, d // 4, d)))


def attention(net, b, h, s, d):
  q, k, v = (net.input(b, h, s, d) for _ in range(3))
  mask = net.input(b, 1, 1, s)
  scores = net.Div(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), 8.0)
  return net.MatMul(net.Softmax(net.Add(scores, mask), axis=-1), v)


SIZES = {
  ln_gelu: [
    *((m, 1024, 4096) for m in (16, 32, 48, 64, 128, 512)), *((m, 768, 3072) for m in (32, 128, 4096)),
    *((m, 384, 1536) for m in (8, 32, 128, 1024)),
  ],
  out: [(m, 3072, 768) for m in (8, 64, 128, 1024, 4096)],
  rms_linear: [(m, 4096, 4096) for m in (32, 64, 128, 1024)],
  gated_mlp: [(m, 2048, 5632) for m in (32, 64, 256)],
  pool_scale: [(16, 196, 768)],
  attention: [(1, 12, 128, 64), (8, 12, 512, 64), (32, 12, 128, 64)],
}  # fmt: skip
#: Name -> what makes it, its sizes.
CASES = {
  f"{kind.__name__}.{'x'.join(map(str, sizes))}": (kind, sizes)
  for kind, own in SIZES.items()
  for sizes in own
}


def draw(name):
  """The model of a name, and what it is."""
  kind, sizes = CASES[name]
  net = Net(seed=len(name))
  kind(net, *sizes)
  return net.model(net.nodes[-1].output[0]), {"text": f"fp16 {name}", "type": "fp16"}
