"""Expressions: the Python and the C++ definition agree on every text and every value."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.custom_op.expr import (
  INT64_MAX,
  INT64_MIN,
  OPERATORS,
  Expr,
  ExprError,
  const,
  dim,
  parse_int,
)

SHAPES = [[3, 0, 4096], [], [2**40, 7]]
RANKS = [len(shape) for shape in SHAPES]

numbers = st.one_of(
  st.integers(-3, 20), st.integers(INT64_MIN, INT64_MAX), st.sampled_from([INT64_MIN, INT64_MAX])
)
leaves = st.one_of(numbers.map(str), st.sampled_from(["d0.0", "d0.1", "d0.2", "d2.0", "d2.1"]))
expressions = st.recursive(
  leaves,
  lambda inner: st.tuples(inner, inner, st.sampled_from(sorted(OPERATORS))).map(",".join),
  max_leaves=20,
)
token_soup = st.lists(
  st.one_of(
    leaves,
    st.sampled_from([*OPERATORS, "d1.0", "d3.0", "d0.3", "d0", "d.", "d0.0.0", "d-1.0", "d0.01",
                     "", "-0", "00", "+1", "1e3", " 1", "9223372036854775808", "d", "٣"]),
  ),
  max_size=140,
).map(",".join)  # fmt: skip


def python_eval(text):
  expr = Expr(text)
  try:
    expr.check(RANKS)
  except ExprError as error:
    return 1, 0, str(error)
  try:
    return 0, expr.eval(SHAPES), ""
  except ExprError as error:
    return 2, 0, str(error)


def native_eval(native, text):
  code, value, why = native.eval(text, SHAPES)
  return code, value if code == 0 else 0, why


@settings(max_examples=400, deadline=None)
@given(expressions)
def test_evaluators_agree(native, text):
  assert native_eval(native, text) == python_eval(text)


@settings(max_examples=400, deadline=None)
@given(token_soup)
def test_parsers_agree(native, text):
  if not text.isascii():  # a plan is checked to be ASCII before its expressions are looked at
    assert native_eval(native, text)[0] == python_eval(text)[0] == 1
  else:
    assert native_eval(native, text) == python_eval(text)


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("5,3,+", 8), ("5,3,-", 2), ("-5,3,*", -15),
    ("7,2,ceildiv", 4), ("-7,2,ceildiv", -3), ("0,2,ceildiv", 0),
    ("7,4,mod", 3), ("-7,4,mod", 1), ("2,3,min", 2), ("2,3,max", 3),
    ("2,2,eq", 1), ("2,3,eq", 0), ("2,3,le", 1), ("3,2,le", 0),
    ("2,-1,and", 1), ("2,0,and", 0),
    ("d0.2,d0.0,ceildiv", 1366), ("-9223372036854775808", INT64_MIN),
  ],
)  # fmt: skip
def test_values(native, text, value):
  assert python_eval(text) == (0, value, "")
  assert native_eval(native, text) == (0, value, "")


@pytest.mark.parametrize(
  ("text", "code", "why"),
  [
    ("9223372036854775807,1,+", 2, "overflow"),
    ("-9223372036854775808,1,-", 2, "overflow"),
    ("d2.0,d2.0,*", 2, "overflow"),
    ("1,0,ceildiv", 2, "divisor below 1"),
    ("1,-1,mod", 2, "divisor below 1"),
    ("1,d0.1,mod", 2, "divisor below 1"),
    ("+", 1, "operator without two operands"),
    ("1,2", 1, "expression leaves 2 values, not 1"),
    ("", 1, "bad token ''"),
    ("d1.0", 1, "'d1.0' is not a dim of an input"),
    ("x" * 100, 1, f"bad token '{'x' * 32}'"),
    (",".join(["1"] * 17), 1, "expression deeper than 16"),
    (",".join(["1", *(["1", "+"] * 64)]), 1, "expression of more than 128 tokens"),
  ],
)
def test_refusals(native, text, code, why):
  assert python_eval(text) == (code, 0, why)
  assert native_eval(native, text) == (code, 0, why)


def test_the_longest_and_deepest_expressions_are_accepted(native):
  for text in (",".join(["1", *(["1", "+"] * 63)]), ",".join(["1"] * 16 + ["+"] * 15)):
    assert native_eval(native, text) == python_eval(text)
    assert python_eval(text)[0] == 0


@given(st.integers(INT64_MIN, INT64_MAX))
def test_integers_read_back(value):
  assert parse_int(str(value)) == value


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(0, 5000))
def test_builders_mean_what_they_say(a, b):
  shapes = [[a, b]]
  x, y = dim(0, 0), dim(0, 1)
  assert (x + y * 2 - 1).eval(shapes) == a + 2 * b - 1
  assert x.ceildiv(16).eval(shapes) == (a + 15) // 16
  assert x.mod(y + 1).eval(shapes) == a % (b + 1)
  assert x.min(y).max(const(9)).eval(shapes) == max(min(a, b), 9)
  assert x.le(y).and_(x.eq(3)).eval(shapes) == int(a <= b and a == 3)
