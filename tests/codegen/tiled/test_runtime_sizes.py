"""Axes that only a launch counts in tiled kernels: in the grid, and walked by the loop."""

import re
import zlib

import numpy as np
import pytest
from tiled_kernels import ATTENTION, PARTS, TWO_PRODUCTS, product

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.target import H200

#: Batch a0, heads a1, queries a2, keys a3; i3 is a mask of keys, one of sequence and query and key i4.
MASKED_HEADS = """ugraph 1
tensor i0 f16[a0,a3,a1,a4] input
tensor i1 f16[a0,a2,a1,a4] input
tensor i2 f16[a0,a3,a1,a5] input
tensor i3 bool[a0,a3] input
tensor i4 f16[a0,a2,a3] input
tensor o0 f16[a0,a2,a1,a5] output
kernel k0 grid=a2,a1,a0 cluster=a3 loop=a3
  %0 = load i0 imap=-,a1,a0 cmap=a3 fmap=a3 : f16[a0,a3,a1,a4] loop shared
  %1 = load i1 imap=a2,a1,a0 cmap=- fmap=- : f16[a0,a2,a1,a4] loop A_frag
  %2 = matmul[a4] %1 %0 : f32[a0,a1,a2,a3] loop C_frag
  %3 = load i3 imap=-,-,a0 cmap=a3 fmap=a3 : bool[a0,a3] loop column
  %4 = const[-10000] : f32[] loop uniform
  %5 = load i4 imap=a2,-,a0 cmap=a3 fmap=a3 : f16[a0,a2,a3] loop C_frag
  %6 = cast %5 : f32[a0,a2,a3] loop C_frag
  %7 = add %2 %6 : f32[a0,a1,a2,a3] loop C_frag
  %8 = select %3 %7 %4 : f32[a0,a1,a2,a3] loop C_frag
  %9 = rmax[a3] %8 : f32[a0,a1,a2] loop row
  %10 = run_max %9 : f32[a0,a1,a2] loop row
  %11 = sub %8 %10 : f32[a0,a1,a2,a3] loop C_frag
  %12 = exp %11 : f32[a0,a1,a2,a3] loop C_frag
  %13 = sum[a3] %12 : f32[a0,a1,a2] loop row
  %14 = prev %10 : f32[a0,a1,a2] loop row
  %15 = sub %14 %10 : f32[a0,a1,a2] loop row
  %16 = exp %15 : f32[a0,a1,a2] loop row
  %17 = acc_scaled %13 %16 : f32[a0,a1,a2] post row
  %18 = acc_max %9 : f32[a0,a1,a2] post row
  %19 = red_max %18 : f32[a0,a1,a2] post row
  %20 = sub %18 %19 : f32[a0,a1,a2] post row
  %21 = exp %20 : f32[a0,a1,a2] post row
  %22 = mul %17 %21 : f32[a0,a1,a2] post row
  %23 = red_sum %22 : f32[a0,a1,a2] post row
  %24 = load i2 imap=-,a1,a0 cmap=a3 fmap=a3 : f16[a0,a3,a1,a5] loop shared
  %25 = cast %12 : f16[a0,a1,a2,a3] loop A_frag
  %26 = matmul[a3] %25 %24 : f32[a0,a1,a2,a5] loop C_frag
  %27 = acc_scaled %26 %16 : f32[a0,a1,a2,a5] post C_frag
  %28 = mul %27 %21 : f32[a0,a1,a2,a5] post C_frag
  %29 = red_sum %28 : f32[a0,a1,a2,a5] post C_frag
  %30 = div %29 %23 : f32[a0,a1,a2,a5] post C_frag
  %31 = cast %30 : f16[a0,a1,a2,a5] post C_frag
  save o0 = %31 omap=a2,a1,a0
"""
#: The mean of the rows a1 of i0, no contraction.
MEAN = """ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor o0 f32[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=a2,a0 cmap=- fmap=a1 : f16[a0,a1,a2] loop vector
  %1 = cast %0 : f32[a0,a1,a2] loop vector
  %2 = sum[a1] %1 : f32[a0,a2] loop row
  %3 = acc_sum %2 : f32[a0,a2] post row
  %4 = extent[a1] : f32[] post uniform
  %5 = div %3 %4 : f32[a0,a2] post row
  save o0 = %5 omap=a2,a0
"""
#: o0 = rsqrt(mean(i0^2)) * i0 i1^T with the query rows a0 counted in a run, no loop.
NORM = """ugraph 1
tensor i0 f16[a3,a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a3,a0,a2] output
kernel k0 grid=a2,a0,a3 cluster=- loop=-
  %0 = load i0 imap=-,a0,a3 cmap=- fmap=- : f16[a3,a0,a1] post shared
  %1 = load i1 imap=a2,-,- cmap=- fmap=- : f16[a2,a1] post B_frag
  %2 = cast %0 : f32[a3,a0,a1] post A_frag
  %3 = square %2 : f32[a3,a0,a1] post A_frag
  %4 = sum[a1] %3 : f32[a3,a0] post row
  %5 = extent[a1] : f32[] post uniform
  %6 = div %4 %5 : f32[a3,a0] post row
  %7 = rsqrt %6 : f32[a3,a0] post row
  %8 = mul %2 %7 : f32[a3,a0,a1] post A_frag
  %9 = cast %8 : f16[a3,a0,a1] post A_frag
  %10 = matmul[a1] %9 %1 : f32[a3,a0,a2] post C_frag
  %11 = cast %10 : f16[a3,a0,a2] post C_frag
  save o0 = %11 omap=a2,a0,a3
"""


def p(*tile, c=1, k=0, w=4, s=1):
  return KernelParams(tile, cluster=c, loop_tile=k, warps=w, stages=s)


def w(rows, keys, stages, teams=0):
  """By wgmma; steps of 64 keys that a run counts ptxas of CUDA 13.0 compiles wrongly (MISCOMPILED)."""
  return KernelParams((rows, 1), 1, keys, rows // 16, stages, "wgmma", teams=teams)


HEADS = {"a1": 2, "a4": 64, "a5": 64}
#: text, the axes that a launch counts (the loop's last), extents of the others, numbers
CASES = [
  (ATTENTION, "a3 a1", {"a0": 2, "a2": 64, "a4": 32}, p(16, 1, k=64, s=2)),
  (ATTENTION, "a0 a1", {"a3": 5, "a2": 16, "a4": 24}, p(8, 1, k=32, w=2)),
  (ATTENTION, "a0 a3", {"a1": 40, "a2": 16, "a4": 24}, p(8, 1, k=16, w=2, s=3)),
  (ATTENTION, "a0 a3 a1", {"a2": 32, "a4": 32}, p(16, 1, k=32, w=2, s=3, c=4)),
  (ATTENTION, "a3 a1", {"a0": 2, "a2": 64, "a4": 64}, w(64, 128, 3)),
  (ATTENTION, "a3 a1", {"a0": 2, "a2": 64, "a4": 64}, w(128, 128, 3, teams=1)),
  (ATTENTION, "a0 a3 a1", {"a2": 64, "a4": 64}, w(192, 128, 2, teams=1)),
  (MASKED_HEADS, "a0 a2 a3", HEADS, p(32, 1, 1, k=64, s=3)),
  (MASKED_HEADS, "a0 a2 a3", HEADS, p(64, 1, 1, k=32, w=8, s=2)),
  (MASKED_HEADS, "a2 a3", {**HEADS, "a0": 2}, p(16, 1, 1, k=64, s=4, c=2)),
  (product(), "a0 a1", {"a2": 40}, p(16, 8, k=64, s=3)),
  (product("a1,a0", "a1,a2"), "a0 a1", {"a2": 40}, p(16, 8, k=32, w=2, s=2)),
  (product(dtype="f32"), "a0 a1", {"a2": 24}, p(8, 8, k=32, w=2, s=2)),
  (TWO_PRODUCTS, "a0", {"a1": 100, "a2": 24, "a3": 24}, p(16, k=32, w=2, s=2)),
  (MEAN, "a0 a1", {"a2": 96}, p(64, 1, k=32)),
  (MEAN, "a1", {"a0": 3, "a2": 33}, p(32, 1, k=16, w=2)),
  (NORM, "a3 a0", {"a1": 72, "a2": 40}, p(16, 16, 1)),
]
IDS = [f"{i}-{axes}-{q.to_text()}".replace(" ", "-") for i, (_, axes, _, q) in enumerate(CASES)]
#: Of the last axis: one, less than a tile, a tile, no multiple of one, odd or not, as assumed, beyond that.
SIZES = (1, 7, 64, 77, 90, 128, 333)


def graph_of(case):
  return parse_ugraph(re.sub(r"\bk0\b", f"c{case}k", CASES[case][0]))


def emitted(case, assumed=128):
  _, axes, extents, params = CASES[case]
  runtime, graph = frozenset(axes.split()), graph_of(case)
  every = {**extents, **dict.fromkeys(runtime, assumed)}
  return emit_kernel(graph, graph.kernels[0], params, every, H200, runtime)


@pytest.fixture(scope="module")
def module():
  return compile_kernels([emitted(i) for i in range(len(CASES))])


def run(graphs, module, case, sizes):
  graph, every = graph_of(case), {**CASES[case][2], **sizes}
  tensors = graphs.inputs(graph, every, np.random.default_rng(zlib.crc32(IDS[case].encode())))
  expected = graphs.expected(graph, every, tensors)
  module.run(tensors, [case], order=("ascending", "descending")[case % 2], sizes=sizes)
  graphs.check(graph, tensors, expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_right_at_every_size(graphs, module, case, size):
  """Sizes of the other axes: one row more than a tile, two sequences."""
  *others, last = CASES[case][1].split()
  run(graphs, module, case, {**dict(zip(reversed(others), (33, 2), strict=False)), last: size})


@pytest.mark.parametrize("case", range(len(CASES)), ids=IDS)
def test_the_text_does_not_know_what_the_search_assumed(case):
  source = emitted(case)
  assert source == emitted(case, 12347)
  assert source.sizes == tuple(sorted(CASES[case][1].split()))
  for axis in source.sizes:
    assert f"const int n_{axis}" in source.text
  graph, grid = graph_of(case), {axis for axis, _ in source.tiles}
  assert grid == set(source.sizes) & set(graph.kernels[0].grid)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_parts_of_another_axis(graphs, size):
  """Static axes have y and z beside one that a run counts: so has the number of the part."""
  graph, params = parse_ugraph(PARTS), (p(8, 4), p(2))
  extents = ugraph_extents(graph, params, {"a0": size, "a1": 20, "a2": 9})
  sources = [
    emit_kernel(graph, k, q, extents, H200, frozenset({"a0"}))
    for k, q in zip(graph.kernels, params, strict=True)
  ]
  tensors = graphs.inputs(graph, extents, np.random.default_rng(size))
  expected = graphs.expected(graph, {"a0": size, "a1": 20, "a2": 9, "a1/k0": 1}, tensors)
  compile_kernels(sources).run(tensors, [0, 1], sizes={"a0": size})
  graphs.check(graph, tensors, expected)


def test_no_parts_of_what_a_run_counts(graphs):
  """How many there are would be a size of its own."""
  graph, params = parse_ugraph(PARTS), (p(8, 4), p(2))
  extents = ugraph_extents(graph, params, {"a0": 5, "a1": 20, "a2": 9})
  with pytest.raises(RejectionError, match="a result does not vary over a1") as caught:
    emit_kernel(graph, graph.kernels[0], params[0], extents, H200, frozenset({"a1"}))
  assert caught.value.rejection.code == "DYNAMIC_DIM"


def test_no_tile_of_all_that_a_run_counts():
  graph = parse_ugraph(NORM)
  with pytest.raises(RejectionError, match="a1, whose size is known only at run time"):
    emit_kernel(graph, graph.kernels[0], p(16, 16, 1), {"a0": 9, "a1": 72, "a2": 40, "a3": 2}, H200,
                frozenset({"a1"}))  # fmt: skip


def test_it_overlaps_as_others_do():
  sources = [emitted(i) for i in range(len(CASES))]
  assert all(s.pdl for s in sources)
  for s in sources:
    assert s.text.index("ptx::grid_trigger();") < s.text.index("ptx::grid_wait();")
