"""Numbers of kernels whose copies a warp of its own makes: all are taken; who has none."""

from dataclasses import replace
from math import prod

import pytest

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import parse_ugraph, ugraph_extents
from mirage_onnx.superopt import fed_numbers, warpgroup_numbers
from mirage_onnx.superopt.fed_numbers import fed_points, product_points
from mirage_onnx.target import H100, TARGETS
from tests.codegen.tiled.test_feed_text import BATCHED
from tests.superopt.test_warpgroup_numbers import LINEAR, SIZES

GATED = """ugraph 1
tensor i1 f16[a2,a0] input
tensor i0 f16[a1,a0] weight
tensor i2 f16[a1,a0] weight
tensor o0 f16[a2,a1] output
kernel k0 grid=a1,a2 cluster=a0 loop=a0
  %0 = load i1 imap=-,a2 cmap=a0 fmap=a0 : f16[a2,a0] loop B_frag
  %1 = load i2 imap=a1,- cmap=a0 fmap=a0 : f16[a1,a0] loop A_frag
  %2 = matmul[a0] %1 %0 : f32[a1,a2] loop C_frag
  %3 = acc_sum %2 : f32[a1,a2] post C_frag
  %4 = red_sum %3 : f32[a1,a2] post shared
  %5 = load i0 imap=a1,- cmap=a0 fmap=a0 : f16[a1,a0] loop A_frag
  %6 = matmul[a0] %5 %0 : f32[a1,a2] loop C_frag
  %7 = acc_sum %6 : f32[a1,a2] post C_frag
  %8 = red_sum %7 : f32[a1,a2] post shared
  %9 = sigmoid %4 : f32[a1,a2] post element
  %10 = mul %4 %9 : f32[a1,a2] post element
  %11 = mul %10 %8 : f32[a1,a2] post element
  %12 = cast %11 : f16[a1,a2] post element
  save o0 = %12 omap=a1,a2
"""


def points(text=LINEAR, target=H100, keep=1000, **sizes):
  graph = parse_ugraph(text)
  tensors = {t.name: t for t in graph.tensors}
  return graph, fed_points(graph.kernels[0], tensors, {**SIZES, **sizes}, target, keep, (1, 2, 4))


@pytest.mark.parametrize("sizes", [{}, {"a2": 77}, {"a2": 197, "a0": 1000}, {"a1": 768, "a2": 4096}])
def test_the_code_generator_takes_them(sizes):
  graph, found = points(**sizes)
  assert len(found) > 10 and [us for us, _ in found] == sorted(us for us, _ in found)
  refused = []
  for _, params in found[::5]:
    extents = ugraph_extents(graph, (params,), {**SIZES, **sizes})
    try:
      source = emit_kernel(graph, graph.kernels[0], params, extents, H100)
    except RejectionError as error:
      refused.append((params.to_text(), error.rejection))
      continue
    assert source.cluster == params.sharing and len(source.maps) == 2
    assert source.grid[0] % params.sharing == 0 and source.smem_bytes <= H100.smem_bytes
    assert type(params).from_text(params.to_text()) == params
  assert refused == []


def test_who_has_none():
  assert points(target=next(t for t in TARGETS.values() if not t.has_clusters))[1] == ()
  assert points(a2=32)[1] == ()
  assert points(LINEAR.replace("f16[a1,a0] weight", "f16[a0,a1] weight"))[1] == ()


def test_kept_are_the_best():
  _, every = points()
  assert points(keep=3)[1] == every[:3]
  shared = {p.sharing for _, p in every}
  assert shared == {1, 2, 4} and {p.teams for _, p in every} == {1, 2}
  assert {p.sharing for _, p in points(a2=192, a1=192)[1]} < {1, 2, 3}


@pytest.mark.parametrize(("rows", "ranked"), [(4096, 1), (128, 2)])
def test_where_parts_fill_the_chip_one_is_fed(monkeypatch, rows, ranked):
  """Nobody ranks the others for it: that was most of the CPU time of a prediction's products."""
  graph = parse_ugraph(LINEAR)
  tensors, asked = {t.name: t for t in graph.tensors}, []
  real = warpgroup_numbers.lowered_fastest
  for module in (fed_numbers, warpgroup_numbers):
    monkeypatch.setattr(module, "lowered_fastest", lambda *a: asked.append(a) or real(*a))
  sizes = {**SIZES, "a1": 768, "a2": rows}
  ((_, params),) = product_points(graph.kernels[0], tensors, sizes, H100, 1)
  assert len(asked) == ranked
  assert ranked > 1 or params.teams
  several = product_points(graph.kernels[0], tensors, sizes, H100, 8)
  assert {bool(p.teams) for _, p in several} == {True, False} and len(asked) > ranked + 1


def test_fewer_multiprocessors_take_longer():
  (fast, own), (slow, _) = (
    points(keep=1)[1][0],
    points(target=replace(H100, multiprocessors=66), keep=1)[1][0],
  )
  assert slow > fast and own.teams


def test_two_products_leave_registers_for_what_is_computed_of_both():
  """Of the numbers that were predicted to be fastest without (224 sums a lane) all spilled."""
  _, found = points(GATED, a0=4096, a1=14336, a2=512)
  sums = {(2 * prod(p.tile) // (32 * p.warps), p.warps * p.teams) for _, p in found}
  assert (160, 8) in sums and max(n for n, warps in sums if warps == 8) == 160
  assert all(warps <= 8 for _, warps in sums)


def test_what_is_timed():
  """In turn with those of which all warps copy; the last of four and more shares an operand."""
  graph = parse_ugraph(LINEAR)
  tensors = {t.name: t for t in graph.tensors}

  def own(keep, counted=False):
    found = product_points(graph.kernels[0], tensors, SIZES, H100, keep, counted=counted)
    return [p for _, p in found]

  assert [p.sharing for p in own(6)] == [1] * 5 + [2] and len({*own(6)}) == 6
  assert {bool(p.teams) for p in own(5)} == {True, False}
  assert all(p.sharing == 1 for p in own(3))
  assert not any(p.teams for p in own(6, counted=True))


def asked():
  """What searches and runs that time ask for."""
  graph = parse_ugraph(LINEAR)
  tensors, kernel = {t.name: t for t in graph.tensors}, graph.kernels[0]
  for sizes in ({"a2": 4096}, {"a2": 4096, "a0": 768}, {"a2": 128, "a1": 768, "a0": 3072}, {"a2": 512}):
    for keep in (1, 4, 8, 12, 64):
      for _, p in product_points(kernel, tensors, {**SIZES, **sizes}, H100, keep):
        yield {**SIZES, **sizes}, p


def test_many_results_of_several_parts_are_stored_late():
  """In front of the same without; the code generator takes each, the compiler spills none."""
  late = {(tuple(sizes.items()), p) for sizes, p in asked() if p.late}
  assert late
  graph = parse_ugraph(LINEAR)
  for sizes, p in late:
    sizes = dict(sizes)
    assert p.late == p.teams == 1 and p.warps == 8 and prod(p.tile) >= 128 * 128
    assert prod(-(-sizes[a] // n) for a, n in zip(graph.kernels[0].grid, p.tile, strict=True)) > 132
    source = emit_kernel(graph, graph.kernels[0], p, ugraph_extents(graph, (p,), sizes), H100)
    assert compile_cubin(source.text, H100, name=source.name).registers
  *_, tensors = points(a2=4096)
  found = [p for _, p in tensors]
  assert all(found.index(p) < found.index(replace(p, late=0)) for p in found if p.late)
  assert {p.sharing for p in found if p.late} == {1, 2}
  # A part a block, and results of 32 bits: there is nothing later, or no room.
  assert not any(p.late for _, p in points(a2=128)[1])
  wide = LINEAR.replace("tensor o0 f16", "tensor o0 f32").replace(": f16[a1,a2] post", ": f32[a1,a2] post")
  assert wide != LINEAR and not any(p.late for _, p in points(wide, a2=4096)[1])


def test_functions_beside_products():
  """Of parts of two warpgroups, in front of the same without."""
  text = LINEAR.replace("= relu", "= erf")
  graph, every = points(text, a2=4096)
  found = [p for _, p in every]
  beside = [p for p in found if p.late == 2]
  assert {p.tile for p in beside} >= {(256, 128), (128, 128)}
  for p in beside:
    assert (p.warps, p.teams, p.sharing, p.cluster) == (8, 1, 1, 1)
    assert found.index(p) < found.index(replace(p, late=0))
    extents = ugraph_extents(graph, (p,), {**SIZES, "a2": 4096})
    source = emit_kernel(graph, graph.kernels[0], p, extents, H100)
    assert compile_cubin(source.text, H100, name=source.name).registers
  for other in ("relu", "exp", "sigmoid"):  # an instruction, and two of which a rounded argument is another
    assert not any(p.late > 1 for _, p in points(LINEAR.replace("= relu", f"= {other}"), a2=4096)[1])


def test_batches_of_products():
  """One product a block; the axis that counts them is no side of it, and has to be the grid's."""
  graph = parse_ugraph(BATCHED)
  tensors, kernel = {t.name: t for t in graph.tensors}, graph.kernels[0]
  sizes = {"a0": 128, "a1": 576, "a2": 4096, "a3": 8}
  found = product_points(kernel, tensors, sizes, H100, 12)
  assert {bool(p.teams) for _, p in found} == {True, False} and {p.tile[2] for _, p in found} == {1}
  for _, params in found:
    extents = ugraph_extents(graph, (params,), sizes)
    assert "wgmma" in emit_kernel(graph, kernel, params, extents, H100).text
  inside = BATCHED.replace("grid=a2,a0,a3", "grid=a2,a0").replace(",a3 cmap", " cmap")
  graph = parse_ugraph(inside.replace("omap=a2,a0,a3", "omap=a2,a0"))
  assert product_points(graph.kernels[0], tensors, sizes, H100, 12) == ()
