"""Axes that are always side by side are one, as far as threads and blocks have axes to share out."""

import pytest
from small_models import Net, region_of

from mirage_onnx.ir.term import EXTENT, walk


def normed(*lead):
  net = Net()
  x = net.input(*lead, 64)
  return region_of(net.model(net.MatMul(net.rms(x, net.weight(64)), net.weight(64, 32))))


@pytest.mark.parametrize("lead", [(2, 4), (8, 1), (1, 8), (1, 1, 8), (2, 2, 2), (2, 1, 4)])
def test_leading_dimensions_are_one_axis(lead):
  got = normed(*lead)
  assert got.key == normed(8).key
  assert sorted(got.extents.values()) == [8, 32, 64]
  activation = next(i for i in got.inputs if not i.is_weight)
  assert len(activation.dims) == len(lead) + 1
  assert list(dict.fromkeys(a for d in activation.dims for a in d)) == list(activation.axes)
  assert not activation.splits_dims


def test_a_mean_over_dimensions_that_become_one_axis_counts_its_elements_once(net):
  x = net.input(2, 3, 4, 5)
  found = region_of(net.model(net.Sub(x, net.ReduceMean(x, [1, 2, 3]))))
  assert sorted(found.extents.values()) == [2, 60]
  counts = [u.attr for u in walk(found.terms) if u.op == EXTENT]
  assert [[found.extents[a] for a in c] for c in counts] == [[60]]


@pytest.mark.parametrize(("rows", "axes"), [(6, 1), (1 << 14, 2)])
def test_dimensions_that_are_reduced_together_are_one_row(net, rows, axes):
  """Neither is one for the grid; but what no block holds stays two."""
  x = net.input(rows, 4)
  got = region_of(net.model(net.Mul(x, net.ReduceMean(net.Mul(x, x), [0, 1]))))
  assert len(got.extents) == axes


def test_a_row_that_is_reduced_stays_beside_the_rows(net):
  x = net.input(6, 4)
  got = region_of(net.model(net.Mul(x, net.ReduceMean(net.Mul(x, x), [-1]))))
  assert sorted(got.extents.values()) == [4, 6]
