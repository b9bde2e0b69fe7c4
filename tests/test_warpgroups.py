"""A product of many rows by wgmma, to the end: search, proof, bundle, custom op, emulated run."""

from dataclasses import replace

import pytest
from small_models import Net, check_kernels, feeds, replaced_ops

import mirage_onnx
from mirage_onnx import judging
from mirage_onnx.superopt.timed_numbers import with_warpgroups


@pytest.fixture
def fastest(monkeypatch):
  """Programs as where they are timed (``judging.py``), and those by wgmma turn out the fastest."""
  found = []

  def timed(region, result, target):
    every = with_warpgroups(region, result, target).candidates
    own = [v for v in every if "wgmma" in {p.instruction for p in v.candidate.params}]
    found.extend(own)
    return replace(result, candidates=tuple(own) or result.candidates)

  monkeypatch.setattr(judging, "as_expected", timed)
  return found


@pytest.mark.parametrize("rows", [(77,), (2, 64)])
def test_linear_with_an_epilogue(fastest, rows, rng):
  net = Net(seed=3)
  x, w, b = net.input(*rows, 192), net.weight(192, 128), net.weight(128)
  y = net.Add(net.Tanh(net.Add(net.MatMul(x, w), b)), net.input(*rows, 128))
  model = net.model(y)
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  assert fastest and {n.split("_")[0] for n in replaced_ops(result)} == {"MatMul", "Add", "Tanh"}
  check_kernels(model, result, feeds(model, rng))


def test_attention_of_many_queries(fastest, rng):
  net = Net(seed=5)
  q, k, v = (net.input(1, 2, n, 64) for n in (77, 128, 128))
  logits = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), 0.125)
  model = net.model(net.MatMul(net.Softmax(logits), v))
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0)
  ops = {"MatMul", "Softmax", "Mul", "Transpose"}
  assert fastest and {"MatMul", "Softmax"} <= {n.split("_")[0] for n in replaced_ops(result)} <= ops
  check_kernels(model, result, feeds(model, rng))
