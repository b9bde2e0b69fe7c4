"""A region that contracts two activations, to the end."""

import numpy as np
import pytest
from small_models import Net, check_kernels, feeds, replaced_ops

import mirage_onnx
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import limits_of


def attention(queries, keys, dtype=np.float16):
  net = Net(dtype, seed=5)
  q, k, v = (net.input(2, n, 64) for n in (queries, keys, keys))
  logits = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 2, 1])), 0.125)
  return net, net.MatMul(net.Softmax(logits), v)


@pytest.mark.parametrize(
  ("queries", "keys", "dtype"), [(1, 96, np.float16), (5, 257, np.float16), (3, 65, np.float32)]
)
def test_attention_becomes_kernels(queries, keys, dtype, rng):
  net, y = attention(queries, keys, dtype)
  model = net.model(y)
  # ONNX Runtime's kernels are faster, so says the prediction: the margin takes them anyway.
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert {n.name for n in model.graph.node if n.op_type in ("MatMul", "Softmax")} <= replaced_ops(result)
  near = {"atol": 1e-5, "rtol": 2e-5} if dtype is np.float32 else {}  # no operand was rounded
  check_kernels(model, result, feeds(model, rng), **near)


@pytest.mark.parametrize(("causal", "kind"), [(1, bool), (0, np.float16)])
def test_operator_with_masks(causal, kind, rng):
  """Two heads of queries share keys; a causal mask is stored; who sees no key gets zeros."""
  net = Net(seed=5, opset=23)
  q, k, v = (net.input(1, *n, 64) for n in ((4, 9), (2, 24), (2, 24)))
  model = net.model(net.Attention(q, k, v, net.input(9, 24, dtype=kind), is_causal=causal))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert [n.split("_")[0] for n in replaced_ops(result)] == ["Attention"]
  stored = {t.name for t in result.model.graph.initializer} - {"mirage.bundle"}
  assert stored == ({"mirage.causal.9x24+0"} if causal else set())
  values = feeds(model, rng)
  seen = rng.random((9, 24)) < 0.5
  seen[3] = False
  values[model.graph.input[3].name] = seen if kind is bool else np.where(seen, 0, -np.inf).astype(kind)
  (want,) = check_kernels(model, result, values)
  assert not want[:, :, 3].any()


def test_nothing_keeps_them_out():
  """By default, with nothing timed, both products and the softmax between them are one region."""
  net, y = attention(5, 96)
  program = import_model(load_model(net.model(y)))
  found = find_candidates(program, limits_of(steps=False, timed=False))
  assert not found.rejections and max(len(c.nodes) for c in found.candidates) == len(program.nodes)
