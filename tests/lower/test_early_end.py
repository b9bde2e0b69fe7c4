"""Loops that end where a run says that a cache does: only if nothing behind that would change anything."""

import pytest

from mirage_onnx.ir import parse_ugraph
from mirage_onnx.lower.early_end import early_end

#: One query against keys and values of a cache, with a running maximum.
ATTENDED = """ugraph 1
tensor i1 i32[] input
tensor i2 f16[a3,a1] input
tensor i3 f16[a0,a1] input upto a0<=i1
tensor i4 f16[a0,a4] input upto a0<=i1
tensor i0 i32[a0] weight
tensor o0 f16[a3,a4] output
kernel k0 grid=a3 cluster=a0 loop=a0
  %0 = load i0 imap=- cmap=a0 fmap=a0 : i32[a0] loop depth
  %1 = load i1 imap=- cmap=- fmap=- : i32[] loop uniform
  %2 = cast %0 : f32[a0] loop depth
  %3 = cast %1 : f32[] loop uniform
  %4 = less_equal %2 %3 : f32[a0] loop column
  %5 = load i3 imap=- cmap=a0 fmap=a0 : f16[a0,a1] loop shared
  %6 = load i2 imap=a3 cmap=- fmap=- : f16[a3,a1] loop A_frag
  %7 = matmul[a1] %6 %5 : f32[a0,a3] loop C_frag
  %8 = const[-340282346638528859811704183484516925440] : f32[] loop uniform
  %9 = select %4 %7 %8 : f32[a0,a3] loop C_frag
  %10 = rmax[a0] %9 : f32[a3] loop row
  %11 = run_max %10 : f32[a3] loop row
  %12 = const[-1] : f32[] loop uniform
  %13 = mul %12 %11 : f32[a3] loop row
  %14 = add %13 %9 : f32[a0,a3] loop C_frag
  %15 = exp %14 : f32[a0,a3] loop C_frag
  %16 = sum[a0] %15 : f32[a3] loop row
  %17 = prev %11 : f32[a3] loop row
  %18 = sub %17 %11 : f32[a3] loop row
  %19 = exp %18 : f32[a3] loop row
  %20 = acc_scaled %16 %19 : f32[a3] post row
  %21 = acc_max %10 : f32[a3] post row
  %22 = red_max %21 : f32[a3] post row
  %23 = sub %21 %22 : f32[a3] post row
  %24 = exp %23 : f32[a3] post row
  %25 = mul %20 %24 : f32[a3] post row
  %26 = red_sum %25 : f32[a3] post row
  %27 = recip %26 : f32[a3] post row
  %28 = load i4 imap=- cmap=a0 fmap=a0 : f16[a0,a4] loop shared
  %29 = const[0] : f32[] loop uniform
  %30 = cast %28 : f32[a0,a4] loop B_frag
  %31 = select %4 %30 %29 : f32[a0,a4] loop B_frag
  %32 = cast %31 : f16[a0,a4] loop B_frag
  %33 = cast %15 : f16[a0,a3] loop A_frag
  %34 = matmul[a0] %33 %32 : f32[a3,a4] loop C_frag
  %35 = acc_scaled %34 %19 : f32[a3,a4] post C_frag
  %36 = mul %35 %24 : f32[a3,a4] post C_frag
  %37 = red_sum %36 : f32[a3,a4] post C_frag
  %38 = mul %27 %37 : f32[a3,a4] post C_frag
  %39 = cast %38 : f16[a3,a4] post C_frag
  save o0 = %39 omap=a3,-
"""


def ends(text):
  graph = parse_ugraph(text)
  return early_end(graph, graph.kernels[0])


def test_a_softmax_of_what_is_seen():
  assert ends(ATTENDED) == "i3"


#: What is changed, and what the loop would miss behind the end.
GO_ON = {
  "another limit of the values": ("i4 f16[a0,a4] input upto a0<=i1", "i4 f16[a0,a4] input upto a0<i1"),
  "no limit": (" upto a0<=i1", ""),
  "scores that are hidden count": ("const[-340282346638528859811704183484516925440]", "const[-10000]"),
  "values that are hidden count": ("%29 = const[0]", "%29 = const[1]"),
  "the row at the end": ("%4 = less_equal", "%4 = less"),
  "the other way round": ("%9 = select %4 %7 %8", "%9 = select %4 %8 %7"),
  "values as they are": ("%32 = cast %31", "%32 = cast %30"),
  "a maximum of others": ("%13 = mul %12 %11", "%13 = mul %12 %10"),
  "twice the maximum": ("%12 = const[-1]", "%12 = const[-2]"),
}


@pytest.mark.parametrize("why", GO_ON)
def test_loops_that_go_on(why):
  old, new = GO_ON[why]
  assert old in ATTENDED
  assert ends(ATTENDED.replace(old, new)) is None


def test_places_are_known_by_being_alone():
  """Of two tensors that are compared with the length, one may be no place."""
  text = ATTENDED.replace("tensor i0", "tensor i5 i32[a0] weight\ntensor i0").replace(
    "  %5 = load i3", "  %40 = load i5 imap=- cmap=a0 fmap=a0 : i32[a0] loop depth\n  %5 = load i3"
  )
  lines = text.splitlines()
  at = next(n for n, line in enumerate(lines) if line.startswith("  %40"))
  # Numbers follow their order: the new value is the last but the comparison with it.
  load = lines.pop(at).replace("%40", "%40")
  save = next(n for n, line in enumerate(lines) if line.startswith("  save"))
  lines[save:save] = [load, "  %41 = less_equal %40 %1 : f32[a0] loop column"]
  assert ends("\n".join(lines) + "\n") is None
