"""Counts of exponential terms, worked out by hand."""

import pytest
from golden_texts import PROGRAMS
from raw_programs import C, X, Y, exp, to_term, top, total

from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.verify.exponential_terms import MANY, TermsAlgebra, differences
from mirage_onnx.verify.fold import fold_terms, fold_ugraph

EXTENTS = {"i": 3, "j": 5}


def terms_of(x):
  root = to_term(x)
  return fold_terms(TermsAlgebra(), [root], EXTENTS)[root]


@pytest.mark.parametrize(
  ("formula", "counts", "factors"),
  [
    (X * Y + total(X) / C, (1, 1), (0, 0)),
    (exp(X), (1, 1), (1, 0)),
    (exp(X) + Y, (2, 1), (1, 0)),
    (X * exp(X) * exp(Y), (1, 1), (2, 0)),
    (total(exp(X)), (5, 1), (1, 0)),
    (exp(X) / total(exp(X)), (1, 5), (1, 1)),
    (total(exp(X) / total(exp(X)) * Y), (5, 5), (1, 1)),
    (total(Y / (1 + exp(X))), (5 * 2**4, 2**5), (4, 5)),
    (total(exp(X)) ** 2, (25, 1), (2, 0)),
    (exp(total(X)) ** -2, (1, 1), (0, 2)),
    (top(exp(X)), (1, 1), (0, 0)),
  ],
)
def test_counts(formula, counts, factors):
  found = terms_of(formula)
  assert (found.numerator, found.denominator) == counts
  assert (found.factors.n, found.factors.d) == factors


def test_differences_are_over_a_common_denominator():
  softmax = terms_of(exp(X) / total(exp(X)))
  assert differences(softmax, softmax) == (10, 2)
  assert differences(terms_of(X), terms_of(Y)) == (1, 0)
  many = terms_of(total(total(Y / (1 + exp(X)), "i")) ** 9)
  assert differences(many, many)[0] == MANY


ONLINE = PROGRAMS["online"]


def test_iterations_count_what_a_tile_has():
  numbers = [KernelParams(tile=(2,), loop_tile=2)]
  tensors, (kernel,) = fold_ugraph(TermsAlgebra(), parse_ugraph(ONLINE), numbers, EXTENTS)
  assert kernel.iterations == 3
  assert tensors["o0"].numerator == 3 * 2 and tensors["o0"].factors.n == 3
