"""The table of elementwise functions: its columns agree with each other, and the rest follows from it."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest

from mirage_onnx.ir import functions as f
from mirage_onnx.ir.functions import ELEMENTWISE, Elementwise, Price
from mirage_onnx.ir.interval import Interval
from mirage_onnx.verify.domain import Float64

RNG = np.random.default_rng(0)
LIMITS = (-inf, -2.5, -1.0, 0.0, 0.5, 3.0, inf)
INTERVALS = [Interval(a, b) for a in LIMITS for b in LIMITS if a <= b and (a != b or abs(a) != inf)]


def test_every_row_has_every_column():
  with pytest.raises(TypeError, match="partials"):
    Elementwise("{0}", Price.LANE, np.abs, lambda a: a)
  for name, row in ELEMENTWISE.items():
    used = {f"{{{i}}}" for i in range(3) if f"{{{i}}}" in row.cuda}
    assert used == {f"{{{i}}}" for i in range(row.arity)}, name


@pytest.mark.parametrize("op", [op for op, row in ELEMENTWISE.items() if row.algebra])
def test_the_algebra_is_the_function(op):
  """Through the definition in float64, which knows only rules of numbers and opaque functions."""
  x = [RNG.uniform(0.1, 3.0, (1, 64)) for _ in range(ELEMENTWISE[op].arity)]
  domain = Float64(1)
  got = f.by_definition(op, x, domain, domain.elementwise)
  np.testing.assert_allclose(np.broadcast_to(got, (1, 64)), ELEMENTWISE[op].reals(*x), rtol=1e-12)


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_the_slopes_are_those_of_the_function(op):
  row = ELEMENTWISE[op]
  x = [RNG.uniform(0.2, 0.9, 200) * s for s in (1.0, 0.7, 1.3)[: row.arity]]
  for i, partial in enumerate(row.partials):
    above, below = ([a + s * (i == j) for j, a in enumerate(x)] for s in (1e-6, -1e-6))
    slope = (row.reals(*above) - row.reals(*below)) / 2e-6
    near_jump = np.abs(slope) > 1e4  # a comparison between these two points
    told = np.broadcast_to(partial(row.reals(*x), *x), slope.shape)
    np.testing.assert_allclose(told[~near_jump], slope[~near_jump], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_zeros_are_kept_where_it_says_so(op):
  with np.errstate(all="ignore"):
    zero = ELEMENTWISE[op].reals(*[np.zeros(1)] * ELEMENTWISE[op].arity)[0] == 0
  assert ELEMENTWISE[op].keeps_zero == zero


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_what_loses_nothing_is_never_nan(op):
  """Where ``loses`` is false, the values at the ends are numbers, whatever is infinite."""
  row = ELEMENTWISE[op]
  for number in range(300):
    x = [INTERVALS[i] for i in np.random.default_rng(number).integers(0, len(INTERVALS), row.arity)]
    if row.loses(*x):
      continue
    ends = np.array(np.meshgrid(*[(v.lo, v.hi) for v in x])).reshape(row.arity, -1)
    with np.errstate(all="ignore"):
      assert not np.isnan(row.reals(*ends)).any(), x


def test_a_quotient_of_numbers_that_are_not_zero_loses_nothing():
  assert not ELEMENTWISE["div"].loses(Interval(-1, inf), Interval(1, 2))
  assert ELEMENTWISE["div"].loses(Interval(-1, 1), Interval(-1, 2))
  assert ELEMENTWISE["sub"].loses(Interval(0, inf), Interval(0, inf))
  assert not ELEMENTWISE["sub"].loses(Interval(0, inf), Interval(-inf, 0))
  assert ELEMENTWISE["add"].loses(Interval(0, inf), Interval(-inf, 0))
  assert not ELEMENTWISE["add"].loses(Interval(0, inf), Interval(0, inf))


def test_what_follows_from_the_table():
  half = Fraction(1, 2)
  assert {"recip": -1, "square": 2, "sqrt": half, "rsqrt": -half} == f.EXPONENTS
  assert {"sigmoid", "relu"} == f.DEFINED
  assert {op for op in ELEMENTWISE if f.divides_by_last(op)} == {"div", "recip", "rsqrt"}
  parts = {op: f.opaque_parts(op) for op in ELEMENTWISE}
  assert parts["sigmoid"] == {"exp"} and parts["relu"] == parts["min"] == {"max"}
  assert parts["sqrt"] == parts["rsqrt"] == {"sqrt"} and parts["div"] == frozenset()
  calls = {op: f.evaluations(op) for op in ELEMENTWISE}
  assert calls["max"] == calls["relu"] == 4 and calls["erf"] == calls["sigmoid"] == calls["rsqrt"] == 1
  assert not any(calls[op] for op in ("add", "sub", "mul", "div", "neg", "recip", "square"))


def test_names_of_onnx_are_given_once():
  names = [row.onnx for row in ELEMENTWISE.values() if row.onnx]
  assert len(names) == len(set(names))
  assert {"Add", "Reciprocal", "Erf", "Relu"} <= {*names}
