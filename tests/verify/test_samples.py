"""Sizes at which programs are compared: reduced axes stay deep, axes of what is alike become few."""

from math import prod

import pytest
from small_models import Net, region_of

from mirage_onnx.verify.samples import DEEP, FLAT, LEAST_FLAT, sample_extents


def attention(batch, heads, queries, keys, width=64):
  net = Net()
  q, k, v = (net.input(batch, heads, n, width) for n in (queries, keys, keys))
  logits = net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2]))
  return region_of(net.model(net.MatMul(net.Softmax(logits, axis=-1), v)))


@pytest.mark.parametrize("sizes", [(16, 12, 128, 128), (8, 12, 512, 512), (2, 3, 8, 128)])
def test_of_attention_batch_and_heads_are_fewer_not_keys(sizes):
  region = attention(*sizes)
  found = sample_extents(region)
  full = {a: region.extents[a] for a in found}
  assert sorted(found.values())[-2:] == sorted([min(sizes[3], DEEP), 64]), "what is reduced"
  few = [n for a, n in found.items() if n < full[a] and full[a] < min(sizes[2:])]
  assert all(n >= min(LEAST_FLAT // 2, FLAT) for n in few)
  assert max(prod(found[a] for a in i.axes) for i in region.inputs) <= 1 << 18


def test_what_is_small_keeps_its_samples():
  assert sorted(sample_extents(attention(2, 3, 8, 64)).values()) == [6, 8, FLAT, 64, 64]
