"""Sizes that only a run knows: every kernel that the search finds splits them over its grid."""

from dataclasses import replace

import pytest
from region_data import sources_of
from small_models import largest, region_of, search_region

from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import is_part_axis
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.egraph import EGraph
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.roles import enumerate_roles
from mirage_onnx.superopt.search_structure import SearchScope
from mirage_onnx.superopt.solved import AT_RUN_TIME, kernel_times
from mirage_onnx.superopt.space import ALL, EMITTED, space_of
from mirage_onnx.target import H200


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


def attention(net):
  q, k, v = (net.input("b", 4, n, 64) for n in ("m", "l", "l"))
  return net.MatMul(net.Softmax(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2]))), v)


def centred(net):
  x = net.input("b", "l", 64)
  return net.Sub(x, net.ReduceMean(x, [1]))


def tiled_region(model, **sizes):
  program = import_model(load_model(model))
  return largest(find_candidates(program, TIMED, sizes=sizes)).region


@pytest.mark.parametrize(("program", "kernels"), [(attention, 1), (centred, 2)])
def test_the_loop_walks_what_is_reduced(net, program, kernels):
  region = tiled_region(net.model(program(net)), b=4, m=64, l=128)
  scope = SearchScope.of(H200, SearchBound(), region)
  assert scope.space is ALL
  found = search_region(region, bound=scope.bound, space=scope.space).candidates
  assert len(found[0].candidate.ugraph.kernels) == kernels
  walked = set()
  for verified in found:
    graph = verified.candidate.ugraph
    parts = {a.partition("/")[0] for t in graph.tensors for a in t.axes if is_part_axis(a)}
    assert not parts & set(region.runtime)
    for kernel in graph.kernels:
      own = {a for n in kernel.touched for a in graph.tensor(n).axes} & set(region.runtime)
      assert own - {kernel.loop} <= set(kernel.grid) and kernel.loop not in kernel.grid
      walked |= own & {kernel.loop}
    sources = sources_of(region, verified.candidate, "k")
    assert sources and all(s.sizes for s in sources)
  assert len(walked) == 1


def test_only_tiled_kernels_reduce_it(net):
  region = tiled_region(net.model(centred(net)), b=4, l=128)
  assert (space_of(region), space_of(replace(region, runtime={}))) == (ALL, EMITTED)


def test_times_of_tiled_kernels_that_a_run_counts(net):
  """Whole tiles, however few elements there are; and what a text for every size takes more."""
  region = tiled_region(net.model(attention(net)), b=4, m=64, l=128)
  scope = SearchScope.of(H200, SearchBound(), region)
  best = search_region(region, bound=scope.bound, space=scope.space).candidates[0].candidate
  (kernel,), (params,) = best.ugraph.kernels, best.params
  tiles = dict(zip(kernel.grid, params.tile, strict=True)) | {kernel.loop: params.loop_tile}
  whole = {**region.extents, **{a: tiles[a] for a in region.runtime}}
  part = {**region.extents, **{a: max(1, tiles[a] // 4) for a in region.runtime}}

  def time_us(extents, runtime):
    ((_, us),) = kernel_times(best, extents, H200, lowered_us, runtime)
    return us

  assert time_us(part, region.runtime) == time_us(whole, region.runtime)
  assert time_us(whole, region.runtime) == pytest.approx(AT_RUN_TIME * time_us(whole, ()))
  assert time_us(part, ()) < time_us(whole, ())
