"""Programs for the search: weighted means over keys, with all that is done to their logits.

Axes in the comments: h heads, m queries, l keys, d elements of a head.
"""

from math import sqrt

import numpy as np
from search_expectations import Expected, entry

ATTENTIONS = {}
HEADS, QUERIES, KEYS, WIDTH = 32, 64, 4096, 128
ONLINE = frozenset({"run_max", "acc_scaled"})
#: Two contractions in one loop over the keys, with the maximum so far.
ONE_LOOP = Expected(kernels=1, ops=ONLINE, contractions=2)
#: The same, where splitting the keys is predicted a little faster than the cluster of one kernel.
LOOP_OR_SPLIT = Expected(kernels=2, ops=ONLINE, contractions=2)
#: Few queries: the blocks share out the keys, and a second kernel combines what they found. Whether
#: a block walks its keys in a loop or holds them at once is left to the cost.
SPLIT = Expected(kernels=2, ops=frozenset({"rmax"}), parts=True)
SCALE = 1 / sqrt(WIDTH)


def _keys(net, queries=QUERIES, heads=HEADS, keys=KEYS):
  k = net.input(heads, keys, WIDTH)
  return net.input(heads, queries, WIDTH), k, net.input(heads, keys, WIDTH)


def _logits(net, q, k, scale=SCALE):
  s = net.MatMul(q, net.transposed(k, 3))
  return net.Mul(s, scale) if scale else s


def _mean(net, logits, v):
  return (net.MatMul(net.softmax(logits), v),)


@entry(ATTENTIONS, LOOP_OR_SPLIT)
def attention(net):
  q, k, v = _keys(net)
  return _mean(net, _logits(net, q, k, None), v)


@entry(ATTENTIONS, LOOP_OR_SPLIT)
def attention_scaled(net):
  q, k, v = _keys(net)
  return _mean(net, _logits(net, q, k), v)


@entry(ATTENTIONS, ONE_LOOP)
def attention_additive_mask(net):
  """A mask of keys, the same for all heads and queries."""
  q, k, v = _keys(net)
  return _mean(net, net.Add(_logits(net, q, k), net.input(1, 1, KEYS)), v)


@entry(ATTENTIONS, ONE_LOOP)
def attention_causal(net):
  """A mask [m, l] of queries and keys, for as many queries as keys."""
  q, k, v = _keys(net, queries=1024, heads=16, keys=1024)
  return _mean(net, net.Add(_logits(net, q, k), net.input(1024, 1024)), v)


@entry(ATTENTIONS, Expected(kernels=2, contractions=2))
def attention_softcap(net):
  """50 tanh(s / 50): bounded logits, whose maximum may be left out."""
  q, k, v = _keys(net)
  s = net.Mul(net.Tanh(net.Div(_logits(net, q, k), 50.0)), 50.0)
  return _mean(net, s, v)


@entry(ATTENTIONS, ONE_LOOP)
def multi_head(net):
  """16 heads as parts of rows of 1024, split before and joined after."""

  def heads():
    return net.Transpose(net.Reshape(net.input(1, 512, 1024), [1, 512, 16, 64]), perm=order)

  order = [0, 2, 1, 3]
  q, k, v = heads(), heads(), heads()
  s = net.Mul(net.MatMul(q, net.transposed(k, 4)), 0.125)
  y = net.MatMul(net.softmax(s), v)
  return (net.Reshape(net.Transpose(y, perm=order), [1, 512, 1024]),)


def _repeated(net, x, heads, groups, keys):
  """Each of ``heads`` read by ``groups`` queries, as exporters write it."""
  more = net.Expand(net.Unsqueeze(x, [2]), [1, heads, groups, keys, WIDTH])
  return net.Reshape(more, [1, heads * groups, keys, WIDTH])


@entry(ATTENTIONS, SPLIT)
def grouped_query(net):
  """One query each of 32 heads; 4 of them share one of 8 key heads, of 8192 keys."""
  q, k, v = net.input(1, 32, 1, WIDTH), *(net.input(1, 8, 8192, WIDTH) for _ in range(2))
  k, v = (_repeated(net, x, 8, 4, 8192) for x in (k, v))
  s = net.Mul(net.MatMul(q, net.transposed(k, 4)), SCALE)
  return _mean(net, s, v)


@entry(ATTENTIONS, SPLIT)
def multi_query(net):
  q, k, v = net.input(HEADS, WIDTH), net.input(KEYS, WIDTH), net.input(KEYS, WIDTH)
  s = net.Mul(net.MatMul(q, net.Transpose(k, perm=[1, 0])), SCALE)
  return _mean(net, s, v)


@entry(ATTENTIONS, SPLIT)
def decode(net):
  q, k, v = _keys(net, queries=1, heads=8, keys=8192)
  return _mean(net, _logits(net, q, k), v)


@entry(ATTENTIONS, SPLIT)
def speculative_decode(net):
  """Five drafted tokens over 4096 keys, with a mask that says which draft sees which key."""
  q, k, v = _keys(net, queries=5, heads=8)
  return _mean(net, net.Add(_logits(net, q, k), net.input(5, KEYS)), v)


@entry(ATTENTIONS, Expected(kernels=2, contractions=2))
def qknorm_rms_attention(net):
  """Queries and keys are divided by their root mean square; 5 inputs.

  In one kernel each block of queries normalises the keys again: predicted 9 % slower than the
  keys split over the blocks.
  """
  q, k, v = _keys(net)
  q, k = (net.rms_norm(x, net.weight(WIDTH)) for x in (q, k))
  return _mean(net, _logits(net, q, k), v)


@entry(ATTENTIONS, Expected(kernels=3, contractions=2))
def qknorm_layernorm_attention(net):
  """Queries and keys are centred and normalised, then scaled; 5 inputs.

  As above: one kernel is predicted to take a third longer than one that normalises before.
  """
  q, k, v = _keys(net)
  q, k = (net.layer_norm(x, net.weight(WIDTH)) for x in (q, k))
  return _mean(net, _logits(net, q, k), v)


@entry(ATTENTIONS, SPLIT)
def mla_absorbed(net):
  """One query of 128 heads; keys are [latent 512, rotary 64], values the latent."""
  q, turned = net.input(128, 512), net.input(128, 64)
  latent, rotated = net.input(KEYS, 512), net.input(KEYS, 64)
  s = net.Add(
    net.MatMul(q, net.Transpose(latent, perm=[1, 0])),
    net.MatMul(turned, net.Transpose(rotated, perm=[1, 0])),
  )
  return _mean(net, net.Mul(s, 1 / sqrt(192)), latent)


@entry(ATTENTIONS, Expected(kernels=4))
def mla_with_linears(net):
  """One query of 128 heads; a linear layer each makes its keys and values of the latent."""
  q, latent = net.input(128, 1, WIDTH), net.input(1, KEYS, 512)
  k, v = (net.MatMul(latent, net.weight(128, 512, WIDTH)) for _ in range(2))
  return _mean(net, _logits(net, q, k), v)


# -- not asked for by name


@entry(ATTENTIONS, Expected(kernels=2, accumulators=2))
def linear_attention(net):
  """relu(q) (relu(k)^T v) over relu(q) sum relu(k): both sums over the keys in one loop."""
  q, k, v = _keys(net, queries=1024)
  q, k = (net.Relu(x) for x in (q, k))
  total = net.ReduceSum(k, [1])
  y = net.wide(net.MatMul(q, net.MatMul(net.transposed(k, 3), v)))
  weight = net.shifted(net.wide(net.MatMul(q, net.transposed(total, 3))), 1.0)
  return (net.half(net.Div(y, weight)),)


@entry(ATTENTIONS, Expected(kernels=2, accumulators=3))
def cosine_scores(net):
  """10 q k / (|q| |k|) of 64 queries and 8192 keys: both lengths are divided by at the end."""

  def direction(x):
    wide = net.wide(x)
    length = net.Sqrt(net.ReduceSum(net.Mul(wide, wide), [-1]))
    least = net.constant(1e-12, np.float32)
    return net.half(net.Div(wide, net.Max(length, least)))

  q, k = direction(net.input(64, 1024)), direction(net.input(8192, 1024))
  return (net.Mul(net.MatMul(q, net.Transpose(k, perm=[1, 0])), 10.0),)
