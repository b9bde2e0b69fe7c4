"""What a copy has zeros behind is not chosen again: where, and where it is."""

import pytest

from mirage_onnx.ir import parse_ugraph
from mirage_onnx.lower.dataflow import needed_values
from mirage_onnx.lower.zeros_behind import with_zeros_behind

#: Values of a cache that are chosen where there are some, and multiplied.
TEXT = """ugraph 1
tensor i0 i32[a0] weight places
tensor i1 i32[a2] input
tensor i2 f16[a2,a3,a0] input
tensor i3 f16[a2,a0,a4] input upto a0<=i1
tensor o0 f16[a2,a3,a4] output
kernel k0 grid=a2 cluster=- loop=-
  %0 = load i0 imap=- cmap=- fmap=- : i32[a0] post depth
  %1 = load i1 imap=a2 cmap=- fmap=- : i32[a2] post uniform
  %2 = cast %0 : f32[a0] post depth
  %3 = cast %1 : f32[a2] post uniform
  %4 = less_equal %2 %3 : f32[a0,a2] post depth
  %5 = load i3 imap=a2 cmap=- fmap=- : f16[a2,a0,a4] post shared
  %6 = const[0] : f32[] post uniform
  %7 = cast %5 : f32[a0,a2,a4] post B_frag
  %8 = select %4 %7 %6 : f32[a0,a2,a4] post B_frag
  %9 = cast %8 : f16[a0,a2,a4] post B_frag
  %10 = load i2 imap=a2 cmap=- fmap=- : f16[a2,a3,a0] post shared
  %11 = matmul[a0] %10 %9 : f32[a2,a3,a4] post C_frag
  %12 = cast %11 : f16[a2,a3,a4] post C_frag
  save o0 = %12 omap=a2
"""


def made(text=TEXT, cut=("a2",)):
  graph = parse_ugraph(text)
  return with_zeros_behind(graph.kernels[0], {t.name: t for t in graph.tensors}, cut)


def test_values_are_taken_as_they_were_copied():
  kernel = made()
  assert kernel.ops[11].args == (10, 5)
  assert needed_values(kernel) == {5, 10, 11, 12}


@pytest.mark.parametrize(
  ("old", "new"),
  [
    ("upto a0<=i1", "upto a0<i1"),  # the copy ends before the last row that is chosen
    ("upto a0<=i1", "upto a4<=i1"),  # another axis, of which a copy has no ends
    (" upto a0<=i1", ""),
    ("%6 = const[0]", "%6 = const[1]"),
    ("less_equal %2 %3", "less_equal %3 %2"),
    ("f16[a2,a0,a4] post shared", "f16[a2,a0,a4] post B_frag"),  # no copy
    ("select %4 %7 %6", "select %4 %6 %7"),
  ],
)
def test_what_is_chosen_still(old, new):
  assert old in TEXT
  kernel = made(TEXT.replace(old, new))
  assert kernel.ops[11].args == (10, 9)


def test_a_block_of_several_sequences_has_several_ends():
  assert made(cut=()).ops[11].args == (10, 9)
