"""Numbers with wgmma of kernels with several products."""

from dataclasses import replace
from math import prod

import pytest
from banded import banded_text
from golden_texts import PROGRAMS
from tiled_kernels import Case, near

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.superopt.warpgroup_chains import chained_points, rows_of
from mirage_onnx.target import H100

SIZES = {"a0": 96, "a1": 512, "a2": 64, "a3": 512, "a4": 64}


def points(text=PROGRAMS["attention"], target=H100, **sizes):
  graph = parse_ugraph(text)
  tensors = {t.name: t for t in graph.tensors}
  return graph, chained_points(graph.kernels[0], tensors, {**SIZES, **sizes}, target, 20)


def test_the_code_generator_takes_them():
  graph, found = points()
  kinds = [[us for us, p in found if p.teams == teams] for teams in (0, 1)]
  assert [len(times) for times in kinds] == [12, 6] and all(times == sorted(times) for times in kinds)
  assert {(p.teams, p.warps) for _, p in found} == {(0, 4), (0, 8), (0, 12), (1, 8), (1, 12)}
  for us, params in found:
    source = emit_kernel(graph, graph.kernels[0], params, ugraph_extents(graph, (params,), SIZES), H100)
    late = "unsigned late[" in source.text  # then a product stands in the loop and behind it
    assert late == (params.stages > 2)
    assert us > 5 and source.text.count("wgmma<true>(F16{}") == params.loop_tile // 16 * (1 + late)


def test_both_kinds_are_among_the_first():
  """Of what is timed and of what is only predicted."""
  _, found = points()
  assert {p.teams for _, p in found[:2]} == {0, 1}


#: Few rows and many columns of the loop.
FEW = {"a0": 2, "a1": 4096, "a2": 64, "a3": 256, "a4": 64}


def test_blocks_share_a_loop_where_rows_make_too_few():
  """Of a kernel whose results the next one adds up: about as many blocks as multiprocessors."""
  _, found = points(PROGRAMS["attention_shared"], **FEW)
  grid = ("a1", "a3", "a0")
  blocks = [p.cluster * prod(-(-FEW[a] // t) for a, t in zip(grid, p.tile, strict=True)) for _, p in found]
  assert found and all(H100.multiprocessors / 2.5 < n <= 2 * H100.multiprocessors for n in blocks)
  assert all(p.tile[0] % (p.loop_tile * p.cluster) == 0 for _, p in found)
  assert {p.teams for _, p in found} == {0, 1}
  # With rows enough nobody shares, and there is no need of the other kernel.
  assert points(PROGRAMS["attention_shared"], **{**FEW, "a3": 32768})[1] == ()


def test_shared_loops_are_right():
  sizes = {**FEW, "a0": 1, "a1": 1024, "a3": 200}
  _, found = points(PROGRAMS["attention_shared"], **FEW)
  first = {p.teams: p for _, p in reversed(found)}
  second = KernelParams((1, 64, 1), 1, 0, 2, 1)
  near([Case(PROGRAMS["attention_shared"], (p, second), sizes) for p in first.values()])


def test_a_cluster_shares_a_loop_where_rows_make_too_few():
  """Of one kernel, which adds up what its ranks have."""
  _, found = points(**{**SIZES, "a0": 2, "a1": 4096, "a3": 256})
  assert next(p for _, p in found if not p.teams).cluster > 1
  _, found = points(**{**SIZES, "a0": 200, "a1": 4096, "a3": 256})
  assert {p.cluster for _, p in found} == {1}


def test_rows_are_in_every_product():
  graph, _ = points()
  assert rows_of(graph.kernels[0], SIZES) == "a3"
  assert rows_of(graph.kernels[0], {**SIZES, "a3": 32}) is None


@pytest.mark.parametrize(
  "change",
  [{"a3": 63}, {"text": PROGRAMS["attention"].replace("f16", "f32")}, {"text": PROGRAMS["norm_linear"]}],
)
def test_kernels_without_any(change):
  assert points(**change)[1] == ()


def test_a_gpu_without_it():
  assert points(target=replace(H100, instructions=()))[1] == ()


GATED = """ugraph 1
tensor i0 f16[a0] input
tensor i1 f16[a1,a0] weight
tensor i2 f16[a1,a0] weight
tensor o0 f16[a1] output
kernel k0 grid=a1 cluster=a0 loop=a0
  %0 = load i0 imap=- cmap=a0 fmap=a0 : f16[a0] loop B_frag
  %1 = load i1 imap=a1 cmap=a0 fmap=a0 : f16[a1,a0] loop A_frag
  %2 = matmul[a0] %1 %0 : f32[a1] loop C_frag
  %3 = acc_sum %2 : f32[a1] post column
  %4 = red_sum %3 : f32[a1] post column
  %5 = load i2 imap=a1 cmap=a0 fmap=a0 : f16[a1,a0] loop A_frag
  %6 = matmul[a0] %5 %0 : f32[a1] loop C_frag
  %7 = acc_sum %6 : f32[a1] post column
  %8 = red_sum %7 : f32[a1] post column
  %9 = mul %4 %8 : f32[a1] post column
  %10 = cast %9 : f16[a1] post column
  save o0 = %10 omap=a1
"""


def test_weights_beside_one_vector():
  """Two products with rows of weights, but no columns: their time is memory's, and no wgmma is for them."""
  assert rows_of(parse_ugraph(GATED).kernels[0], {"a0": 4096, "a1": 14336}) == "a1"
  assert points(GATED, a0=4096, a1=14336)[1] == ()


def test_what_a_constant_hides_takes_no_time():
  causal, sizes = banded_text("..0 else 0"), {"a1": 2048, "a3": 2048}
  window = causal.replace("..0 else", "-255..0 else")
  plain = causal.replace(" seen a1:a3 ..0 else 0", "")
  whole, half, tenth = ({p: us for us, p in points(x, **sizes)[1]} for x in (plain, causal, window))
  assert whole.keys() == half.keys() == tenth.keys() != set()
  for p, us in whole.items():
    assert 0.45 * us < half[p] < 0.75 * us and tenth[p] < 0.4 * us


#: As a search of attention writes it: the grid has the columns of the values, ranks share out the keys.
COLUMNS = """ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor i1 f16[a0,a3,a4] input
tensor i2 f16[a0,a1,a4] input
tensor o0 f16[a0,a3,a2] output
kernel k0 grid=a2,a3,a0 cluster=a1 loop=a1
  %0 = load i1 imap=-,a3,a0 cmap=- fmap=- : f16[a0,a3,a4] loop A_frag
  %1 = load i2 imap=-,-,a0 cmap=a1 fmap=a1 : f16[a0,a1,a4] loop shared
  %2 = matmul[a4] %0 %1 : f32[a0,a1,a3] loop C_frag
  %3 = const[-1] : f32[] loop uniform
  %4 = rmax[a1] %2 : f32[a0,a3] loop row
  %5 = run_max %4 : f32[a0,a3] loop row
  %6 = mul %3 %5 : f32[a0,a3] loop row
  %7 = add %6 %2 : f32[a0,a1,a3] loop C_frag
  %8 = exp %7 : f32[a0,a1,a3] loop C_frag
  %9 = sum[a1] %8 : f32[a0,a3] loop row
  %10 = prev %5 : f32[a0,a3] loop row
  %11 = sub %10 %5 : f32[a0,a3] loop row
  %12 = exp %11 : f32[a0,a3] loop row
  %13 = acc_scaled %9 %12 : f32[a0,a3] post row
  %14 = acc_max %4 : f32[a0,a3] post row
  %15 = red_max %14 : f32[a0,a3] post row
  %16 = sub %14 %15 : f32[a0,a3] post row
  %17 = exp %16 : f32[a0,a3] post row
  %18 = mul %13 %17 : f32[a0,a3] post row
  %19 = red_sum %18 : f32[a0,a3] post row
  %20 = recip %19 : f32[a0,a3] post row
  %21 = load i0 imap=a2,-,a0 cmap=a1 fmap=a1 : f16[a0,a1,a2] loop shared
  %22 = cast %8 : f16[a0,a1,a3] loop A_frag
  %23 = matmul[a1] %22 %21 : f32[a0,a2,a3] loop C_frag
  %24 = acc_scaled %23 %12 : f32[a0,a2,a3] post C_frag
  %25 = mul %24 %17 : f32[a0,a2,a3] post C_frag
  %26 = red_sum %25 : f32[a0,a2,a3] post C_frag
  %27 = mul %20 %26 : f32[a0,a2,a3] post C_frag
  %28 = cast %27 : f16[a0,a2,a3] post C_frag
  save o0 = %28 omap=a2,a3,a0
"""


def test_columns_of_the_grid_are_not_one_a_block():
  """They were: 1100 us predicted for 64 queries of 32 heads, so nobody timed it; mma 76, these 37 to 47."""
  sizes = {"a0": 32, "a1": 4096, "a2": 128, "a3": 64, "a4": 128}
  graph, found = points(COLUMNS, **sizes)
  assert {p.tile[0] for _, p in found} == {64, 128} and {p.tile[2] for _, p in found} == {1}
  us, best = found[0]
  assert us < 40 and best.cluster > 1
  source = emit_kernel(graph, graph.kernels[0], best, ugraph_extents(graph, (best,), sizes), H100)
  compile_cubin(source.text, H100, name=source.name)
  assert points(COLUMNS, **{**sizes, "a2": 96})[1] == ()


@pytest.mark.parametrize(
  ("tile", "ranks", "step", "sizes"),
  [
    ((128, 64, 1), 1, 64, {"a0": 2, "a1": 200, "a2": 128, "a3": 77, "a4": 64}),
    ((64, 64, 1), 2, 64, {"a0": 1, "a1": 330, "a2": 128, "a3": 64, "a4": 64}),
    ((64, 128, 1), 1, 128, {"a0": 1, "a1": 264, "a2": 192, "a3": 130, "a4": 64}),
  ],
)
def test_columns_of_the_grid_are_right(tile, ranks, step, sizes):
  params = KernelParams(tile, ranks, step, tile[1] // 16, 2, "wgmma")
  near([Case(COLUMNS, (params,), sizes)], bound=2e-2)
