"""The least tolerances are those of ``numpy.allclose``; the rest of the module: test_compare.py."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mirage_onnx.custom_op.difference import difference, excused, least_tolerances, worse

FLOATS = st.floats(-1e3, 1e3, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)
VECTORS = arrays.arrays(np.float64, 5, elements=FLOATS)
UP, DOWN = 1 + 1e-9, 1 - 1e-9


@given(VECTORS, VECTORS)
def test_least_tolerances_are_least(want, got):
  atol, rtol = least_tolerances(want, got)
  assert atol is not None
  assert np.allclose(got, want, rtol=0, atol=atol * UP)
  assert atol == 0 or not np.allclose(got, want, rtol=0, atol=atol * DOWN)
  if rtol is None:
    assert not np.allclose(got, want, rtol=1e30, atol=0)
  else:
    assert np.allclose(got, want, rtol=rtol * UP, atol=0)
    assert rtol == 0 or not np.allclose(got, want, rtol=rtol * DOWN, atol=0)


@pytest.mark.parametrize(
  ("want", "got", "least"),
  [
    ([1, np.nan], [1, np.nan], (0.0, 0.0)),
    ([np.inf, -np.inf], [np.inf, -np.inf], (0.0, 0.0)),
    ([np.inf], [-np.inf], (None, None)),
    ([1], [np.nan], (None, None)),
    ([np.nan], [1], (None, None)),
    ([np.inf, 2], [np.inf, 3], (1.0, 0.5)),
    ([0, 2], [0, 3], (1.0, 0.5)),
    ([0], [1e-3], (1e-3, None)),
    ([], [], (0.0, 0.0)),
  ],
)
def test_special_values(want, got, least):
  assert least_tolerances(np.array(want, float), np.array(got, float)) == least


@pytest.mark.parametrize("shape", [(2,), (1, 2), (1, 2, 1), (2, 1, 1)])
def test_a_row_is_the_last_axis_of_more_than_one_element(shape):
  """A column of numbers is no column of rows: one of them near zero is a part of it."""
  want, got = np.array([4.0, 0.0]).reshape(shape), np.array([4.0, 1.0]).reshape(shape)
  assert difference("y", want, got, 0.5, 0.0, "").needed_rtol == 0.25
  rows = difference("y", np.array([[4.0], [1.0]]) * [1, 1], np.array([[4.0], [2.0]]) * [1, 1], 0.5, 0.0, "")
  assert rows.needed_rtol == 1.0 and not rows.passed


def test_the_worst_input_needs_the_most():
  x = np.array([1.0, 2.0], np.float32)
  near = difference("y", x, x * np.float32(1.25), 1.0, 0.0, "near")
  far = difference("y", x, x * np.float32(1.5), 1.0, 0.0, "far")
  zero = difference("y", x * 0, x, 1.0, 0.0, "zero")
  assert (near.least_atol, near.least_rtol) == (0.5, 0.25)
  both = worse(near, far)
  assert (both.least_atol, both.least_rtol) == (1.0, 0.5)
  assert (worse(both, zero).least_atol, worse(both, zero).least_rtol) == (2.0, None)


def test_what_failed_is_told_before_what_was_excused():
  x = np.array([1.0, 2.0], np.float32)
  failed = difference("y", x, x * np.float32(1.25), 0.1, 0.0, "failed")
  passed = replace(difference("y", x, x * np.float32(9), 0.1, 0.0, "excused"), passed=True, reason="excused")
  for both in (worse(failed, passed), worse(passed, failed)):
    assert (both.worst, both.reason, both.passed, both.needed_rtol) == ("failed", "", False, 8.0)


@pytest.mark.parametrize(
  ("want", "got", "exact", "passes"),
  [
    ([1.0, 8], [1.25, 8], [1.25, 8], True),  # the original's error
    ([1.0, 8], [1.5, 8], [1.25, 8], True),  # as large, on the other side
    ([1.0, 8], [2.0, 8], [1.25, 8], False),  # thrice as large
    ([1.0, 8], [1.25, 8], [1.0, 8], False),  # the original is right
    ([np.nan, 8], [1.25, 8], [1.25, 8], True),  # only the original overflows
    ([np.nan, 8], [1.5, 8], [1.25, 8], False),  # and is no excuse
    ([1.0, 8], [np.nan, 8], [1.25, 8], False),
    ([1.0, 8], [1.25, 8], [1e5, 8], False),  # what is beyond fp16 is no measure
  ],
)
def test_an_error_of_the_original_excuses_one_as_large(want, got, exact, passes):
  want, got = (np.array([x], np.float16) for x in (want, got))
  found = difference("y", want, got, 1e-2, 0.0, "")
  assert not found.passed
  again = excused(found, want, got, np.array([exact], np.float32), 0.0)
  assert again.passed == passes
  if not np.isnan(want).any():
    assert ("from its fp32 form" in again.reason) == passes
