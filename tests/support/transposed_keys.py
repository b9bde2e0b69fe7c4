"""Attention over keys that lie transposed; the ranks of a cluster have shares of them. A search found it."""

from mirage_onnx.ir import parse_ugraph

#: a0: heads, a1: keys, a2 and a3: their lengths.
TEXT = """ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor i1 f16[a0,a3,a1] input
tensor i2 f16[a0,a3] input
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i1 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a3,a1] loop shared
  %1 = load i2 imap=-,a0 cmap=- fmap=- : f16[a0,a3] loop depth
  %2 = matmul[a3] %1 %0 : f32[a0,a1] loop column
  %3 = const[-1] : f32[] loop uniform
  %4 = rmax[a1] %2 : f32[a0] loop uniform
  %5 = run_max %4 : f32[a0] loop uniform
  %6 = mul %3 %5 : f32[a0] loop uniform
  %7 = add %6 %2 : f32[a0,a1] loop column
  %8 = exp %7 : f32[a0,a1] loop column
  %9 = sum[a1] %8 : f32[a0] loop uniform
  %10 = prev %5 : f32[a0] loop uniform
  %11 = sub %10 %5 : f32[a0] loop uniform
  %12 = exp %11 : f32[a0] loop uniform
  %13 = acc_scaled %9 %12 : f32[a0] post uniform
  %14 = acc_max %4 : f32[a0] post uniform
  %15 = red_max %14 : f32[a0] post uniform
  %16 = sub %14 %15 : f32[a0] post uniform
  %17 = exp %16 : f32[a0] post uniform
  %18 = mul %13 %17 : f32[a0] post uniform
  %19 = red_sum %18 : f32[a0] post uniform
  %20 = recip %19 : f32[a0] post uniform
  %21 = load i0 imap=a2,a0 cmap=a1 fmap=a1 : f16[a0,a1,a2] loop shared
  %22 = cast %8 : f16[a0,a1] loop depth
  %23 = matmul[a1] %21 %22 : f32[a0,a2] loop row
  %24 = acc_scaled %23 %12 : f32[a0,a2] post row
  %25 = mul %24 %17 : f32[a0,a2] post row
  %26 = red_sum %25 : f32[a0,a2] post row
  %27 = mul %20 %26 : f32[a0,a2] post row
  %28 = cast %27 : f16[a0,a2] post row
  save o0 = %28 omap=a2,a0
"""


def transposed_keys():
  """The program, of one kernel."""
  return parse_ugraph(TEXT)
