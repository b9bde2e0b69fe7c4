"""Dimensions as products of factors."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.errors import RejectionError
from mirage_onnx.formats.mirage.factors import AxisFactors


def sizes(factors, dim):
  return [factors.extent(f) for f in factors.leaves(dim)]


def cut(factors, dim, outer):
  """The rest of ``dim`` after outer parts of these sizes."""
  for n in outer:
    _, dim = factors.take(dim, n)
  return dim


def test_take_splits_where_it_must():
  factors = AxisFactors()
  dim = factors.new(4096)
  outer, inner = factors.take(dim, 8)
  assert (factors.size(outer), factors.size(inner)) == (8, 512)
  _, inner = factors.take(inner, 4)
  assert sizes(factors, dim) == [8, 4, 128] and sizes(factors, inner) == [128]
  assert factors.take(dim, 32)[1] == factors.leaves(inner)
  assert factors.take(dim, 1) == ((), factors.leaves(dim))
  assert factors.take(dim, 4096)[1] == ()
  assert factors.new(1) == ()


def test_what_is_tied_is_split_together():
  factors = AxisFactors()
  a, b, c = factors.new(24), factors.new(24), factors.new(8)
  factors.tie(a, b)
  cut(factors, a, [3])
  factors.tie(cut(factors, b, [3]), c)
  cut(factors, c, [2])
  assert factors.leaves(a) == factors.leaves(b)
  assert sizes(factors, a) == [3, 2, 4] and factors.leaves(c) == factors.leaves(a)[1:]


@pytest.mark.parametrize(("extent", "outer", "code"), [(24, 5, "INVALID"), (24, 4, "UNSUPPORTED")])
def test_cuts_that_do_not_fit(extent, outer, code):
  factors = AxisFactors()
  dim = factors.new(extent)
  cut(factors, dim, [3])
  with pytest.raises(RejectionError) as e:
    factors.take(dim, outer)
  assert e.value.rejection.code == f"SAVED_{code}"


def test_crosswise_cuts_cannot_be_tied():
  factors = AxisFactors()
  a, b = factors.new(24), factors.new(24)
  cut(factors, a, [2])
  cut(factors, b, [3])
  with pytest.raises(RejectionError, match="crosswise"):
    factors.tie(a, b)


chains = st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4)


@given(chains, st.data())
def test_chains_of_divisors_have_a_common_refinement(parts, data):
  """Two ways to put the same parts together are tied to exactly these parts, or finer ones."""
  factors = AxisFactors()
  dims = []
  for _ in range(2):
    dim, groups, left = factors.new(prod(parts)), [], list(parts)
    while left:
      n = data.draw(st.integers(1, len(left)))
      groups.append(prod(left[:n]))
      left = left[n:]
    cut(factors, dim, groups[:-1])
    dims.append(dim)
  factors.tie(*dims)
  leaves = factors.leaves(dims[0])
  assert leaves == factors.leaves(dims[1])
  assert prod(sizes(factors, leaves)) == prod(parts)
  assert len(leaves) <= len(parts)
