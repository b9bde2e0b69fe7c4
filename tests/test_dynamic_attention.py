"""Attention where only a run knows how many queries, keys and sequences there are."""

from functools import cache

import numpy as np
import onnxruntime as ort
import pytest
from small_models import Net, replaced_ops

import mirage_onnx

pytestmark = pytest.mark.usefixtures("searched_once")

HEADS, WIDTH = 2, 64
LONG_S = 3000.0  # a search takes more than a minute, on a busy machine more than ``optimize`` has by itself
#: Where the kernels have to be fast: right they are at any size, those of ``SIZES`` are asked for.
#: Several of a dimension (every candidate is lowered for each) where there is no mask, or one dimension.
SHAPES = {"batch": (4,), "seq": (128,), "keys": (64,)}
MORE = {"within": {"seq": (64, 128)}, "one query": {"batch": (1, 4)}}
#: Batch, queries, keys: one, less than a tile, no multiple of one, beyond what is declared, none.
SIZES = [(1, 1, 1), (2, 7, 64), (1, 64, 77), (2, 77, 7), (1, 130, 333), (0, 5, 5), (2, 0, 0)]


def heads(net, x):
  return net.Transpose(net.Reshape(x, [0, 0, HEADS, WIDTH]), perm=[0, 2, 1, 3])


def softmax_of_products(net, q, k, v, keys, mask=None):
  """``mask``: the shape of a further input that is added to the logits, or of one that selects them."""
  q, k, v = (heads(net, x) for x in (q, k, v))
  logits = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), WIDTH**-0.5)
  if mask == "perhaps nothing":
    return unseen_rows(net, logits, v, keys)
  if mask == "added":
    logits = net.Add(logits, net.input("batch", 1, 1, keys))
  if mask == "chosen":
    seen = net.Unsqueeze(net.input("batch", keys, dtype=np.bool_), [1, 2])
    logits = net.Where(seen, logits, net.constant(-1e4))
  if mask == "pairs":
    logits = net.Add(logits, net.input("seq", keys))
  y = net.MatMul(net.Softmax(logits), v)
  return net.Reshape(net.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, HEADS * WIDTH])


def unseen_rows(net, logits, v, keys):
  """As torch's dynamo export writes a mask of truth values: where no key is seen, the result is 0."""
  seen = net.Where(net.Unsqueeze(net.input("batch", keys, dtype=np.bool_), [1, 2]), 0.0, -np.inf)
  p = net.Softmax(net.Add(logits, seen))
  y = net.MatMul(net.Where(net.IsNaN(p), 0.0, p), v)
  return net.Reshape(net.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, HEADS * WIDTH])


def within(net, mask=None):
  """Queries and keys are of one sequence."""
  return softmax_of_products(net, *(rows(net, "seq") for _ in range(3)), "seq", mask)


def across(net, mask=None):
  """Keys of another sequence, which has a length of its own."""
  return softmax_of_products(net, rows(net, "seq"), rows(net, "keys"), rows(net, "keys"), "keys", mask)


def one_query(net):
  """Of every sequence one; the keys are those of a cache, heads first."""
  q = net.Transpose(
    net.Reshape(net.input("batch", 1, HEADS * WIDTH), [0, 1, HEADS, WIDTH]), perm=[0, 2, 1, 3]
  )
  k, v = (net.input("batch", HEADS, "keys", WIDTH) for _ in range(2))
  return net.MatMul(net.Softmax(net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), 0.125)), v)


def rows(net, length):
  return net.input("batch", length, HEADS * WIDTH)


def projected(net):
  """No softmax: sums over a sequence of products, whose length is the run's."""
  x, y = rows(net, "seq"), rows(net, "seq")
  return net.Mul(net.MatMul(net.Transpose(x, perm=[0, 2, 1]), y), 0.125)


def softmax(net):
  """Without a product: one kernel walks the row for its maximum and sum, the next is element by element."""
  return net.Softmax(
    net.Add(net.Mul(net.input("batch", 2, "seq", "keys"), 0.125), net.input("batch", 1, 1, "keys"))
  )


def pooled(net):
  """A mean over a sequence, of what a mask leaves of it."""
  x, mask = rows(net, "seq"), net.input("batch", "seq", 1)
  weight = net.ReduceSum(net.Exp(mask), [1], keepdims=0)
  return net.Div(net.ReduceSum(net.Mul(x, net.Exp(mask)), [1], keepdims=0), weight)


def centred(net):
  """The mean over a sequence: the number that divides is the run's."""
  x = rows(net, "seq")
  return net.Sub(x, net.ReduceMean(net.Mul(x, net.Sigmoid(x)), [1]))


BUILDS = {
  "within": within,
  "within, added mask": lambda net: within(net, "added"),
  "across, chosen mask": lambda net: across(net, "chosen"),
  "within, perhaps nothing": lambda net: within(net, "perhaps nothing"),
  "across, mask of pairs": lambda net: across(net, "pairs"),
  "one query": one_query,
  "projected": projected,
  "softmax": softmax,
  "pooled": pooled,
  "centred": centred,
}


@cache
def optimized(name):
  net = Net(np.float16, seed=5)
  model = net.model(BUILDS[name](net))
  used = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
  sizes_of = SHAPES | MORE.get(name, {})
  shapes = {name: sizes for name, sizes in sizes_of.items() if name in used}
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0, shapes=shapes, budget_s=LONG_S)
  return model, result


def values(model, sizes, seed):
  rng, named = np.random.default_rng(seed), dict(zip(("batch", "seq", "keys"), sizes, strict=True))
  found = {}
  for v in model.graph.input:
    drawn = rng.standard_normal([named.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim])
    boolean = v.type.tensor_type.elem_type == 9
    found[v.name] = drawn > -1 if boolean else drawn.astype(np.float16)
    if boolean and seed % 2:
      found[v.name][-1:] = False  # the last sequence sees nothing
  return found


def stock(model):
  return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


#: The others search for more than 10 s.
FAST = {"one query", "projected", "softmax", "pooled", "centred"}


@pytest.mark.parametrize(
  "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in BUILDS]
)
def test_every_size(name):
  model, result = optimized(name)
  kinds = ("MatMul", "Softmax", "ReduceSum", "ReduceMean")
  products = {n.name for n in model.graph.node if n.op_type in kinds}
  assert products
  assert products <= replaced_ops(result)
  before, after = stock(model), stock(result.model)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  ran = 0
  for i, sizes in enumerate(SIZES):
    feeds = values(model, sizes, i)
    if name in ("one query", "projected", "pooled") and sizes[2] == 0:
      continue  # sums over nothing (below)
    (want,), (same,), (got,) = (s.run(None, feeds) for s in (before, after, session))
    assert same.tobytes() == want.tobytes()
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=4e-3, atol=4e-3)
    ran += want.size > 0
  counts = mirage_onnx.launches(session)
  assert counts
  assert all(n >= ran for n in counts.values())


def test_a_softmax_over_nothing():
  """The kernel would divide 0 by 0, so the run fails; not where there is nothing to compute."""
  model, result = optimized("one query")
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  with pytest.raises(Exception, match="divisor below 1"):
    session.run(None, values(model, (1, 1, 0), 0))
  session.run(None, values(model, (0, 1, 0), 0))
  session.run(None, values(model, (1, 1, 2), 0))


def test_a_sum_over_nothing_is_zero():
  """Of fp16 ONNX Runtime's CPU provider leaves what was in memory."""
  model, result = optimized("projected")
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  (got,) = session.run(None, values(model, (2, 0, 0), 0))
  assert got.shape == (2, HEADS * WIDTH, HEADS * WIDTH) and not got.any()
  assert mirage_onnx.launches(session)
