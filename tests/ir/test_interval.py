"""Interval arithmetic holds every value: on every pair of ends and on random points between."""

from fractions import Fraction
from math import inf, isfinite

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_onnx.ir import functions
from mirage_onnx.ir import interval as iv
from mirage_onnx.ir.interval import Interval
from mirage_onnx.verify.domain import real_power

ENDS = st.sampled_from([-1e5, -700.0, -8.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 8.0, 700.0, 1e5])
PAIRS = st.tuples(ENDS, ENDS).map(sorted).map(lambda p: Interval(*p))
SHARES = st.floats(0, 1)


def between(x, share):
  return min(x.hi, max(x.lo, x.lo + share * (x.hi - x.lo)))


def assert_holds(result, value):
  if not isfinite(value):
    return
  slack = 1e-12 * max(1.0, abs(value))
  assert result.lo - slack <= value <= result.hi + slack, (result, value)


@pytest.mark.parametrize("op", sorted(functions.ELEMENTWISE))
@given(x=PAIRS, y=PAIRS, z=PAIRS, share=SHARES, other=SHARES)
def test_every_function_holds_its_values(op, x, y, z, share, other):
  arity = functions.ELEMENTWISE[op].arity
  args = [x, y, z][:arity]
  points = [between(x, share), between(y, other), between(z, share)][:arity]
  with np.errstate(all="ignore"):
    value = float(functions.ELEMENTWISE[op].reals(*map(np.float64, points)))
  assert_holds(functions.ELEMENTWISE[op].interval(*args), value)


@given(
  x=PAIRS, share=SHARES, e=st.sampled_from([-3, -2, -1, 2, 3, Fraction(1, 2), Fraction(-3, 2)])
)  # fmt: skip
def test_powers_hold_their_values(x, share, e):
  exponent = Fraction(e)
  with np.errstate(all="ignore"):
    value = float(real_power(np.float64(between(x, share)), exponent))
  assert_holds(iv.power(x, exponent), value)


@given(x=PAIRS, points=st.lists(SHARES, max_size=7))
def test_a_sum_over_part_of_an_axis(x, points):
  assert_holds(x.scaled(7), sum(between(x, p) for p in points))


def test_ends_at_infinity():
  half = Interval(1.0, inf)
  assert iv.reciprocal(half) == Interval(0.0, 1.0)
  assert iv.symmetric(2.0) * iv.reciprocal(half) == iv.symmetric(2.0)
  assert iv.exponential(iv.REALS) == Interval(0.0, inf)
  assert functions.ELEMENTWISE["sigmoid"].interval(iv.REALS) == iv.UNIT
  assert iv.ZERO * iv.REALS == iv.ZERO
  assert not iv.power(iv.REALS, Fraction(3)).bounded
  assert iv.power(iv.REALS, Fraction(2)) == Interval(0.0, inf)


def test_and_never_becomes_empty_by_rounding():
  low, high = Interval(0.0, 1.0), Interval(1.0 + 1e-16, 2.0)
  assert (low & high).lo <= (low & high).hi
  assert (low | high) == Interval(0.0, 2.0)
