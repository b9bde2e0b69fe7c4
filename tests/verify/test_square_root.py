"""Roots of squares, and inputs at which arguments of roots are squares."""

from fractions import Fraction

import numpy as np
import pytest
from raw_programs import C, W, X, Y, exp, graph_of, size, sqrt, to_term, total

from mirage_onnx.errors import RejectionError
from mirage_onnx.verify import field
from mirage_onnx.verify.field import VOID
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.square_root import FreeExponentialRoots, SquareRoots, redraw, root_arguments

EXTENTS = {"i": 7, "j": 5}
AXES = {"x": ("i", "j"), "y": ("i", "j"), "c": ("i",), "w": ("j",)}
DRAWS = 4


def drawn(domain):
  rng = np.random.default_rng(1)
  return {
    n: NamedArray(domain.random(rng, tuple(EXTENTS[a] for a in axes)), axes) for n, axes in AXES.items()
  }


def test_roots_of_squares_obey_the_laws_of_positive_numbers():
  rng = np.random.default_rng(0)
  d = SquareRoots(DRAWS, rng)
  x, y = (d.elementwise("square", d.random(rng, (9,))) for _ in range(2))
  root = d.elementwise("sqrt", x)
  assert (d.elementwise("square", root) == x).all()
  both = d.elementwise("mul", root, d.elementwise("sqrt", y))
  assert (both == d.elementwise("sqrt", d.elementwise("mul", x, y))).all()
  assert (d.elementwise("rsqrt", x) == d.elementwise("sqrt", d.elementwise("recip", x))).all()
  assert (d.power(x, Fraction(3, 2)) == d.elementwise("mul", x, root)).all()
  cube = d.power(x, Fraction(1, 3))
  assert (field.power(cube, 3) != x).any()


def test_what_is_no_square_has_no_root():
  rng = np.random.default_rng(0)
  d = SquareRoots(1, rng)
  x = d.random(rng, (1000,))
  root = d.elementwise("sqrt", x)
  exists = root != VOID
  assert 400 < exists.sum() < 600
  assert (field.mul(root[exists], root[exists]) == x[exists]).all()
  assert (d.elementwise("add", root, x) == VOID).sum() == (~exists).sum()
  back = d.elementwise("sqrt", d.elementwise("square", x))
  assert (back != VOID).all() and 400 < (back == x).sum() < 600


def test_numbers_are_positive():
  d = SquareRoots(DRAWS, np.random.default_rng(0))
  for value in (d.constant("pi"), d.extent({"i": 3, "j": 61}), d.constant(Fraction(7, 10**5))):
    root = d.power(value, Fraction(1, 2))
    assert (d.power(root, Fraction(2)) == value).all()
  assert (d.power(d.constant(Fraction(-2)), Fraction(1, 2)) == VOID).all()


def test_roots_and_maxima_together():
  rng = np.random.default_rng(0)
  d = FreeExponentialRoots(DRAWS, rng, logs=False)
  x, y = (d.elementwise("square", d.random(rng, (9,))) for _ in range(2))
  root = d.elementwise("sqrt", x)
  assert not d.unequal(d.elementwise("mul", root, root), x).any()
  m = d.elementwise("max", root, y)
  e = d.elementwise("exp", d.elementwise("sub", y, m))
  quotient = d.elementwise("div", d.elementwise("exp", y), d.elementwise("exp", m))
  assert not d.unequal(e, quotient).any()


NORM = total(X**2) / size() + Fraction(1, 100)


@pytest.mark.parametrize(
  ("region", "program", "expected"),
  [
    (X / sqrt(NORM), X / sqrt(NORM), [NORM]),
    (sqrt(X) * sqrt(Y), sqrt(X * Y), [X, Y, X * Y]),
    (X, sqrt(sqrt(X) + 1), [X]),
    (X, sqrt(X**2) + exp(X) ** Fraction(3, 2), [X**2, exp(X)]),
    (X, X ** Fraction(1, 3), []),
  ],
)
def test_arguments_of_first_level_roots_are_found(region, program, expected):
  found = root_arguments([to_term(region)], graph_of(program))
  assert set(found) == {to_term(e) for e in expected}


@pytest.mark.parametrize(
  "arguments",
  [
    (NORM,),
    (NORM, total(Y**2)),
    (X, Y, X * Y),
    (X, total(X)),
    (total(X * Y), C),
    (total(X**2), total(X) * C),
    (total(total(X), "i"), X),
  ],
)
def test_rows_are_redrawn_until_every_root_exists(arguments):
  rng = np.random.default_rng(2)
  d = SquareRoots(DRAWS, rng)
  before = drawn(d)
  terms = [to_term(a) for a in arguments]
  after = redraw(d, before, terms, EXTENTS, rng)
  for value in interpret_terms(d, terms, after, EXTENTS):
    assert field.is_square(value.data).all()
  # What is redrawn is a part: never a whole tensor.
  changed = np.mean([(before[n].data != after[n].data).mean() for n in ("x", "y")])
  assert 0 < changed < 0.8


def test_one_element_of_a_row_is_redrawn():
  rng = np.random.default_rng(2)
  d = SquareRoots(DRAWS, rng)
  before = drawn(d)
  after = redraw(d, before, [to_term(NORM)], EXTENTS, rng)
  changed = before["x"].data != after["x"].data
  assert changed[:, :, 0].any() and not changed[:, :, 1:].any()
  assert all((before[n].data == after[n].data).all() for n in ("y", "c", "w"))


@pytest.mark.parametrize(
  ("argument", "reason"),
  [
    (-(X**2), "no inputs were found at which sqrt"),
    (C + W, "depends on no input over"),
    (size() * -1, "depends on no input over"),
  ],
)
def test_inputs_that_do_not_exist_are_not_made_up(argument, reason):
  rng = np.random.default_rng(2)
  d = SquareRoots(DRAWS, rng)
  with pytest.raises(RejectionError, match=reason):
    redraw(d, drawn(d), [to_term(argument)], EXTENTS, rng)
