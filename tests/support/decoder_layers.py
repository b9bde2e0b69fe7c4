"""A LLaMA decode step of any number of layers, as an exporter writes it; needs no torch.

fp32 norms, rotary embedding, a cache as plain tensors; every layer has weights of its own.
"""

from dataclasses import dataclass

from golden_models import wide_rms
from small_models import Net


@dataclass(frozen=True)
class Decoder:
  """Sizes; the default is an eighth of the width of LLaMA-7B."""

  hidden: int = 512
  inner: int = 1376
  heads: int = 4
  past: int = 16
  vocabulary: int = 4000

  @property
  def head(self):
    return self.hidden // self.heads


def _rotated(net, x, cos, sin, head):
  first, second = (net.Slice(x, [lo], [hi], [3]) for lo, hi in ((0, head // 2), (head // 2, head)))
  turned = net.Concat(net.Neg(second), first, axis=-1)
  return net.Add(net.Mul(x, cos), net.Mul(turned, sin))


def _attention(net, sizes, x, cos, sin):
  def heads(y):
    split = net.Reshape(y, [1, 1, sizes.heads, sizes.head])
    return net.Transpose(split, perm=[0, 2, 1, 3])

  def cache():
    return net.input(1, sizes.heads, sizes.past, sizes.head)

  q, k, v = (heads(net.MatMul(x, net.weight(sizes.hidden, sizes.hidden))) for _ in range(3))
  q, k = (_rotated(net, y, cos, sin, sizes.head) for y in (q, k))
  keys, values = net.Concat(cache(), k, axis=2), net.Concat(cache(), v, axis=2)
  scores = net.MatMul(q, net.Transpose(keys, perm=[0, 1, 3, 2]))
  weights = net.Softmax(net.Mul(scores, sizes.head**-0.5), axis=-1)
  joined = net.Transpose(net.MatMul(weights, values), perm=[0, 2, 1, 3])
  flat = net.Reshape(joined, [1, 1, sizes.hidden])
  return net.MatMul(flat, net.weight(sizes.hidden, sizes.hidden)), keys, values


def _feed_forward(net, sizes, x):
  gate, up = (net.MatMul(x, net.weight(sizes.hidden, sizes.inner)) for _ in range(2))
  gated = net.Mul(net.Mul(gate, net.Sigmoid(gate)), up)
  return net.MatMul(gated, net.weight(sizes.inner, sizes.hidden))


def llama_decode(layers, sizes=None):
  """The model: hidden state of a token, rotary tables and caches in; logits and caches out."""
  sizes = sizes or Decoder()
  net = Net()
  x = net.input(1, 1, sizes.hidden)
  cos, sin = (net.input(1, 1, 1, sizes.head) for _ in range(2))
  present = []
  for _ in range(layers):
    normed = wide_rms(net, x, net.weight(sizes.hidden, scale=1.0))
    attended, keys, values = _attention(net, sizes, normed, cos, sin)
    x = net.Add(x, attended)
    x = net.Add(x, _feed_forward(net, sizes, wide_rms(net, x, net.weight(sizes.hidden))))
    present += [keys, values]
  y = wide_rms(net, x, net.weight(sizes.hidden))
  logits = net.MatMul(y, net.weight(sizes.hidden, sizes.vocabulary))
  return net.model(logits, *dict.fromkeys(present))
