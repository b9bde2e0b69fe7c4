"""Which elementwise operations are x times the normal distribution together, and which are not."""

import pytest

from mirage_onnx.ir import parse_ugraph
from mirage_onnx.ir.functions import TIMES_NORMAL
from mirage_onnx.lower.near import with_near

HEAD = """ugraph 1
tensor i0 f16[a0,a1] input
tensor o0 {}[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = cast %0 : f32[a0,a1] post vector
  %2 = const[1/2] : f32[] post uniform
  %3 = sqrt %2 : f32[] post uniform
  %4 = const[1] : f32[] post uniform
"""
SCALED = "mul %1 %3"
SUM = "add %6 %4"
#: Ways to write it: what %5, %7, %8 and %9 are; %6 is the error function of %5.
WAYS = {
  "exporters": (SCALED, SUM, "mul %1 %7", "mul %8 %2"),
  "half first": (SCALED, "add %4 %6", "mul %2 %1", "mul %8 %7"),
  "half of the sum": ("mul %3 %1", SUM, "mul %7 %2", "mul %1 %8"),
}
OTHERS = {
  "another scale": ("mul %1 %2", SUM, "mul %1 %7", "mul %8 %2"),
  "another number added": (SCALED, "add %6 %3", "mul %1 %7", "mul %8 %2"),
  "not halved": (SCALED, SUM, "mul %1 %7", "mul %8 %4"),
  "of the square": (SCALED, SUM, "mul %1 %7", "mul %8 %1"),
  "times another value": (SCALED, SUM, "mul %6 %7", "mul %8 %2"),
  "a difference": (SCALED, "sub %6 %4", "mul %1 %7", "mul %8 %2"),
}


def kernel(way, dtype="f16", more=""):
  five, seven, eight, nine = way
  lines = [f"%5 = {five}", "%6 = erf %5", f"%7 = {seven}", f"%8 = {eight}", f"%9 = {nine}"]
  text = HEAD.format(dtype) + "".join(f"  {x} : f32[a0,a1] post vector\n" for x in lines) + more
  text += f"  %{10 + bool(more)} = cast %{9 + bool(more)} : {dtype}[a0,a1] post vector\n"
  graph = parse_ugraph(f"{text}  save o0 = %{10 + bool(more)} omap=a0\n")
  return with_near(graph.kernels[0], {t.name: t for t in graph.tensors}), graph.kernels[0]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_factors_in_any_order(way):
  found, before = kernel(way)
  assert found.ops[9].op == TIMES_NORMAL and found.ops[9].args == (1,)
  assert [o for n, o in enumerate(found.ops) if n != 9] == [o for n, o in enumerate(before.ops) if n != 9]


@pytest.mark.parametrize("way", OTHERS.values(), ids=OTHERS)
def test_other_products(way):
  found, before = kernel(way)
  assert found == before


def test_results_of_32_bits_keep_their_error_function():
  found, before = kernel(WAYS["exporters"], "f32")
  assert found == before


def test_what_others_use_stays():
  """The product with the sum is used twice: no factor of it is seen through, but it is still there."""
  way = (SCALED, SUM, "mul %1 %7", "mul %8 %2")
  found, before = kernel(way, more="  %10 = add %9 %8 : f32[a0,a1] post vector\n")
  assert found == before
