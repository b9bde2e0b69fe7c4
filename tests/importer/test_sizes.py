"""Sizes of names: the same numbers as Python has them, and no comparison that a run decides."""

import operator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.importer.sizes import SizeSum, UnsettledError, at_most, divided, is_count, product

A, B = SizeSum.of("a"), SizeSum.of("b")


def value(size, run):
  if not isinstance(size, SizeSum):
    return size
  return sum(factor * int(np.prod([run[n] for n in names])) for names, factor in size.terms)


numbers = st.integers(-4, 4) | st.sampled_from([A, B, A * B, A + B, A + 1, 3 * A - 2])


@given(numbers, numbers, st.integers(0, 9), st.integers(0, 9))
def test_arithmetic_and_comparisons_hold_in_every_run(x, y, a, b):
  run = {"a": a, "b": b}
  for op in (operator.add, operator.sub, operator.mul):
    assert value(op(x, y), run) == op(value(x, run), value(y, run))
  for op in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
    try:
      assert op(x, y) == op(value(x, run), value(y, run))
    except UnsettledError:
      assert isinstance(x, SizeSum) or isinstance(y, SizeSum)
  with suppress(UnsettledError):
    assert value(divided(x, y), run) * value(y, run) == value(x, run)
  if at_most(x, y):
    assert value(x, run) <= value(y, run)
  if is_count(x):
    assert value(x, run) >= 0


def test_what_is_settled():
  assert (A == -1, A + 1 == 0, A < A + 1, A + B >= B, A - A == 0) == (False, False, True, True, True)
  for unsettled in (lambda: A == 1, lambda: A == 0, lambda: A < B, lambda: A > 0, lambda: A == B):
    with pytest.raises(UnsettledError):
      unsettled()


def test_divisions_without_a_rest():
  assert str(divided(12 * A * B + 4 * A, 4 * A)) == "3*b + 1"
  assert divided(6 * A, A) == 6
  for a, b in ((A + 1, 2), (A, B), (7, A), (A, 0), (A, A + B), (A, -1)):
    with pytest.raises(UnsettledError):
      divided(a, b)


def test_as_exporters_write_it():
  """As torch's exporter does, so that equal sizes have equal names."""
  found = [str(s) for s in (A + 1, 1 + A + 2 * B, A * B * 3, A - 2, -1 * A)]
  assert found == ["a + 1", "a + 2*b + 1", "3*a*b", "a - 2", "-a"]
  assert (A.name, (A + 1).name, (2 * A).name) == ("a", None, None)


def test_limits():
  with pytest.raises(UnsettledError, match="long"):
    product([A] * 9)
  with pytest.raises(UnsettledError, match="long"):
    sum((SizeSum.of(f"n{i}") for i in range(17)), 0)
  with pytest.raises(UnsettledError, match="large"):
    A * (1 << 62)
  with pytest.raises(UnsettledError):
    A + 0.5
