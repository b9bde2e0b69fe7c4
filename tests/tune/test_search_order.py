"""Which regions are searched first."""

from dataclasses import replace

import numpy as np
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.space import ALL, EMITTED, space_of
from mirage_onnx.tune.outcome import grouped
from mirage_onnx.tune.search_order import search_order


def attention_and_a_linear_layer():
  net = Net(np.float16)
  q, k, v = (net.input(1, 2, n, 64) for n in (16, 32, 32))
  p = net.Softmax(net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), 0.125))
  y = net.MatMul(p, v)
  z = net.Exp(net.MatMul(net.rms(net.input(8, 64)), net.weight(64, 32)))
  return net.model(y, z)


def outcomes(node_us):
  found = find_candidates(import_model(load_model(attention_and_a_linear_layer())), TIMED)
  return grouped(found.candidates, dict.fromkeys({n for c in found.candidates for n in c.nodes}, node_us))


def test_the_quick_ones_come_first_and_all_come():
  found = outcomes(3.0)
  order = search_order(found)
  assert sorted(order) == sorted(found)
  spaces = [space_of(found[key].region) for key in order]
  assert {*spaces} == {ALL, EMITTED}
  assert spaces == sorted(spaces, key=lambda space: space is not EMITTED)


def test_what_takes_longest_comes_before_its_variants():
  found = outcomes(3.0)
  slow = [found[key] for key in search_order(found) if space_of(found[key].region) == ALL]
  assert len(slow) > 2
  assert slow[0].total_us == max(o.total_us for o in slow)
  assert len(slow[0].region.nodes) == 5


def test_parts_that_share_nothing_come_before_variants_of_one():
  found = outcomes(3.0)
  key, whole = max(
    found.items(), key=lambda item: len(item[1].region.nodes) * (space_of(item[1].region) == ALL)
  )
  (instance,) = whole.instances
  apart = replace(instance, nodes=frozenset({"elsewhere"}))
  order = search_order({**found, "other": replace(whole, instances=(apart,), baseline_us=0.1)})
  slow = [k for k in order if k == "other" or space_of(found[k].region) == ALL]
  assert slow[:2] == [key, "other"]
