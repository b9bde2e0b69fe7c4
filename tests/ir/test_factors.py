"""Common factors of two shapes, against the definition."""

from itertools import pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.ir.factors import cut_points, groups, have_common_factors

SIZES = st.lists(st.integers(1, 12), max_size=4)


@pytest.mark.parametrize(
  ("before", "after", "wanted"),
  [
    ((8, 64), (8, 4, 16), True),
    ((8, 4, 16), (8, 64), True),
    ((1, 2, 2, 25, 16), (1, 4, 25, 16), True),
    ((6, 4), (3, 8), True),  # 3, 2, 4
    ((4, 6), (3, 8), False),  # 6 does not divide 8
    ((2, 3), (3, 2), False),
    ((2, 3), (6,), True),
    ((2, 3), (1, 2, 1, 3), True),
    ((), (1, 1), True),
    ((5, 4, 6), (5, 3, 8), False),
    ((2, 3), (2, 4), False),
    ((0, 4), (4, 0), False),
    ((1, 0, 4), (0, 4), True),
    ((64,), (4, 16), True),
    ((4, 1, 16), (2, 32), True),  # 2, 2, 16
  ],
)
def test_common_factors(before, after, wanted):
  assert have_common_factors(before, after) is wanted
  assert have_common_factors(after, before) is wanted


@given(SIZES, st.data())
def test_against_the_definition(sizes, data):
  """There are factors iff the cut points of both shapes, all together, divide each other."""
  after = data.draw(st.permutations(sizes)) if data.draw(st.booleans()) else [*sizes]
  if len(after) > 1 and data.draw(st.booleans()):
    after[:2] = [after[0] * after[1]]
  points = sorted({*cut_points(sizes), *cut_points(after)})
  assert have_common_factors(sizes, after) is all(b % a == 0 for a, b in pairwise(points))


@given(SIZES)
def test_groups_hold_equal_products_and_all_dimensions(sizes):
  after = [*sizes[:1], prod(sizes[1:])]
  found = groups(sizes, after)
  for left, right in found:
    assert prod(sizes[i] for i in left) == prod(after[j] for j in right) > 1
  assert [i for left, _ in found for i in left] == [i for i, n in enumerate(sizes) if n > 1]


def test_no_groups_of_other_sizes():
  with pytest.raises(ValueError, match="a reshape from"):
    groups((2, 3), (2, 4))
