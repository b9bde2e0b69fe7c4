"""Cases that read a cache of keys and values: attention by itself, and a LLaMA decode layer."""

import numpy as np
from linear_cases import exact_mlp_half, mlp_half
from speed_graph import Graph, exact_rms_norm, exact_softmax, times

LAYER_NORM_EPSILON = 1e-5


def scale_of(depth):
  """1 / sqrt(depth), as the model stores it."""
  return float(np.float16(depth**-0.5))


def attention(row, heads, queries, depth, keys):
  """softmax(q k) v with the keys as columns: (heads, depth, keys)."""
  g = Graph(heads)
  q = g.input("q", heads, queries, depth, scale=depth**-0.5)
  k, v = g.input("k", heads, depth, keys), g.input("v", heads, keys, depth)
  y = g.MatMul(g.Softmax(g.MatMul(q, k), axis=-1), v)

  def oracle(wide):
    return {"y": exact_softmax(wide("q") @ wide("k")) @ wide("v")}

  name = f"{row} ({heads},{queries},{depth})x{keys}"
  return g.case(name, {"y": (y, (heads, queries, depth))}, oracle)


def qknorm(heads, queries, depth, keys):
  """Attention whose queries and keys go through LayerNorms with a gain."""
  g = Graph(heads)
  q = g.input("q", 1, heads, queries, depth)
  k, v = (g.input(n, 1, heads, keys, depth) for n in ("k", "v"))
  q, k = (
    g.LayerNormalization(x, g.gain(n, depth), axis=-1, epsilon=LAYER_NORM_EPSILON)
    for x, n in ((q, "q_norm"), (k, "k_norm"))
  )
  scores = g.Mul(g.MatMul(q, g.Transpose(k, perm=[0, 1, 3, 2])), scale_of(depth))
  y = g.MatMul(g.Softmax(scores, axis=-1), v)

  def oracle(wide):
    q = _layer_norm(wide("q"), wide("q_norm"))
    k = _layer_norm(wide("k"), wide("k_norm"))
    p = exact_softmax(q @ k.swapaxes(-1, -2) * scale_of(depth))
    return {"y": p @ wide("v")}

  name = f"qknorm {heads} heads q={queries} L={keys}"
  return g.case(name, {"y": (y, (1, heads, queries, depth))}, oracle)


def _layer_norm(x, gain):
  x = x - x.mean(-1, keepdims=True)
  return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + LAYER_NORM_EPSILON) * gain)


def llama_layer(heads, kv_heads, depth, inner, length, batch=1):
  """One LLaMA layer, one decode step; the new token is the last of ``length`` positions.

  Queries of a group share the keys through a reshape (no copy of the cache), and only the new
  keys and values are outputs. cos and sin of the position are inputs, one for all layers.
  """
  hidden = heads * depth
  g = Graph(length)
  x = g.input("x", batch, 1, hidden)
  past = [g.input(n, batch, kv_heads, length - 1, depth) for n in ("past_k", "past_v")]
  cos, sin = g.input("cos", 1, 1, 1, depth), g.input("sin", 1, 1, 1, depth)
  angles = np.tile(np.random.default_rng(1).uniform(0, 2 * np.pi, depth // 2), 2)
  for name, f in (("cos", np.cos), ("sin", np.sin)):
    g.feeds[name] = f(angles).astype(np.float16).reshape(1, 1, 1, depth)
  normed = g.rms_norm(x, g.gain("attn.norm", hidden))

  def project(name, count):
    y = g.MatMul(normed, g.weight(f"attn.{name}", hidden, count * depth, depth=hidden))
    return g.Transpose(g.Reshape(y, [batch, 1, count, depth]), perm=[0, 2, 1, 3])

  def rotated(t):
    low = g.Slice(t, [0], [depth // 2], [-1])
    high = g.Slice(t, [depth // 2], [depth], [-1])
    return g.Add(g.Mul(t, cos), g.Mul(g.Concat(g.Neg(high), low, axis=-1), sin))

  q, k, v = rotated(project("q", heads)), rotated(project("k", kv_heads)), project("v", kv_heads)
  keys, values = (g.Concat(p, new, axis=-2) for p, new in zip(past, (k, v), strict=True))
  grouped = g.Reshape(q, [batch, kv_heads, heads // kv_heads, depth])
  scores = g.Mul(g.MatMul(grouped, g.Transpose(keys, perm=[0, 1, 3, 2])), scale_of(depth))
  o = g.Reshape(g.MatMul(g.Softmax(scores, axis=-1), values), [batch, 1, hidden])
  x = g.Add(x, g.MatMul(o, g.weight("attn.o", hidden, hidden, depth=hidden)))
  y = mlp_half(g, x, hidden, inner)

  def oracle(wide):
    x, cos, sin = wide("x"), wide("cos"), wide("sin")
    normed = exact_rms_norm(x, wide("attn.norm"))

    def project(name):
      y = normed @ wide(f"attn.{name}")
      return y.reshape(batch, 1, -1, depth).swapaxes(1, 2)

    def rotated(t):
      low, high = np.split(t, 2, axis=-1)
      return np.asarray(t * cos + np.concatenate((-high, low), -1) * sin)

    q, k, v = rotated(project("q")), rotated(project("k")), project("v")
    keys, values = (
      np.concatenate((wide("past_k"), k), 2),
      np.concatenate((wide("past_v"), v), 2),
    )
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, depth)
    o = exact_softmax(grouped @ keys.swapaxes(-1, -2) * scale_of(depth)) @ values
    x = x + o.reshape(batch, 1, hidden) @ wide("attn.o")
    return {"y": exact_mlp_half(x, wide), "k": k, "v": v}

  new = (batch, kv_heads, 1, depth)
  outputs = {"y": (y, (batch, 1, hidden)), "k": (k, new), "v": (v, new)}
  name = f"llama_layer {times(hidden, inner)} {heads}/{kv_heads} heads L={length} b={batch}"
  return g.case(name, outputs, oracle)
