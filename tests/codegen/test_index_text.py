"""Index arithmetic as text is what it says, on numbers."""

from itertools import product
from math import prod

import pytest

from mirage_onnx.codegen.index_text import parts_of, subscript, times, total


def test_zeros_and_ones_are_left_out():
  assert total() == total("0") == "0" and total("a", "0", "b") == "a + b"
  assert times("a", 0) == times("0", 7) == "0"
  assert times("a", 1) == "a" and times("a", 3) == "a * 3"
  assert subscript(["i", "2"]) == "[i][2]" and subscript([]) == ""


@pytest.mark.parametrize("sizes", [(), (5,), (2, 3), (4, 1, 3), (1, 1)])
def test_parts_of_a_flat_index(sizes):
  """The last fastest, as ``itertools.product`` counts."""
  for flat, want in zip(range(prod(sizes)), product(*map(range, sizes)), strict=True):
    found = [eval(text.replace("/", "//"), {"e": flat}) for text in parts_of("e", sizes)]
    assert tuple(found) == want
