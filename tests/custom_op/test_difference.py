"""The least tolerances are those of ``numpy.allclose``; the rest of the module: test_compare.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mirage_onnx.custom_op.difference import difference, least_tolerances, worse

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


def test_the_worst_input_needs_the_most():
    x = np.array([1.0, 2.0], np.float32)
    near = difference("y", x, x * np.float32(1.25), 1.0, 0.0, "near")
    far = difference("y", x, x * np.float32(1.5), 1.0, 0.0, "far")
    zero = difference("y", x * 0, x, 1.0, 0.0, "zero")
    assert (near.least_atol, near.least_rtol) == (0.5, 0.25)
    both = worse(near, far)
    assert (both.least_atol, both.least_rtol) == (1.0, 0.5)
    assert (worse(both, zero).least_atol, worse(both, zero).least_rtol) == (2.0, None)
