"""The laws of the components: what cancels, what scales, and that nothing else does."""

from fractions import Fraction

import numpy as np
import pytest

from mirage_onnx.verify.domain import Field
from mirage_onnx.verify.field import VOID, P
from mirage_onnx.verify.free_exponential import FreeExponential

DRAWS = 3


class Called(FreeExponential):
  __call__ = FreeExponential.elementwise


def domain(*, logs=True):
  return Called(DRAWS, np.random.default_rng(5), logs=logs)


def inputs(d, count):
  rng = np.random.default_rng(6)
  return [d.random(rng, (4,)) for _ in range(count)]


def same(d, x, y):
  return not d.unequal(x, y).any()


def scalar(d, value):
  return d.constant(value if isinstance(value, str) else Fraction(value)).reshape(-1, 1)


@pytest.mark.parametrize("logs", [False, True])
def test_a_maximum_leaves_an_exponential(logs):
  d = domain(logs=logs)
  x, y, z = inputs(d, 3)
  m = d("max", y, z)
  shifted = d("exp", d("sub", x, m))
  quotient = d("div", d("exp", x), d("exp", m))
  assert same(d, shifted, quotient)
  assert not same(d, shifted, d("exp", x))
  other = d("div", d("exp", x), d("exp", y))
  assert not same(d, d("exp", d("sub", x, y)), other)


@pytest.mark.parametrize("factor", [Fraction(1, 8), Fraction(-3), Fraction(88388, 1000003), "pi"])
def test_constants_scale_what_a_maximum_leaves(factor):
  d = domain()
  x, y, z = inputs(d, 3)
  m, c = d("max", y, z), scalar(d, factor)
  left = d("mul", c, d("sub", x, m))
  right = d("sub", d("mul", x, c), d("mul", m, c))
  ex = d("exp", d("mul", c, x))
  em = d("exp", d("mul", c, m))
  assert same(d, d("exp", left), d("exp", right))
  assert same(d, d("exp", left), d("div", ex, em))
  divided = d("div", m, d("recip", c))
  assert same(d, d("exp", divided), em)


def test_arithmetic_of_constants_stays_constant():
  d = domain()
  y, z = inputs(d, 2)
  m = d("max", y, z)
  half = d("div", scalar(d, 1), d("add", scalar(d, 1), scalar(d, 1)))
  minus = d("neg", d("square", d.power(half, Fraction(1))))
  expected = d("exp", d("mul", scalar(d, Fraction(-1, 4)), m))
  assert same(d, d("exp", d("mul", minus, m)), expected)
  three = d.total(np.repeat(scalar(d, 1), 3, axis=1), (1,))[:, None]
  assert same(d, d("mul", three, m), d("mul", scalar(d, 3), m))
  assert same(d, d("exp", d("mul", three, m)), d("exp", d("mul", scalar(d, 3), m)))
  assert same(d, d.extent({"i": 3, "j": 5}), d.constant(Fraction(15)))


def test_sums_of_maxima_are_linear():
  d = domain()
  y, z = inputs(d, 2)
  m = d("max", y, z)
  summed = d("exp", d.total(m, (1,)))
  product = d("exp", m)
  pairs = d("mul", product[:, :2], product[:, 2:])
  assert same(d, summed, d("mul", pairs[:, 0], pairs[:, 1]))


def test_exp_of_nothing_is_one():
  d = domain()
  x, y = inputs(d, 2)
  one = np.broadcast_to(scalar(d, 1), x.shape)
  assert same(d, d("exp", d("sub", x, x)), one)
  m = d("max", x, y)
  assert same(d, d("exp", d("sub", m, m)), one)


def test_the_maximum_is_that_of_the_plain_field():
  d = domain()
  x, y = inputs(d, 2)
  plain = Field.elementwise(d, "max", d.residues(x), d.residues(y))
  assert (d.residues(d("max", x, y)) == plain).all()
  lowest = np.broadcast_to(d.lowest()[:, None], x.shape)
  assert same(d, d("max", x, lowest), d.highest(x[:, :, None], (2,)))
  empty = d.highest(x[:, :0], (1,))
  assert same(d, empty, d.neutral("max")) and same(d, empty, d.lowest())


def test_a_logarithm_of_something_positive_is_undone():
  d = domain()
  x, y = inputs(d, 2)
  ex, ey = d("exp", x), d("exp", y)
  z = d("add", d("mul", ex, scalar(d, Fraction(3, 7))), ey)
  log = d("log", z)
  assert same(d, d("exp", log), z)
  double = d("log", d("mul", z, z))
  assert same(d, d("mul", scalar(d, 2), log), double)
  assert same(d, d("neg", log), d("log", d("recip", z)))
  total = d.total(log, (1,))
  product = d("mul", z[:, :2], z[:, 2:])
  product = d("mul", product[:, 0], product[:, 1])
  assert same(d, total, d("log", product))
  scaled = d("mul", scalar(d, Fraction(1, 2)), double)
  assert not same(d, scaled, log)


def test_a_logarithm_of_anything_else_is_not():
  d = domain()
  x, y = inputs(d, 2)
  ex = d("exp", x)
  for z in (
    x,
    d("sub", ex, d("exp", y)),
    d("mul", x, ex),
    d("neg", ex),
    d("mul", scalar(d, -1), ex),
  ):
    assert not same(d, d("exp", d("log", z)), z)
  without = domain(logs=False)
  (v,) = inputs(without, 1)
  e = without("exp", v)
  assert not same(without, without("exp", without("log", e)), e)


def test_different_values_are_unequal_by_residue_and_by_exponential():
  d = domain()
  x, y = inputs(d, 2)
  assert d.unequal(x, y).all() and not d.unequal(x, x).any()
  assert d.residues(x).shape == (DRAWS, 4) and d.rows == 4 * DRAWS
  assert domain(logs=False).rows == 3 * DRAWS


def test_what_does_not_exist_stays_so_in_every_component():
  d = domain()
  x, y = inputs(d, 2)
  void = d("recip", d("sub", x, x))
  for z in (
    void,
    d("add", void, y),
    d("max", void, y),
    d("exp", void),
    d("log", void),
    d("exp", d("max", void, y)),
    d("mul", void, scalar(d, 2)),
  ):
    assert (d.residues(z) == VOID).all()
  assert (d.residues(d.total(void, (1,))) == VOID).all()
  rest = d("add", x, y)
  assert (d.residues(rest) < P).all()
