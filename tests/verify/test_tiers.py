"""Which laws each tier knows and which it does not: prove or refute, one line each."""

from fractions import Fraction

import pytest
from goldens import GOLDENS
from raw_programs import (
  C,
  W,
  X,
  Y,
  call,
  exp,
  graph_of,
  lift,
  log,
  region_of,
  size,
  sqrt,
  top,
  total,
)  # fmt: skip

from mirage_onnx.errors import Rejection
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.tiers import (
  ACCEPTED_RISK,
  DRAWS,
  MOST_PAIR_DRAWS,
  Tier,
  draws_for,
  functions,
  small_instantiation,
)

FREE, ROOT, PAIR = Tier.FREE_EXPONENTIAL, Tier.SQUARE_ROOT, Tier.EXPONENT_PAIR
HALF, EIGHTH = Fraction(1, 2), Fraction(1, 8)


def softmax(x, shift=None):
  e = exp(x) if shift is None else exp(x - shift)
  return e / total(e)


def log_softmax(x, shift):
  return x - shift - log(total(exp(x - shift)))


def mean(x):
  return total(x) / size()


def sigmoid(x):
  return call("sigmoid", x)


def highest(x, y):
  return call("max", x, y)


VARIANCE = mean((X - mean(X)) ** 2)
POSITIVE = total(exp(X))

T, U = top(X), top(Y)
SCALED, ROOTED = EIGHTH * X, X * size() ** -HALF
NORM = sqrt(total(X**2))
LSE_X, LSE_Y = log(POSITIVE), U + log(total(exp(Y - U)))

#: name, what the region says, what the µGraph computes, the tier that proves them equal
PROVED = [
  ("no shift", softmax(X, T), softmax(X), FREE),
  ("shift by another maximum", softmax(X, T), softmax(X, U), FREE),
  ("shift by the maximum of all", softmax(X, T), softmax(X, top(T, "i")), FREE),
  ("shift scaled later", softmax(SCALED, top(SCALED)), softmax(SCALED, EIGHTH * T), FREE),
  ("both scaled later", softmax(SCALED, top(SCALED)), softmax(EIGHTH * (X - T)), FREE),
  ("scale of 1/sqrt(n)", softmax(ROOTED, T), softmax(ROOTED, size() ** -HALF * T), FREE),
  ("one maximum more", softmax(X, T), softmax(X - U, top(X - U)), FREE),
  ("the largest of two maxima", softmax(X, T), softmax(X, highest(T, U)), FREE),
  ("rescaling", softmax(X, T), exp(X - T) / (total(exp(X - U)) * exp(U - T)), FREE),
  ("a softmax of a softmax", softmax(softmax(X, T), T), softmax(softmax(X), U), FREE),
  ("sigmoid", sigmoid(X), 1 / (1 + exp(-X)), FREE),
  ("sigmoid of a maximum", sigmoid(T), 1 / (1 + exp(-T)), FREE),
  ("log-softmax without shift", log_softmax(X, T), X - log(POSITIVE), FREE),
  ("log-softmax, other shift", log_softmax(X, T), log_softmax(X, U), FREE),
  ("twice a logarithm", 2 * log(POSITIVE), log(POSITIVE * POSITIVE), FREE),
  ("sum of logarithms", LSE_X + LSE_Y, log(POSITIVE * total(exp(Y))), FREE),
  ("log-sum-exp merged", log(POSITIVE + total(exp(Y))), log(exp(LSE_X) + exp(LSE_Y)), FREE),
  ("variance", VARIANCE, mean(X**2) - mean(X) ** 2, FREE),
  ("count of a broadcast", total(C * W), C * total(W), FREE),
  ("square of a root", X * Fraction(3), X * sqrt(lift(3)) * sqrt(lift(3)), ROOT),
  ("root of an extent squared", mean(X), total(X) / sqrt(size()) / sqrt(size()), ROOT),
  ("root of a product", sqrt(X) * sqrt(Y), sqrt(X * Y), ROOT),
  ("root of a quotient", sqrt(X) / sqrt(Y), sqrt(X / Y), ROOT),
  ("root of a product of squares", sqrt(X**2 * Y**2), sqrt(X**2) * sqrt(Y**2), ROOT),
  ("root of an inverse", X**-HALF, sqrt(1 / X), ROOT),
  ("rows scaled by a root", X / sqrt(VARIANCE), X * sqrt(VARIANCE) / VARIANCE, ROOT),
  ("root times root", total(X**2) * Y, NORM * Y * NORM, ROOT),
  ("root of a square where a root exists", sqrt(X) * X, sqrt(X) * sqrt(X**2), ROOT),
  ("root of n", X / sqrt(total(X**2) / size()), X * sqrt(size()) / NORM, ROOT),
  ("absolute values", sqrt(X**2) * sqrt(Y**2), sqrt((X * Y) ** 2), ROOT),
  ("minus twice an absolute value", sqrt(X**2) * -2, -sqrt(4 * X**2), ROOT),
  ("root of a root of a fourth power", X**2, sqrt(sqrt(X**2)) ** 4, ROOT),
  ("root under a softmax", softmax(sqrt(C**2) * X, T), softmax(sqrt(sqrt(C**2) ** 2) * X), ROOT),
  ("product of exponentials", exp(X) * exp(Y), exp(X + Y), PAIR),
  ("quotient of exponentials", exp(X) / exp(Y), exp(X - Y), PAIR),
  ("shift by an input", softmax(X, T), softmax(X, C), PAIR),
  ("shift by a mean", softmax(X, T), softmax(X, mean(X)), PAIR),
  ("square of an exponential", exp(X) ** 2, exp(2 * X), PAIR),
  ("sigmoid over exp(x)", sigmoid(X), exp(X) / (1 + exp(X)), PAIR),
]  # fmt: skip

#: name, region, µGraph
REFUTED = [
  ("shift in the numerator only", softmax(X, T), exp(X - T) / POSITIVE),
  ("shift in the denominator only", softmax(X, T), exp(X) / total(exp(X - T))),
  ("shift by maxima of columns", softmax(X, T), exp(X - T) / total(exp(X - top(X, "i")))),
  ("shift that varies over the sum", softmax(X, T), softmax(X, top(X, "i"))),
  ("shift of the wrong sign", softmax(X, T), exp(X - T) / total(exp(X + T))),
  ("shift scaled once", softmax(SCALED, T), exp(SCALED - EIGHTH * T) / total(exp(SCALED - T))),
  ("no rescaling", softmax(X, T), exp(X - T) / total(exp(X - U))),
  ("rescaling the wrong way", softmax(X, T), exp(X - T) / (total(exp(X - U)) * exp(T - U))),
  ("maximum is minimum", T, -top(-X)),
  ("maximum forgotten", exp(highest(C, T)), exp(C)),
  ("exp of twice the maximum", exp(X - T), exp(X - 2 * T)),
  ("log-softmax without log", log_softmax(X, T), X - T - total(exp(X - T))),
  ("log-softmax, shift lost", log_softmax(X, T), X - log(total(exp(X - T)))),
  ("exp of a log of anything", X, exp(log(X))),
  ("log of a product of anything", log(X * Y), log(X) + log(Y)),
  ("literal for an extent", mean(X), total(X) / 64),
  ("literal that is a small extent", mean(X), total(X) / 5),
  ("a constant off by 1e-3", X * EIGHTH, X * Fraction(1001, 8000)),
  ("a constant off by 1 in 2^24", X + 1, X + Fraction(2**24 + 1, 2**24)),
  ("pi is no rational", X * lift("pi"), X * Fraction(355, 113)),
  ("epsilon forgotten", X / sqrt(total(X**2) + EIGHTH), X / NORM),
  ("epsilon outside", X / sqrt(total(X**2) + EIGHTH), X / (NORM + EIGHTH)),
  ("absolute value is no identity", X, sqrt(X**2)),
  ("absolute value is no minus", X, -sqrt(X**2)),
  ("twice minus an absolute value", sqrt(X**2) * 2, -sqrt(4 * X**2)),
  ("root of a sum", sqrt(X + Y), sqrt(X) + sqrt(Y)),
  ("root of a product of negatives", sqrt(X * Y), sqrt(X) * sqrt(Y)),
  ("a constant that counts as negative", sqrt((67 * X) ** 2), -67 * sqrt(X**2)),
  ("a sum that does", sqrt((61 * X + 6 * X) ** 2), -61 * sqrt(X**2) - 6 * sqrt(X**2)),
  ("root of the other row", X / NORM, X / sqrt(total(Y**2))),
  ("root of another axis", X * NORM, X * sqrt(total(X**2, "i"))),
  ("root times root, wrong", total(X**2) * Y, NORM * Y * sqrt(total(Y**2))),
  ("product of exponentials, wrong", exp(X) * exp(Y), exp(X * Y)),
  ("product of exponentials, off", exp(X) * exp(Y), exp(X + Y + 1)),
  ("shift by an input, once", softmax(X, T), exp(X - C) / POSITIVE),
  ("shift by an input that varies", softmax(X, T), softmax(X, W)),
  ("wrong rows summed", softmax(X), exp(X) / total(exp(X), "i")),
  ("zero divided by zero", X, X * (X - X) / (X - X)),  # the last: terms cancel x - x
]  # fmt: skip

#: name, two formulas that are equal on the reals, for reasons that no tier knows
NOT_KNOWN = [
  ("max of equals", X, highest(X, X)),
  ("a maximum is shifted", top(X + C), T + C),
  ("scaled by what varies", softmax(X * Y, top(X * Y)), softmax(X * Y, T * Y)),
  ("nested exponentials", exp(exp(X)) * exp(exp(Y)), exp(exp(X) + exp(Y))),
  ("|x| is a root of a square", call("abs", X), sqrt(X**2)),
  ("cube roots", X, (X ** Fraction(1, 3)) ** 3),
]


@pytest.mark.parametrize(("name", "want", "got", "tier"), PROVED, ids=[p[0] for p in PROVED])
def test_proves(name, want, got, tier):
  result = verify(region_of(want), graph_of(got))
  assert isinstance(result, Proof), result
  assert result.tier is tier
  assert result.bound <= ACCEPTED_RISK and not result.heuristic and result.draws >= 2


@pytest.mark.parametrize(("name", "want", "got"), REFUTED, ids=[r[0] for r in REFUTED])
def test_refutes(name, want, got):
  result = verify(region_of(want), graph_of(got))
  assert isinstance(result, Rejection), result
  assert result.code in ("NOT_EQUIVALENT", "INCONCLUSIVE")


@pytest.mark.parametrize(("name", "want", "got"), REFUTED[:-1], ids=[r[0] for r in REFUTED[:-1]])
def test_refutes_the_other_way_round(name, want, got):
  if name != "root of a product of negatives":  # then the µGraph is defined where the region is
    assert isinstance(verify(region_of(got), graph_of(want)), Rejection)


@pytest.mark.parametrize(("name", "want", "got"), NOT_KNOWN, ids=[n[0] for n in NOT_KNOWN])
def test_does_not_know(name, want, got):
  assert isinstance(verify(region_of(want), graph_of(got)), Rejection)


def test_every_formula_is_equal_to_itself():
  for _, want, *_ in PROVED:
    result = verify(region_of(want), graph_of(want))
    assert isinstance(result, Proof), want


def test_roots_that_hardly_ever_exist_are_inconclusive():
  """Eight roots of roots per element: one draw in 2^8 has them all."""
  x = X**2
  want, got = x, x
  for n in range(8):
    root = sqrt(sqrt((X + n) ** 2) + 1)
    got = got + root * root - sqrt((X + n) ** 2) - 1
  result = verify(region_of(want), graph_of(got))
  assert isinstance(result, Rejection)
  assert "an output element exists in only" in result.reason


def test_the_small_instantiation_splits_what_a_kernel_splits():
  for golden in GOLDENS:
    sizes = small_instantiation(golden.region, golden.ugraph)
    assert len(set(sizes.extents.values())) == len(sizes.extents)
    for kernel, p in zip(golden.ugraph.kernels, sizes.params, strict=True):
      for axis, tile in zip(kernel.grid, p.tile, strict=True):
        size = sizes.extents.get(axis, 2)
        assert 2 * tile > size > tile or (tile, size) == (1, 2)
      assert p.cluster == (2 if kernel.cluster else 1)
      assert p.loop_tile == (1 if kernel.loop else 0)


def test_draws_follow_the_risk():
  assert draws_for(0.0) == draws_for(1e-20) == DRAWS
  assert draws_for(1e-2) == 5 and draws_for(0.5) == 30
  assert draws_for(1.0) > MOST_PAIR_DRAWS


def test_functions_are_told_by_kind():
  region, graph = region_of(call("sigmoid", X) * W), graph_of(call("rsqrt", top(X)))
  assert {"exp", "sqrt", "max"} <= functions(region, graph)
  assert not {"exp", "sqrt", "max", "log"} & functions(region_of(X), graph_of(X * Y))
