"""Sizes that only a run knows: every kernel that the search finds splits them over its grid."""

import pytest
from region_data import sources_of
from small_models import region_of, search_region

from mirage_onnx.superopt.egraph import EGraph
from mirage_onnx.superopt.roles import enumerate_roles
from mirage_onnx.superopt.space import ALL, EMITTED


def norm_linear(net):
  return net.MatMul(net.rms(net.input("m", 256), net.weight(256)), net.weight(256, 128))


def low_rank(net):
  x = net.input("m", 256)
  low = net.MatMul(net.MatMul(x, net.weight(256, 16)), net.weight(16, 128))
  return net.Add(net.MatMul(x, net.weight(256, 128)), low)


def heads(net):
  x = net.Transpose(net.input("b", "m", 4, 64), perm=[0, 2, 1, 3])
  return net.Relu(net.Add(x, net.weight(64)))


@pytest.mark.parametrize("assumed", [2, 8, 300])
@pytest.mark.parametrize("program", [norm_linear, low_rank, heads])
def test_every_kernel_splits_them(net, program, assumed):
  model = net.model(program(net))
  region = region_of(model, m=assumed)
  assert region.runtime
  found = search_region(region).candidates
  assert found
  for verified in found:
    graph = verified.candidate.ugraph
    for kernel in graph.kernels:
      names = [o.tensor for o in kernel.loads] + [s.tensor for s in kernel.saves]
      own = {a for n in names for a in graph.tensor(n).axes} & set(region.runtime)
      assert own <= set(kernel.grid)
      assert all(own <= set(graph.tensor(s.tensor).axes) for s in kernel.saves)
    assert sources_of(region, verified.candidate, "k")


@pytest.mark.parametrize("space", [EMITTED, ALL])
def test_roles(net, space):
  region = region_of(net.model(norm_linear(net)), m=4)
  g, (term,) = EGraph(), region.terms
  target = g.insert_term(term)
  (axis,) = region.runtime
  every = set(enumerate_roles(g, (target,), region.extents, space))
  split = set(enumerate_roles(g, (target,), region.extents, space, region.runtime))
  assert split
  assert all(axis in r.grid for r in split)
  assert {r for r in every if axis in r.grid} <= split
  depth = next(a for a in region.extents if a not in term.axes)
  weight = next(g.insert_term(t) for t in (term, *term.args) if axis in t.axes)
  assert not list(enumerate_roles(g, (weight,), region.extents, space, (depth, axis))) or (
    depth not in g.axes(weight)
  )
