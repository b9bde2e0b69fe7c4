"""The kernel graphs of the original's README, and µGraphs of its attention written by hand."""

import mirage_onnx as mi

#: One kernel: a block has some rows of a head and walks the positions.
ONE_KERNEL = """\
ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor i1 f16[a0,a3,a1] input
tensor i2 f16[a0,a4,a3] input
tensor o0 f16[a0,a4,a2] output
kernel k0 grid=a4,a0 cluster=- loop=a1
  %0 = load i2 imap=a4,a0 cmap=- fmap=- : f16[a0,a3,a4] loop shared
  %1 = load i1 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1,a3] loop shared
  %2 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1,a2] loop shared
  %3 = matmul[a3] %0 %1 : f32[a0,a1,a4] loop C_frag
  %4 = exp %3 : f32[a0,a1,a4] loop C_frag
  %5 = sum[a1] %4 : f32[a0,a4] loop row
  %6 = acc_sum %5 : f32[a0,a4] post row
  %7 = cast %4 : f16[a0,a1,a4] loop A_frag
  %8 = matmul[a1] %7 %2 : f32[a0,a2,a4] loop C_frag
  %9 = acc_sum %8 : f32[a0,a2,a4] post C_frag
  %10 = div %9 %6 : f32[a0,a2,a4] post C_frag
  %11 = cast %10 : f16[a0,a2,a4] post C_frag
  save o0 = %11 omap=a4,a0
"""

#: Two kernels: the positions are split over blocks, whose partial results the second adds.
SPLIT = """\
ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor i1 f16[a0,a3,a1] input
tensor i2 f16[a0,a4,a3] input
tensor t0 f32[a0,a4,a1/k0] temp
tensor t1 f32[a0,a4,a1/k0,a2] temp
tensor o0 f16[a0,a4,a2] output
kernel k0 grid=a1,a4,a0 cluster=- loop=a1
  %0 = load i2 imap=-,a4,a0 cmap=- fmap=- : f16[a0,a3,a4] loop shared
  %1 = load i1 imap=a1,-,a0 cmap=- fmap=a1 : f16[a0,a1,a3] loop shared
  %2 = load i0 imap=a1,-,a0 cmap=- fmap=a1 : f16[a0,a1,a2] loop shared
  %3 = matmul[a3] %0 %1 : f32[a0,a1,a4] loop C_frag
  %4 = exp %3 : f32[a0,a1,a4] loop C_frag
  %5 = sum[a1] %4 : f32[a0,a4] loop row
  %6 = acc_sum %5 : f32[a0,a4] post row
  %7 = cast %4 : f16[a0,a1,a4] loop A_frag
  %8 = matmul[a1] %7 %2 : f32[a0,a2,a4] loop C_frag
  %9 = acc_sum %8 : f32[a0,a2,a4] post C_frag
  save t0 = %6 omap=a1/k0,a4,a0
  save t1 = %9 omap=a1/k0,a4,a0
kernel k1 grid=a2,a0 cluster=- loop=-
  %0 = load t0 imap=-,a0 cmap=- fmap=- : f32[a0,a4,a1/k0] post vector
  %1 = load t1 imap=a2,a0 cmap=- fmap=- : f32[a0,a4,a1/k0,a2] post vector
  %2 = sum[a1/k0] %0 : f32[a0,a4] post vector
  %3 = sum[a1/k0] %1 : f32[a0,a2,a4] post vector
  %4 = div %3 %2 : f32[a0,a2,a4] post vector
  %5 = cast %4 : f16[a0,a2,a4] post vector
  save o0 = %5 omap=a2,a0
"""

ONE_KERNEL_NUMBERS = ["tile=16,1 cluster=1 loop_tile=64 warps=4 stages=1"]
SPLIT_NUMBERS = [
    "tile=256,64,1 cluster=1 loop_tile=64 warps=4 stages=1",
    "tile=4,1 cluster=1 loop_tile=0 warps=4 stages=1",
]


def attention(heads=2, rows=256, depth=64, positions=4096):
    """Group-query attention of the README: no maximum, no scale."""
    graph = mi.new_kernel_graph()
    q = graph.new_input(dims=(heads, rows, depth), dtype=mi.float16)
    k = graph.new_input(dims=(heads, depth, positions), dtype=mi.float16)
    v = graph.new_input(dims=(heads, positions, depth), dtype=mi.float16)
    e = graph.exp(graph.matmul(q, k))
    graph.matmul(graph.div(e, graph.reduction(e, 2)), v)
    return graph
