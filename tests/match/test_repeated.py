"""Regions of equal layers: made once, and copies are what each would be by itself."""

import itertools

import numpy as np
import pytest
from decoder_layers import Decoder, llama_decode
from means_steps import check_means_its_steps
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match import repeated
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.canonical import make_region

TINY = Decoder(hidden=16, inner=24, heads=2, past=4, vocabulary=20)


def program(layers):
  return import_model(load_model(llama_decode(layers, TINY)))


def names(region):
  steps = {x for s in region.steps for x in (*s.inputs, s.output.name) if isinstance(x, str)}
  return steps | {x.tensor.name for x in (*region.inputs, *region.outputs)} | {*region.constants}


def almost_equal():
  """Chains that differ in a shape, a type, a constant, a weight, axes, what is read."""
  net = Net()
  x, y = net.input(8, 64), net.input(8, 64)

  def chain(x, y, scale=2.0, axis=-1):
    return net.Div(x, net.Exp(net.Mul(net.ReduceMax(net.Add(x, y), [axis]), scale)))

  pairs = ((x, y), (y, x), (x, x), (x, net.weight(8, 64)), (x, net.input(64)))
  ends = [chain(*p) for p in pairs] + [chain(x, y, 3.0), chain(x, y, axis=0), chain(x, y)]
  small, wide = net.input(8, 32), (net.input(8, 64, dtype=np.float32) for _ in range(2))
  total = net.Add(*wide)
  ends.append(net.Mul(total, net.Exp(total)))
  ends.append(net.Mul(total := net.Add(x, y), net.Exp(total)))
  cubes = [net.input(8, 8, 8) for _ in range(2)]
  for perm in ([1, 0, 2], [0, 2, 1]):
    ends.append(net.Mul(net.Exp(net.Transpose(cubes[0], perm=perm)), cubes[1]))
  return import_model(load_model(net.model(*ends, chain(small, small))))


@pytest.mark.parametrize("make", [lambda: program(4), almost_equal], ids=["layers", "chains"])
def test_copies_are_the_regions_of_their_nodes(make):
  subject, rng = make(), np.random.default_rng(0)
  found, seen = find_candidates(subject).candidates, set[str]()
  for c in found:
    region = c.region
    inputs = tuple(dict.fromkeys(i.source.name for i in region.inputs))
    outputs = tuple(dict.fromkeys(o.source.name for o in region.outputs))
    own = make_region(subject, region.nodes, inputs, outputs)
    assert region.key == own.key and region.steps == own.steps and names(region) == names(own)
    assert {i.tensor for i in region.inputs} == {i.tensor for i in own.inputs}
    assert region.constants == own.constants and set(outputs) == c.outputs
    if region.key in seen:  # a copy
      check_means_its_steps(region, rng)
    seen.add(region.key)
  assert 5 < len(seen) < len(found)


@pytest.mark.parametrize("make", [lambda: program(4), almost_equal], ids=["layers", "chains"])
def test_no_copy_is_made_before_it_is_asked_for(monkeypatch, make):
  copied, own = [], repeated.RegionMaker.copy
  monkeypatch.setattr(repeated.RegionMaker, "copy", lambda *a: copied.append(a) or own(*a))
  found = find_candidates(make()).candidates
  told = [(c.key, c.reads, dict(c.extents)) for c in found]
  assert not copied
  weights_of = [c.weights for c in found]
  assert not copied  # parts of weights have the names that copies would give them
  for c, (key, reads, extents), weights in zip(found, told, weights_of, strict=True):
    region = c.region
    assert region is c.region and region.key == key and region.extents == extents
    assert reads == tuple(dict.fromkeys(t.source.name for t in region.given))
    assert weights == tuple(i for i in region.inputs if i.is_weight)
  assert len(copied) == len(found) - len({id(c.form) for c in found}) > 0


def test_more_layers_make_no_more_regions(monkeypatch):
  made = {5: 0, 7: 0}
  for count in made:

    def counted(*args, count=count):
      made[count] += 1
      return make_region(*args)

    monkeypatch.setattr(repeated, "make_region", counted)
    find_candidates(program(count))
  assert made[5] == made[7] > 0


def test_numbers_that_look_like_places_are_others():
  """TensorScatter implies 0, 1, 2, .., which no kernel reads; beside it a model has 15, 14, 13, ..."""
  net, room = Net(np.float32, opset=24), 16
  shapes = [(2, 4, room, 8), (2, 4, 2, 8)]
  cache, rows, at = (*(net.input(*s) for s in shapes), net.input(2, dtype=np.int64))
  op = net.TensorScatter(cache, rows, at, axis=2)
  cache, rows, at = (*(net.input(*s) for s in shapes), net.input(2, dtype=np.int64))
  place = net.cast(net.constant(np.arange(room)[::-1].copy(), np.int32), np.float32)
  first = net.Reshape(net.cast(at, np.float32), net.constant([2, 1, 1, 1], np.int64))
  ahead = net.Sub(net.Reshape(place, net.constant([1, 1, room, 1], np.int64)), first)
  ends = [net.constant([i], np.int64) for i in range(3)]
  parts = [net.Slice(rows, ends[i], ends[i + 1], ends[2]) for i in range(2)]
  row = net.Where(net.Equal(ahead, 0.0), *parts)
  inside = net.And(net.LessOrEqual(net.constant(0.0), ahead), net.Less(ahead, 2.0))
  spelled = net.Where(inside, row, cache)
  subject = import_model(load_model(net.model(op, spelled)))
  assert not any(n.barrier for n in subject.nodes)
  (own,) = (n.name for n in subject.nodes if n.op_type == "TensorScatter")
  nodes = frozenset(n.name for n in subject.nodes) - {own}
  maker = repeated.RegionMaker(subject)
  a, b = maker.make(frozenset({own}), frozenset({op})).region, maker.make(nodes, frozenset({spelled})).region
  assert a.terms == b.terms and a.extents == b.extents and a.key != b.key


def test_what_is_used_alike_is_read_in_the_order_of_the_nodes():
  """Names that cross their order (x9, x10) do not decide what a copy reads first, nor what is made first."""
  net = Net()
  inputs = [net.input(8, 64) for _ in range(16)]
  ends = [net.Tanh(net.Mul(x, y)) for x, y in itertools.pairwise(inputs)]
  subject = import_model(load_model(net.model(*ends)))
  found = find_candidates(subject).candidates
  assert len(found) == len(ends) and len({c.region.key for c in found}) == 1
  for c in found:
    (end,) = c.outputs
    pair = inputs[(k := ends.index(end)) : k + 2]
    assert c.region.reads == tuple(pair) == make_region(subject, c.region.nodes, tuple(pair), (end,)).reads
