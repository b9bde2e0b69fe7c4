"""Logarithms and roots exist for positive numbers only, and random functions everywhere."""

import numpy as np
import pytest
from raw_programs import X, Y, call, exp, graph_of, log, region_of, sqrt, total

from mirage_onnx.errors import Rejection
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.field import P, Q
from mirage_onnx.verify.reals import check_reals
from mirage_onnx.verify.reduced import reduced_instantiation


def checked(want, got):
  region, graph = region_of(want), graph_of(got)
  sizes = reduced_instantiation(graph, region.extents)
  return check_reals(region, graph, sizes, np.random.default_rng(0))


def test_a_program_may_be_defined_on_more_but_not_on_less():
  assert checked(sqrt(X) * sqrt(Y), sqrt(X * Y)) is None
  refused = checked(sqrt(X * Y), sqrt(X) * sqrt(Y))
  assert refused is not None and "another value or none" in refused.reason
  assert checked(X, X + log(Y) - log(Y)) is not None
  assert checked(log(total(exp(X))), log(total(exp(X)))) is None


def test_signs_are_those_of_the_reals():
  assert checked(sqrt(X**2), call("abs", X)) is None
  assert checked(sqrt((67 * X) ** 2), -67 * sqrt(X**2)) is not None


@pytest.mark.parametrize(
  ("want", "got"),
  [
    (X, X + log(Y) - log(Y)),
    (X, X + sqrt(Y) * 0),
    (sqrt((67 * X) ** 2), -67 * sqrt(X**2)),
    (sqrt(X * Y), sqrt(X) * sqrt(Y)),
    (X, (1 + P) * X),
    (exp(X) / total(exp(X)), exp(X + P * X) / total(exp(X + P * X))),
    (exp(X) * exp(X), exp((2 + Q) * X)),
  ],
)
def test_what_the_field_takes_for_equal_is_rejected(want, got):
  result = verify(region_of(want), graph_of(got))
  assert isinstance(result, Rejection)
  assert "is equal in the field, but not in float64" in result.reason
