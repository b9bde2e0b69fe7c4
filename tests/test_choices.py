"""Regions that compare and choose, with booleans as inputs, to the end.

The optimized model gives the same bits in stock onnxruntime, and its kernels, emulated, the same
values.
"""

import numpy as np
import pytest
from onnx import numpy_helper
from small_models import Net, check_kernels, feeds, matches, replaced_ops, run_model

import mirage_onnx
from mirage_onnx.importer import import_model, load_model

LOWEST = float(np.finfo(np.float16).min)


def mask(net, queries, keys, masked=LOWEST):
  """0 where a constant mask and one that is fed allow it, else ``masked``."""
  causal = net.constant(np.tri(queries, keys, keys - queries)[None, None], np.bool_)
  padding = net.input(1, 1, queries, keys, dtype=np.bool_)
  return net.Where(net.And(causal, padding), 0.0, masked)


def only_a_mask(net):
  return mask(net, 2, 25)


def masked_softmax(net):
  """What is masked is -inf, which is no number of the program."""
  return net.Softmax(net.Add(net.input(1, 4, 8, 24), mask(net, 8, 24, -np.inf)))


def rows_without_keys(net):
  """A softmax of nothing is NaN, and then 0: SDPA as torch exports it."""
  p = net.Softmax(net.Add(net.input(1, 4, 8, 24), mask(net, 8, 24, -np.inf)))
  return net.Where(net.IsNaN(p), 0.0, p)


def tokens_that_count(net):
  """A mask of integers, as models are fed it, and positions."""
  x = net.Mul(net.input(1, 8, 48), net.cast(net.input(1, 8, 1, dtype=np.int32), np.float16))
  counts = net.cast(net.Unsqueeze(net.input(1, 8, dtype=np.int64), [2]), np.bool_)
  return net.Where(counts, net.Exp(x), x)


def softplus(net):
  """As Mamba has it: x where exp(x) would be too large."""
  x = net.Add(net.input(8, 48), net.weight(48))
  soft = net.Log(net.Add(net.Exp(x), 1.0))
  return net.Where(net.Greater(x, 20.0), x, soft)


def beside_a_linear_layer(net):
  """A chosen row of W x, and where it is negative another."""
  x = net.input(8, 64)
  y = net.MatMul(net.Where(net.input(8, 1, dtype=np.bool_), net.Neg(x), x), net.weight(64, 64))
  return net.Where(net.Not(net.LessOrEqual(y, 0.0)), y, net.Mul(y, 0.25))


def clamped(net, rows=8):
  """The residual sums of T5: of all numbers the limit is lower if one of them overflows."""
  x = net.Add(net.MatMul(net.input(rows, 64), net.weight(64, 48)), net.input(rows, 48))
  one = net.ReduceMax(net.cast(net.IsInf(net.cast(x, np.float32)), np.int64), keepdims=0)
  limit = net.Where(net.cast(one, np.bool_), net.constant(64512.0), net.constant(65504.0))
  return net.Min(net.Max(x, net.Neg(limit)), limit)


BUILDS = [
  only_a_mask, masked_softmax, rows_without_keys, tokens_that_count, softplus,
  beside_a_linear_layer,
]  # fmt: skip


@pytest.mark.parametrize("build", BUILDS)
def test_regions_that_choose(build):
  net = Net(seed=3, opset=18)
  model = net.model(build(net))
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  values = feeds(model, np.random.default_rng(0))
  for name, kind in ((i.name, i.type.tensor_type.elem_type) for i in model.graph.input):
    if kind == 9:
      values[name] = np.random.default_rng(1).random(values[name].shape) < 0.5
      values[name][..., 3:4, :] = values[name].shape[-1] == 1
  (want,) = check_kernels(model, result, values)
  if build is rows_without_keys:
    assert not want[:, :, 3].any() and want[:, :, 2].any()


@pytest.mark.parametrize("overflows", [False, True])
@pytest.mark.parametrize("rows", [1, 8])
def test_what_overflows_is_found(rows, overflows):
  """A kernel has the number that does, not infinity, and takes it for what it is in fp16.

  onnxruntime's CPU provider computes in fp32 and casts nothing there, so it finds no infinity.
  With one row the product is in the same op.
  """
  net = Net(seed=3)
  model = net.model(clamped(net, rows))
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  assert replaced_ops(result) == {n.name for n in model.graph.node}
  values = feeds(model, np.random.default_rng(0))
  x, r = values.values()
  weight = numpy_helper.to_array(model.graph.initializer[0])
  x[-1] = 500 * weight[:, 6]
  r[0, [2, 4]] = [65472, -65472] - x[0].astype(np.float32) @ weight[:, [2, 4]]
  r[-1, 6] = 65504 if overflows else 0
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  (got,) = session.run(None, values)
  assert list(mirage_onnx.launches(session).values()) == [1] * (1 if rows == 1 else 2)
  sums = x.astype(np.float32) @ weight.astype(np.float32) + r
  assert (sums >= 65520).any() == overflows
  limit = 64512 if overflows else 65504
  np.testing.assert_allclose(got, np.clip(sums, -limit, limit), rtol=1e-3, atol=1e-3)
  assert (np.abs(got).max() == limit) == overflows


def test_integers_keep_their_value(rng):
  """Of 64 bits, and of fp32 the nearest."""
  net = Net(np.float32, opset=18)
  x = net.cast(net.input(9, 48, dtype=np.int64), np.float32)
  model = net.model(net.Mul(net.Neg(net.Add(x, net.input(48))), 0.5))
  result = mirage_onnx.optimize(model, target="h200", workers=1)
  session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
  values = feeds(model, rng)
  name = model.graph.input[0].name
  values[name] = rng.integers(-(2**63), 2**63, (9, 48)) >> rng.integers(0, 63, (9, 48))
  (got,), (want,) = session.run(None, values), run_model(model, values)
  assert list(mirage_onnx.launches(session).values()) == [1]
  np.testing.assert_allclose(got, want, rtol=1e-6)


def test_no_region_yields_a_boolean():
  """Also where its value is 0 or 1 by arithmetic alone."""
  net = Net(seed=3, opset=18)
  x = net.input(8, 48)
  model = net.model(net.Less(net.Mul(net.Exp(x), 2.0), net.Tanh(x)))
  assert all(n.barrier is None for n in import_model(load_model(model)).nodes)
  found = matches(model)
  kinds = {o.dtype for c in found.candidates for o in c.region.outputs}
  assert all(kind.is_float for kind in kinds)
  assert "DTYPE" in {r.code for r in found.rejections}
