"""The rule for reduced shapes, on every golden and every combination of roles."""

from itertools import product

import numpy as np
import pytest
from fragile_programs import FRAGILE
from golden_texts import PROGRAMS
from goldens import GOLDENS

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Kernel, UGraph, parse_ugraph, part_axis, ugraph_extents
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.reduced import reduced_instantiation, reduced_instantiations, small_extents


def block_sizes(kernel, p, axis, extent):
  tile = p.tile[kernel.grid.index(axis)] if axis in kernel.grid else extent
  return [min(tile, extent - at) for at in range(0, extent, tile)]


def rank_sizes(kernel, p, axis, size):
  ranks = p.cluster if axis == kernel.cluster else 1
  piece = -(-size // ranks)
  return [max(0, min(piece, size - r * piece)) for r in range(ranks)]


def steps(p, size):
  return [min(p.loop_tile, size - at) for at in range(0, size, p.loop_tile)]


def first_pieces(kernel, p, extents, axis):
  return rank_sizes(kernel, p, axis, block_sizes(kernel, p, axis, extents[axis])[0])


def check_uneven(kernel, p, extents):
  for axis in kernel.grid:
    sizes = block_sizes(kernel, p, axis, extents[axis])
    assert len(sizes) >= 2 and 0 < sizes[-1] < sizes[0], axis
  if kernel.cluster:
    pieces = first_pieces(kernel, p, extents, kernel.cluster)
    assert len(pieces) == 3 and 0 < pieces[-1] < pieces[0]
  if kernel.loop:
    walks = [steps(p, n) for n in first_pieces(kernel, p, extents, kernel.loop)]
    assert len(walks[0]) >= 3 and len(walks[0]) % 2 == 1 and walks[0][-1] < walks[0][0]
    assert kernel.cluster != kernel.loop or len(walks[-1]) < len(walks[0])


def check_even(kernel, p, extents):
  for axis in kernel.grid:
    sizes = block_sizes(kernel, p, axis, extents[axis])
    assert len(sizes) >= 3 and set(sizes) == {p.tile[kernel.grid.index(axis)]}
  if kernel.cluster:
    pieces = first_pieces(kernel, p, extents, kernel.cluster)
    assert len(pieces) >= 4 and len(pieces) % 2 == 0
    assert pieces[-1] == 0 and set(pieces) == {0, pieces[0]}
  if kernel.loop:
    for n in first_pieces(kernel, p, extents, kernel.loop):
      assert len(steps(p, n)) in (0, 2) and set(steps(p, n)) <= {p.loop_tile}


def check_whole(kernel, p, extents):
  assert all(t > extents[a] for a, t in zip(kernel.grid, p.tile, strict=True))
  assert p.cluster == 1 and (kernel.loop is None or p.loop_tile > extents[kernel.loop])


def check(graph, found):
  uneven, even, whole = found
  for sizes, rule in zip(found, (check_uneven, check_even, check_whole), strict=True):
    extents = ugraph_extents(graph, sizes.params, sizes.extents)
    assert len(set(sizes.extents.values())) == len(sizes.extents)
    assert min(sizes.extents.values()) >= 3 and max(sizes.extents.values()) <= 64
    for kernel, p in zip(graph.kernels, sizes.params, strict=True):
      rule(kernel, p, extents)
  assert whole.extents == uneven.extents
  assert all(uneven.extents[a] != n for a, n in even.extents.items())


@pytest.mark.parametrize("golden", GOLDENS, ids=[g.name for g in GOLDENS])
def test_every_split_of_a_golden_is_exercised(golden):
  found = reduced_instantiations(golden.ugraph, golden.region.extents)
  check(golden.ugraph, found)
  assert found[0] == reduced_instantiation(golden.ugraph, golden.region.extents)


def kernel(name, grid, cluster, loop):
  return Kernel(name, grid, cluster, loop, (), ())


def graph_of(*kernels, parts=""):
  axes = f"tensor t0 f32[{parts}] temp\n" if parts else ""
  tensors = parse_ugraph(f"ugraph 1\ntensor i0 f32[a,b,c] input\n{axes}").tensors
  return UGraph(tensors, kernels)


GRIDS = ((), ("a",), ("b", "a"))


@pytest.mark.parametrize(
  ("grid", "cluster", "loop"), list(product(GRIDS, (None, "a", "c"), (None, "a", "b", "c")))
)
def test_every_combination_of_roles(grid, cluster, loop):
  first = kernel("k0", grid, cluster, loop)
  check(graph_of(first), reduced_instantiations(graph_of(first), "abc"))
  # Together with a kernel that splits one axis at all levels.
  graph = graph_of(first, kernel("k1", ("a",), "a", "a"))
  check(graph, reduced_instantiations(graph, "abc"))


@pytest.mark.parametrize(
  ("grid", "cluster", "loop"), list(product((False, True), (False, True), (False, True)))
)
def test_parts_that_are_split_again(grid, cluster, loop):
  part = part_axis("b", "k0")
  graph = graph_of(
    kernel("k0", ("b", "a"), None, "b"),
    kernel("k1", (part,) if grid else (), part if cluster else None, part if loop else None),
    parts=part,
  )
  if grid and cluster and loop:
    with pytest.raises(RejectionError, match="no small"):
      reduced_instantiations(graph, "abc")
    return
  uneven, even, whole = reduced_instantiations(graph, "abc")
  check(graph, (uneven, even, whole))
  counts = [ugraph_extents(graph, s.params, s.extents)[part] for s in (uneven, even, whole)]
  assert counts[2] == 1 and len(set(counts)) == 3


def test_counts_that_could_pass_for_each_other_differ_somewhere():
  graph = graph_of(kernel("k0", ("a",), "b", "c"))
  uneven, even, _ = reduced_instantiations(graph, "abc")
  counts = []
  for sizes in (uneven, even):
    (p,) = sizes.params
    blocks = -(-sizes.extents["a"] // p.tile[0])
    counts.append((blocks, p.cluster, -(-sizes.extents["c"] // p.loop_tile)))
  assert all(len({c[i] - c[j] for c in counts}) == 2 for i, j in ((0, 1), (0, 2), (1, 2)))
  assert all(x != y for x, y in zip(*counts, strict=True))


def test_too_many_axes_are_refused():
  with pytest.raises(RejectionError, match="no small extent is left"):
    small_extents([f"a{i}" for i in range(18)])


def shows(region, graph, sizes):
  """Does the graph differ from the region in float64, or fail, at these sizes?"""
  domain, rng = Float64(2), np.random.default_rng(1)
  inputs = {
    i.name: NamedArray(rng.standard_normal((2, *(sizes.extents[a] for a in i.axes))), i.axes)
    for i in region.inputs
  }
  want = interpret_terms(domain, region.terms, inputs, sizes.extents)
  try:
    got = interpret_ugraph(domain, graph, sizes.params, sizes.extents, inputs)
  except ValueError:
    return True
  return any(
    not np.allclose(w.aligned(o.axes), got[o.name].aligned(o.axes), rtol=1e-7, atol=1e-9)
    for o, w in zip(region.outputs, want, strict=True)
  )


ONLY_IF_SPLIT = PROGRAMS["only_if_split"]


def test_only_the_whole_shows_a_program_that_needs_two_iterations():
  """(n - 1) / (n - 1) is 1 but for one iteration."""
  region = next(g.region for g in GOLDENS if g.name == "softmax_rows")
  graph = parse_ugraph(ONLY_IF_SPLIT)
  seen = [shows(region, graph, s) for s in reduced_instantiations(graph, region.extents)]
  assert seen == [False, False, True]


def test_every_program_that_is_right_at_some_sizes_shows_at_one_of_the_three():
  alone = [0, 0, 0]
  for program in FRAGILE:
    region, graph = program.golden.region, program.graph
    seen = [shows(region, graph, s) for s in reduced_instantiations(graph, region.extents)]
    assert any(seen), (program.name, program.right_when)
    if sum(seen) == 1:
      alone[seen.index(True)] += 1
  print(f"{len(FRAGILE)} programs; shown by one alone (uneven, even, whole): {alone}")
  assert alone[0] >= 1 and alone[1] >= 1
