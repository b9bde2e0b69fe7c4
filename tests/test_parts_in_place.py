"""Slices and concatenations, to the end: kernels read and write parts of tensors in place."""

import numpy as np
import pytest
from onnx import helper
from small_models import Net, check_kernels, feeds

import mirage_onnx

D = 16


def split(net, x, *sizes, axis=-1):
  outs = [net._name(f"part{i}_") for i in range(len(sizes))]
  sizes = net.constant(sizes, np.int64)
  net.nodes.append(helper.make_node("Split", [x, sizes], outs, name=f"Split_{outs[0]}", axis=axis))
  return outs


def half(net, x, first, last):
  return net.Slice(x, [first], [last], [-1])


def rotated(net, x, cos, sin):
  other = net.Concat(net.Neg(half(net, x, D, 2 * D)), half(net, x, 0, D), axis=-1)
  return net.Add(net.Mul(x, cos), net.Mul(other, sin))


def rotary(net):
  x = net.Reshape(net.input(6, 3 * 4 * 2 * D), [6, 12, 2 * D])
  q = net.Slice(x, [0], [4], [1])
  return rotated(net, q, net.input(6, 1, 2 * D), net.input(6, 1, 2 * D))


def packed(net):
  y = net.MatMul(net.rms(net.input(5, 64)), net.weight(64, 96))
  a, b, c = split(net, y, 32, 48, 16)
  return net.Mul(a, net.Sigmoid(a)), net.Tanh(b), net.Add(c, 0.5)


def adapter(net):
  """[W|A] side by side: x W + (x A) B from one product."""
  y = net.MatMul(net.input(5, 64), net.weight(64, 64))
  return net.Add(half(net, y, 0, 48), net.MatMul(half(net, y, 48, 64), net.weight(16, 48)))


def cache(net):
  past, x = net.input(2, 9, 2 * D), net.input(2, 1, 2 * D)
  return net.Concat(past, rotated(net, x, net.input(1, 2 * D), net.input(1, 2 * D)), axis=1)


def mean_of_parts(net):
  x = net.Concat(net.input(6, 24), net.Exp(net.input(6, 40)), axis=-1)
  return net.rms(x)


def embedded(net, interleaved=0):
  """The operator; neighbours of a row, or its halves, are rotated together."""
  x, cos, sin = net.input(2, 4, 6, 2 * D), net.input(2, 6, D), net.input(2, 6, D)
  return net.RotaryEmbedding(net.Tanh(x), cos, sin, interleaved=interleaved)


def interleaved(net):
  return embedded(net, 1)


def attention(net):
  """Packed queries, keys and values, rotated, with a cache of keys and values."""
  x = net.Reshape(net.input(3, 3 * 2 * 2 * D), [3, 6, 2 * D])
  q, k, v = (net.Transpose(p, perm=[1, 0, 2]) for p in split(net, x, 2, 2, 2, axis=1))
  cos, sin = net.input(3, 2 * D), net.input(3, 2 * D)
  q, k = (rotated(net, p, cos, sin) for p in (q, k))
  keys = net.Concat(net.input(2, 13, 2 * D), k, axis=1)
  values = net.Concat(net.input(2, 13, 2 * D), v, axis=1)
  logits = net.Mul(net.MatMul(q, net.Transpose(keys, perm=[0, 2, 1])), 0.125)
  return net.MatMul(net.Softmax(logits), values), keys, values


def past_and_new(net):
  q, *parts = (net.input(2, n, D) for n in (3, 13, 3, 13, 3))
  keys, values = net.Concat(*parts[:2], axis=1), net.Concat(*parts[2:], axis=1)
  logits = net.Mul(net.MatMul(q, net.Transpose(keys, perm=[0, 2, 1])), 0.125)
  return net.MatMul(net.Softmax(logits), values)


def optimized(build, rng, how=None, **options):
  """The types of the nodes that are left, when the kernels have computed what is right."""
  net = Net(seed=3, opset=23)
  made = build(net)
  model = net.model(*([made] if isinstance(made, str) else made))
  # ONNX Runtime's kernels are faster at these sizes: the margin takes ours anyway.
  result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0, **options)
  check_kernels(model, result, feeds(model, rng), atol=4e-3, **(how or {}))
  return {n.op_type for n in result.model.graph.node if not n.op_type.startswith("MuGraph")}


BUILDS = [rotary, packed, adapter, cache, mean_of_parts, embedded, interleaved]


@pytest.mark.parametrize("build", BUILDS)
def test_parts_are_read_and_written_in_place(build, rng):
  assert optimized(build, rng) <= {"Reshape", "MatMul"}


def test_a_layer_with_a_cache(rng):
  left = optimized(attention, rng)
  assert not left & {"Slice", "Neg", "Mul", "Add"}  # values are put together, not computed


@pytest.mark.slow
def test_attention_over_parts(rng):
  assert not optimized(past_and_new, rng)


@pytest.mark.gpu
@pytest.mark.parametrize("build", [*BUILDS, attention, past_and_new])
def test_parts_on_a_gpu(build, rng):
  optimized(build, rng, {"providers": ["CUDAExecutionProvider"]})
