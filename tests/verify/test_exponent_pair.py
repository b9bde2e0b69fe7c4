"""Z_p x Z_q: exponentials multiply, and nothing else about them is known."""

from fractions import Fraction

import numpy as np
import pytest

from mirage_onnx.errors import RejectionError
from mirage_onnx.verify.exponent_pair import ExponentPair
from mirage_onnx.verify.field import VOID, Q

DRAWS = 3


def drawn(count):
    rng = np.random.default_rng(5)
    d = ExponentPair(DRAWS, rng)
    return d, [d.random(rng, (4,)) for _ in range(count)]


def same(d, x, y):
    return not d.unequal(x, y).any()


def test_exponentials_multiply():
    d, (x, y) = drawn(2)
    ex, ey = d.elementwise("exp", x), d.elementwise("exp", y)
    assert same(d, d.elementwise("mul", ex, ey), d.elementwise("exp", d.elementwise("add", x, y)))
    assert same(d, d.elementwise("div", ex, ey), d.elementwise("exp", d.elementwise("sub", x, y)))
    assert same(d, d.elementwise("recip", ex), d.elementwise("exp", d.elementwise("neg", x)))
    assert same(d, d.power(ex, Fraction(2)), d.elementwise("exp", d.elementwise("add", x, x)))
    assert not same(d, ex, ey)
    assert not same(
        d, d.elementwise("exp", d.elementwise("mul", x, y)), d.elementwise("mul", ex, ey)
    )


def test_all_arithmetic_holds_in_exponents():
    d, (x, y, z) = drawn(3)
    left = d.elementwise("mul", d.elementwise("add", x, y), z)
    right = d.elementwise("add", d.elementwise("mul", x, z), d.elementwise("mul", y, z))
    assert same(d, d.elementwise("exp", left), d.elementwise("exp", right))
    half = d.constant(Fraction(1, 2)).reshape(-1, 1)
    halves = d.elementwise("add", d.elementwise("mul", half, x), d.elementwise("mul", half, x))
    assert same(d, d.elementwise("exp", halves), d.elementwise("exp", x))
    product = d.matmul(x[:, None, :], y[:, :, None])[:, 0, 0]
    assert same(
        d,
        d.elementwise("exp", product),
        d.elementwise("exp", d.total(d.elementwise("mul", x, y), (1,))),
    )
    quotient = d.elementwise("mul", d.elementwise("div", x, y), y)
    assert same(d, d.elementwise("exp", quotient), d.elementwise("exp", x))


@pytest.mark.parametrize("op", ["max", "min", "relu", "erf", "sqrt", "log", "tanh"])
def test_other_functions_are_random_inside_and_outside(op):
    d, (x, y) = drawn(2)
    args = (x, y) if op in ("max", "min") else (x,)
    value = d.elementwise(op, *args)
    e = d.elementwise("exp", value)
    assert same(d, e, d.elementwise("exp", d.elementwise(op, *args)))
    assert not same(
        d, e, d.elementwise("exp", d.elementwise(op, *(d.elementwise("neg", a) for a in args)))
    )
    for other in ("max", "erf", "sqrt"):
        if other != op:
            z = d.elementwise(other, *((x, y) if other == "max" else (x,)))
            assert not same(d, e, d.elementwise("exp", z))


def test_relu_is_a_maximum_in_exponents_too():
    d, (x,) = drawn(1)
    zero = np.broadcast_to(d.constant(Fraction(0)).reshape(-1, 1), x.shape)
    maximum = d.elementwise("max", zero, x)
    assert same(d, d.elementwise("exp", d.elementwise("relu", x)), d.elementwise("exp", maximum))
    assert same(
        d,
        d.elementwise("exp", maximum),
        d.elementwise("exp", d.highest(np.stack([x, zero], 2), (2,))),
    )


def test_an_exponential_inside_an_exponential_is_refused():
    d, (x, y) = drawn(2)
    nested = d.elementwise("add", d.elementwise("exp", x), y)
    for value in (nested, d.total(nested, (1,)), d.elementwise("mul", nested, y),
                  d.matmul(nested[:, None, :], y[:, :, None])):  # fmt: skip
        with pytest.raises(RejectionError, match="stands inside another one"):
            d.elementwise("exp", value)
    d.elementwise("exp", d.elementwise("tanh", nested))


def test_a_quotient_by_zero_does_not_exist():
    d, (x, y) = drawn(2)
    void = d.elementwise("div", y, d.elementwise("sub", x, x))
    assert (d.residues(void) == VOID).all()
    outside = np.concatenate([d.residues(void), np.zeros_like(d.residues(void))])
    assert (d.residues(d.elementwise("exp", outside)) == VOID).all()


def test_omega_is_another_one_in_every_draw():
    d, _ = drawn(0)
    one = d.constant(Fraction(1))
    powers = d.residues(d.elementwise("exp", one))
    assert len(set(powers.tolist())) == DRAWS
    assert d.constant(Fraction(1, 3))[DRAWS] * 3 % Q == 1
