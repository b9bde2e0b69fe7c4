"""Z_p x Z_q: exponentials multiply, and nothing else about them is known."""

from fractions import Fraction

import numpy as np
import pytest

from mirage_onnx.errors import RejectionError
from mirage_onnx.verify.exponent_pair import ExponentPair
from mirage_onnx.verify.field import VOID, Q

DRAWS = 3


class Called(ExponentPair):
  __call__ = ExponentPair.elementwise


def drawn(count):
  rng = np.random.default_rng(5)
  d = Called(DRAWS, rng)
  return d, [d.random(rng, (4,)) for _ in range(count)]


def same(d, x, y):
  return not d.unequal(x, y).any()


def test_exponentials_multiply():
  d, (x, y) = drawn(2)
  ex, ey = d("exp", x), d("exp", y)
  assert same(d, d("mul", ex, ey), d("exp", d("add", x, y)))
  assert same(d, d("div", ex, ey), d("exp", d("sub", x, y)))
  assert same(d, d("recip", ex), d("exp", d("neg", x)))
  assert same(d, d.power(ex, Fraction(2)), d("exp", d("add", x, x)))
  assert not same(d, ex, ey)
  assert not same(d, d("exp", d("mul", x, y)), d("mul", ex, ey))


def test_all_arithmetic_holds_in_exponents():
  d, (x, y, z) = drawn(3)
  left = d("mul", d("add", x, y), z)
  right = d("add", d("mul", x, z), d("mul", y, z))
  assert same(d, d("exp", left), d("exp", right))
  half = d.constant(Fraction(1, 2)).reshape(-1, 1)
  halves = d("add", d("mul", half, x), d("mul", half, x))
  assert same(d, d("exp", halves), d("exp", x))
  product = d.matmul(x[:, None, :], y[:, :, None])[:, 0, 0]
  assert same(d, d("exp", product), d("exp", d.total(d("mul", x, y), (1,))))
  quotient = d("mul", d("div", x, y), y)
  assert same(d, d("exp", quotient), d("exp", x))


@pytest.mark.parametrize("op", ["max", "min", "relu", "erf", "sqrt", "log", "tanh"])
def test_other_functions_are_random_inside_and_outside(op):
  d, (x, y) = drawn(2)
  args = (x, y) if op in ("max", "min") else (x,)
  value = d(op, *args)
  e = d("exp", value)
  assert same(d, e, d("exp", d(op, *args)))
  assert not same(d, e, d("exp", d(op, *(d("neg", a) for a in args))))
  for other in ("max", "erf", "sqrt"):
    if other != op:
      z = d(other, *((x, y) if other == "max" else (x,)))
      assert not same(d, e, d("exp", z))


def test_relu_is_a_maximum_in_exponents_too():
  d, (x,) = drawn(1)
  zero = np.broadcast_to(d.constant(Fraction(0)).reshape(-1, 1), x.shape)
  maximum = d("max", zero, x)
  assert same(d, d("exp", d("relu", x)), d("exp", maximum))
  assert same(d, d("exp", maximum), d("exp", d.highest(np.stack([x, zero], 2), (2,))))


def test_an_exponential_inside_an_exponential_is_refused():
  d, (x, y) = drawn(2)
  nested = d("add", d("exp", x), y)
  for value in (
    nested,
    d.total(nested, (1,)),
    d("mul", nested, y),
    d.matmul(nested[:, None, :], y[:, :, None]),
  ):
    with pytest.raises(RejectionError, match="stands inside another one"):
      d("exp", value)
  d("exp", d("tanh", nested))


def test_a_quotient_by_zero_does_not_exist():
  d, (x, y) = drawn(2)
  void = d("div", y, d("sub", x, x))
  assert (d.residues(void) == VOID).all()
  outside = np.concatenate([d.residues(void), np.zeros_like(d.residues(void))])
  assert (d.residues(d("exp", outside)) == VOID).all()


def test_omega_is_another_one_in_every_draw():
  d, _ = drawn(0)
  one = d.constant(Fraction(1))
  powers = d.residues(d("exp", one))
  assert len(set(powers.tolist())) == DRAWS
  assert d.constant(Fraction(1, 3))[DRAWS] * 3 % Q == 1
