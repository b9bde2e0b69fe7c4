"""One layer of models as they are used: real width and length, masks as exporters write them.

Weights are one small block, repeated: quick to draw, and as large in the model as real ones. Outside of the
model (``outside``) they are all the beginning of one file.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto
from small_models import Net


@dataclass(frozen=True)
class Width:
  """Of a model: hidden size, heads, heads of K and V, size of a head, and inner size of the MLP."""

  hidden: int
  heads: int
  shared: int
  head: int
  inner: int


BERT = Width(768, 12, 12, 64, 3072)
QWEN3 = Width(1024, 16, 8, 128, 3072)
LLAMA = Width(4096, 32, 8, 128, 14336)


def weights_file(path, w):
  """What the weights of a layer of this width are read from."""
  block = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float16) / np.float16(64)
  path.write_bytes(np.resize(block, w.hidden * max(w.inner, w.heads * w.head)).tobytes())


class Layer(Net):
  """A Net whose weights are tiles of one block. ``outside``: the file that they are in, if they are."""

  def __init__(self, dtype, outside=None):
    super().__init__(dtype)
    self.outside = outside

  def big(self, rows, columns):
    if self.outside:
      tensor = TensorProto(name=self._name("w"), data_type=TensorProto.FLOAT16, dims=[rows, columns])
      tensor.data_location = TensorProto.EXTERNAL
      for key, value in (("location", self.outside), ("offset", 0), ("length", 2 * rows * columns)):
        tensor.external_data.add(key=key, value=str(value))
      self.weights.append(tensor)
      return tensor.name
    block = self.rng.standard_normal((64, 64)) / np.sqrt(rows)
    return self.constant(np.tile(block, (rows // 64, columns // 64)))

  def linear(self, x, rows, columns):
    return self.Add(self.MatMul(x, self.big(rows, columns)), self.constant(np.full(columns, 0.01)))

  def split(self, x, batch, tokens, heads, size):
    """Heads before tokens; a run's Concat of Shapes says the sizes where they are not known."""
    if isinstance(tokens, int):
      apart = self.Reshape(x, [batch, tokens, heads, size])
    else:
      sizes = [self.Shape(x, start=d, end=d + 1) for d in (0, 1)]
      apart = self.Reshape(x, self.Concat(*sizes, [heads], [size], axis=0))
    return self.Transpose(apart, perm=[0, 2, 1, 3])

  def joined(self, x, batch, tokens, hidden):
    back = self.Transpose(x, perm=[0, 2, 1, 3])
    if isinstance(tokens, int):
      return self.Reshape(back, [batch, tokens, hidden])
    sizes = [self.Shape(back, start=d, end=d + 1) for d in (0, 1)]
    return self.Reshape(back, self.Concat(*sizes, [hidden], axis=0))

  def padding(self, mask, tokens):
    """What torch writes of a mask [1, tokens]: picked by indices, one for every position."""
    seen = self.cast(mask, np.bool_)
    if isinstance(tokens, int):
      places = np.stack([np.zeros(tokens, np.int64), np.arange(tokens)], -1)[None, None, None]
      seen = self.GatherND(seen, self.constant(places, np.int64))
    else:
      seen = self.Unsqueeze(seen, [1, 2])
    return self.Where(seen, 0.0, self.constant(float(np.finfo(self.dtype).min)))

  def attention(self, x, w, batch, tokens, mask):
    q = self.split(self.linear(x, w.hidden, w.heads * w.head), batch, tokens, w.heads, w.head)
    k, v = (
      self.split(self.linear(x, w.hidden, w.shared * w.head), batch, tokens, w.shared, w.head)
      for _ in range(2)
    )
    if w.shared < w.heads:
      k, v = (self.repeated(y, w, batch, tokens) for y in (k, v))
    logits = self.Mul(self.MatMul(q, self.Transpose(k, perm=[0, 1, 3, 2])), w.head**-0.5)
    weights = self.Softmax(self.Add(logits, mask), axis=-1)
    joined = self.joined(self.MatMul(weights, v), batch, tokens, w.heads * w.head)
    return self.linear(joined, w.heads * w.head, w.hidden)

  def repeated(self, x, w, batch, tokens):
    times = w.heads // w.shared
    apart = self.Unsqueeze(x, [2])
    if isinstance(tokens, int):
      wide = self.Expand(apart, [batch, w.shared, times, tokens, w.head])
      return self.Reshape(wide, [batch, w.heads, tokens, w.head])
    first, second = self.Shape(x, start=0, end=1), self.Shape(x, start=2, end=3)
    wide = self.Expand(apart, self.Concat(first, [w.shared], [times], second, [w.head], axis=0))
    return self.Reshape(wide, self.Concat(first, [w.heads], second, [w.head], axis=0))

  def causal(self, x, tokens):
    """A stored mask, or what exporters compute of a run's tokens."""
    if isinstance(tokens, int):
      return self.constant(np.triu(np.full((tokens, tokens), -6e4, np.float16), 1)[None, None])
    count = self.Squeeze(self.Shape(x, start=1, end=2), [0])
    places = self.Range(self.constant(0, np.int64), count, self.constant(1, np.int64))
    later = self.Greater(self.Unsqueeze(places, [0]), self.Unsqueeze(places, [1]))
    return self.Unsqueeze(self.Where(later, self.constant(-6e4), self.constant(0.0)), [0, 1])


def encoder(w, tokens, batch=1, outside=None, layers=1):
  """BERT: norms behind sums, GELU, a mask of padding."""
  net = Layer(np.float16, outside)
  x, mask = net.input(batch, tokens, w.hidden), net.input(batch, tokens, dtype=np.int64)
  norm = {"axis": -1, "epsilon": 1e-12}
  padding = net.padding(mask, tokens)
  for _ in range(layers):
    near = net.attention(x, w, batch, tokens, padding)
    h = net.LayerNormalization(net.Add(near, x), net.weight(w.hidden), net.weight(w.hidden), **norm)
    inner = net.Gelu(net.linear(h, w.hidden, w.inner))
    y = net.Add(net.linear(inner, w.inner, w.hidden), h)
    x = net.LayerNormalization(y, net.weight(w.hidden), net.weight(w.hidden), **norm)
  return net.model(x)


def decoder(w, tokens, batch=1, outside=None):
  """LLaMA and Qwen: RMS norms before, a gated MLP, a causal mask."""
  net = Layer(np.float16, outside)
  x = net.input(batch, tokens, w.hidden)
  causal = net.causal(x, tokens)
  near = net.attention(net.rms(x, net.weight(w.hidden)), w, batch, tokens, causal)
  h = net.Add(near, x)
  z = net.rms(h, net.weight(w.hidden))
  gate = net.MatMul(z, net.big(w.hidden, w.inner))
  gated = net.Mul(net.Mul(gate, net.Sigmoid(gate)), net.MatMul(z, net.big(w.hidden, w.inner)))
  return net.model(net.Add(net.MatMul(gated, net.big(w.inner, w.hidden)), h))
