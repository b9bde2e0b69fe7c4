"""Degrees of formulas, worked out by hand."""

from fractions import Fraction

import pytest
from raw_programs import C, W, X, exp, graph_of, log, size, sqrt, to_term, top, total

from mirage_onnx.ir import term
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.verify.degree import DegreeAlgebra, Ratio, exponential_size
from mirage_onnx.verify.fold import fold_terms, fold_ugraph

EXTENTS = {"i": 3, "j": 5}


def degree_of(x, *, shifts=True):
  root = to_term(x)
  return fold_terms(DegreeAlgebra(shifts=shifts), [root], EXTENTS)[root]


@pytest.mark.parametrize(
  ("formula", "value", "shift"),
  [
    (X * X, (2, 0), (0, 0)),
    (X + 1 / X, (2, 1), (0, 0)),
    (X**-3, (0, 3), (0, 0)),
    (sqrt(X * X * C), (1, 0), (0, 0)),
    (X ** Fraction(-3, 2), (0, 3), (0, 0)),
    (total(X * W), (2, 0), (0, 0)),
    # one denominator for the whole row, then one for each of its elements
    (total(X / C), (1, 1), (0, 0)),
    (total(C / X), (5, 5), (0, 0)),
    (mean := total(X) / size(), (1, 0), (0, 0)),
    (exp(X), (1, 0), (0, 0)),
    (exp(X - top(X)), (1, 0), (1, 0)),
    (exp(2 * top(X) - X * 3), (1, 0), (2, 0)),
    (exp(X - top(X)) / total(exp(X - top(X))), (1, 1), (1, 1)),
    (exp(X - top(X)) ** -2, (0, 2), (0, 2)),
    (exp(X * top(X)), (1, 0), (0, 0)),
    (exp(total(top(X) - X)), (1, 0), (5, 0)),
  ],
)
def test_degrees(formula, value, shift):
  size_ = degree_of(formula).size
  # A maximum of a row that is summed up is counted once per element of the row: from above.
  assert (size_.value, size_.shift) == (Ratio(*value), Ratio(*shift))


def test_the_largest_argument_is_remembered():
  d = degree_of(exp(X * X * C - top(X)) * X + exp(1 / X))
  assert (d.past.value, d.past.shift) == (3, 0)
  nested = degree_of(exp(C * exp(X - top(X))))
  assert (nested.past.value, nested.past.shift) == (2, 1)


def test_scales_of_maxima_are_told_apart():
  eighth, root = Fraction(1, 8), size() ** Fraction(-1, 2)
  one = degree_of(exp(eighth * X - eighth * top(X)))
  assert [(str(s), d) for s, d in one.past.scales] == [("1/8", 0)]
  both = degree_of(exp(X - top(X)) + exp(root * (X - top(X))))
  assert len(both.past.scales) == 2
  whole = degree_of(exp(X - 3 * top(X)))
  assert {s for s, _ in whole.past.scales} == {term.const(1)} and whole.size.shift == Ratio(3, 0)
  assert degree_of(exp(X - top(X)), shifts=False).past.scales == frozenset()


def test_logarithms_are_sized_by_what_they_are_of():
  d = degree_of(X - top(X) - log(total(exp(X - top(X)))))
  assert d.size.value == Ratio(1, 0)
  image = exponential_size(d.linear)
  assert (image.value, image.shift) == (Ratio(1, 1), Ratio(1, 1))


def test_a_program_has_at_least_the_degrees_of_its_term():
  for formula in (X / total(X * W), exp(X - top(X)) / total(exp(X - top(X))), sqrt(total(X**2))):
    graph = graph_of(formula)
    numbers = [KernelParams(tile=(2,))]
    tensors, (kernel,) = fold_ugraph(DegreeAlgebra(), graph, numbers, EXTENTS)
    assert tensors["o"].size == degree_of(formula).size
    assert tensors["o"].past == degree_of(formula).past
    assert (kernel.iterations, kernel.ranks) == (1, 1)
