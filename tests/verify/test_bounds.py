"""The bound of one draw: its parts by hand, and its lemmas by brute force over small primes."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from goldens import golden
from raw_programs import C, X, exp, graph_of, size, sqrt, to_term, top, total

from mirage_onnx.ir import term
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.verify import bounds
from mirage_onnx.verify.bounds import largest_root, miss_probability, term_bound
from mirage_onnx.verify.degree import Ratio
from mirage_onnx.verify.field import P, Q
from mirage_onnx.verify.reduced import reduced_instantiation

EXTENTS = {"i": 3, "j": 5}


def bound_of(x, *, shifts=True):
  return term_bound(to_term(x), EXTENTS, shifts=shifts)


def test_the_bound_counts_what_one_element_depends_on():
  region, graph = golden("gated_mlp").region, golden("gated_mlp").ugraph
  sizes = reduced_instantiation(graph, region.extents)
  (value,) = region.terms
  bound = term_bound(value, sizes.extents)
  # g u / (1 + exp(-g)): one exp, of an argument of degree 2
  assert bound.degree.size.value == Ratio(4, 1) and bound.degree.past.value == 2
  assert bound.evaluations == 1
  theirs = bounds.ugraph_bounds(graph, sizes.params, sizes.extents)["o0"]
  assert theirs.evaluations == 1
  # two evaluations and exp(0) = 1: three pairs
  assert miss_probability(bound, theirs) == pytest.approx((5 + 3 * 2 * 2) / P, rel=1e-12)
  inner = term.reduce_("sum", ["a1"], value)
  assert term_bound(inner, sizes.extents).evaluations == sizes.extents["a1"]


@pytest.mark.parametrize(
  ("formula", "evaluations"),
  [
    (exp(X), 1),
    (total(exp(X)), 5),
    (exp(X) / total(exp(X)), 1 + 5),
    (top(X), 2 + 5),
    (exp(X - top(X)) / total(exp(X - top(X))), 2 * 7 + 1 + 5),
    (total(exp(C)), 1),
    (sqrt(X) + X, 1),
    (exp(C) * total(X), 1),
  ],
)
def test_evaluations(formula, evaluations):
  got = bounds.ugraph_bounds(graph_of(formula), [KernelParams(tile=(2,))], EXTENTS)["o"]
  assert got.evaluations == evaluations
  # A term shares what it says twice.
  assert bound_of(formula).evaluations <= evaluations


def test_shifts_and_scales_enter():
  plain, shifted = exp(X) / total(exp(X)), exp(X - top(X)) / total(exp(X - top(X)))
  x, y = bound_of(plain), bound_of(shifted)
  risk = miss_probability(x, y)
  pairs = (x.evaluations + y.evaluations + 1) * (x.evaluations + y.evaluations) // 2
  assert risk == pytest.approx((2 + pairs * 2) / P + 2 * 1 / Q, rel=1e-9)
  root = size() ** Fraction(-1, 2)
  two = exp(root * X - top(root * X)) + exp(root * X - root * top(X))
  several = miss_probability(bound_of(two), bound_of(two))
  assert several > 2 / largest_root(Q, 2) > 1e-5


def test_a_difference_in_logarithms_adds_that_of_their_exponentials():
  x = bound_of(X - top(X))
  assert miss_probability(x, x, logs=True) > miss_probability(x, x)


def test_largest_root():
  for n, k in ((10, 1), (27, 3), (28, 3), (Q, 2), (Q, 5), (Q, 29), (Q, 40)):
    root = largest_root(n, k)
    assert root**k < n <= (root + 1) ** k


def roots_of_sparse(p, q, terms):
  """The most elements of order q (or 1) at which c_1 z^e_1 + ... + c_K z^e_K vanishes."""
  group = np.array(sorted({pow(g, 2, p) for g in range(1, p)}))
  assert len(group) == q
  powers = np.array([[pow(int(z), e, p) for z in group] for e in range(q)])
  most = 0
  for exponents in combinations(range(1, q), terms - 1):
    for coefficients in product(range(1, p), repeat=terms - 1):
      values = powers[0] + np.dot(coefficients, powers[list(exponents)])
      most = max(most, int((values % p == 0).sum()))
  return most


@pytest.mark.parametrize(("p", "q", "terms"), [(23, 11, 2), (47, 23, 2), (11, 5, 3), (23, 11, 3)])
def test_sparse_polynomials_have_few_roots_in_the_squares(p, q, terms):
  """The lemma behind ``sparse_zeros``, for all coefficients and exponents of small groups."""
  assert roots_of_sparse(p, q, terms) <= 2 * q / largest_root(q, terms - 1)


def test_sparse_zeros():
  assert bounds.sparse_zeros(1) == 0
  assert bounds.sparse_zeros(2) == Fraction(2, Q - 1)
  assert bounds.sparse_zeros(6) == Fraction(2, largest_root(Q, 5)) < Fraction(1, 30)
  assert bounds.sparse_zeros(64) == bounds.sparse_zeros(1 << 40) == 1


def test_laurent_polynomials_have_few_zeros_in_the_squares():
  """Weight w, any number of variables: at most 2 w / q of all points (p = 23, q = 11)."""
  p, q = 23, 11
  group = sorted({pow(g, 2, p) for g in range(1, p)})
  rng = np.random.default_rng(0)
  u, v = (np.array(a).ravel() for a in np.meshgrid(group, group))
  for _ in range(300):
    weight = int(rng.integers(1, 4))
    monomials = [m for m in product(range(-3, 4), repeat=2) if sum(map(abs, m)) <= weight]
    chosen = rng.choice(len(monomials), size=min(len(monomials), 4), replace=False)
    total_ = np.zeros(len(u), dtype=np.int64)
    for c in chosen:
      a, b = monomials[c]
      power = [pow(int(x), a % q, p) * pow(int(y), b % q, p) for x, y in zip(u, v, strict=True)]
      total_ += int(rng.integers(1, p)) * np.array(power)
    assert (total_ % p == 0).mean() <= 2 * weight / q


def test_roots_cost_a_factor_of_five_each():
  assert bounds.root_miss_probability(1e-6, 3) == pytest.approx(125e-6)
  assert bounds.root_miss_probability(1e-6, 40) == 1.0
  x = sqrt(total(X**2))
  numbers = [KernelParams(tile=(2,))]
  assert bounds.root_evaluations(to_term(x), graph_of(x), "o", numbers, EXTENTS) == 2
  rows = total(sqrt(X) * C)
  assert bounds.root_evaluations(to_term(rows), graph_of(rows), "o", numbers, EXTENTS) == 10


def test_pairs_pay_for_exponents_that_meet():
  x = bound_of(exp(X * C) / total(exp(X)), shifts=False)
  numbers = [KernelParams(tile=(2,))]
  formula = exp(X * C) / total(exp(X))
  terms = bounds.exponential_terms(to_term(formula), graph_of(formula), "o", numbers, EXTENTS)
  assert terms == (10, 2)
  risk = bounds.pair_miss_probability(x, x, terms)
  assert risk == pytest.approx(float(bounds.sparse_zeros(10)), rel=1e-3)
  assert risk > float(bounds.sparse_zeros(10)) + 45 * 2 * 2 * 2 / Q
