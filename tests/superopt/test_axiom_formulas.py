"""The reader of the axiom table's formulas: what it accepts, and that its values are right.

Wrong rows must be told from right ones, or the tests of the table say nothing.
"""

from fractions import Fraction

import numpy as np
import pytest
from axiom_conditions import read_clause
from axiom_draws import equal, instances, sizes
from axiom_formulas import Formula, FormulaError
from axiom_instances import rows
from axiom_nodes import joins
from axiom_parser import parse
from axiom_values import random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.axioms import Axiom
from mirage_onnx.superopt.egraph import ENode
from mirage_onnx.verify.domain import Float64

#: Rows that are wrong, each almost one of the table.
WRONG = [
  ("x*y/y", "x", ""),
  ("sum[k](x*y)", "sum[k](x) * sum[k](y)", ""),
  ("sum[k](exp(x))", "exp(sum[k](x))", ""),
  ("x*y + z", "x * (y+z)", ""),
  ("rmax[k](x*y)", "x * rmax[k](y)", "k not in x"),
  ("rmax[k](x) + rmax[k](y)", "rmax[k](x+y)", ""),
  ("sum[k](x)", "sum[k'](pmax[k](x))", ""),
  ("rmax[k](x)", "sum[k'](pmax[k](x))", ""),
  ("sum[k](y * exp(s-m))", "scaled[k](y * exp(s-m); m)", "m = rmax[k](s)"),
  ("sum[k](y * exp(s))", "scaled[k](y * exp(s-run(m)); m)", "m = rmax[k](s)"),
  ("sum[k](y * exp(s-m))", "sum[k'](psum[k](y * exp(s-pmax[k](s))))", "m = rmax[k](s)"),
  ("psum[k](exp(s-pmax[k](s)))", "pscaled[k](exp(s-run(pmax[k](x))); pmax[k](x))", ""),
  ("exp(s-m) / sum[k](exp(s-m))", "exp(s) / sum[k](exp(s-m))", "k not in m"),
  ("exp(x) * exp(y)", "exp(x*y)", ""),
]  # fmt: skip
#: Rows that are right: what the table may say some day.
RIGHT = [
  ("sum[k](x/y)", "sum[k](x) / y", "k not in y"),
  ("exp(x-y)", "exp(x) / exp(y)", ""),
  ("pow[r](x*y)", "pow[r](x) * pow[r](y)", ""),
  ("pow[1/2](x)", "pow[-1](pow[-1/2](x))", ""),
  ("psum[k](x*y)", "x * psum[k](y)", "k not in x"),
  ("psum[k](y * exp(s-m))", "pscaled[k](y * exp(s-run(m)); m)", "m = pmax[k](s)"),
  ("sum[k](exp(s-m))", "scaled[k](exp(s-run(m)); m)", "m = rmax[j,k](s)"),
  ("max(x, y)", "max(y, x)", ""),
]


def unproved(lhs, rhs, condition):
  return rows(Axiom("?", lhs, rhs, condition, lambda g, node: iter(())))[0]


@pytest.mark.parametrize(("lhs", "rhs", "condition"), WRONG)
def test_a_wrong_row_is_noticed(lhs, rhs, condition):
  """By the field for every row, by float64 too but where the sides differ at 0 alone."""
  row, sizes_of_axes = unproved(lhs, rhs, condition), dict.fromkeys("abjk", (5, 2, 2))
  verdicts = {equal(i, sizes_of_axes, seed) for i in row.holding[:64] for seed in range(4)}
  assert any(not field for field, _ in verdicts)
  assert lhs == "x*y/y" or any(not reals for _, reals in verdicts)


@pytest.mark.parametrize(("lhs", "rhs", "condition"), RIGHT)
@settings(max_examples=15)
@given(data=st.data())
def test_a_right_row_passes(lhs, rhs, condition, data):
  i = data.draw(instances(unproved(lhs, rhs, condition)))
  assert equal(i, data.draw(sizes(i)), data.draw(st.integers(0, 99))) == (True, True)


def test_a_rule_that_looks_at_no_condition_is_noticed():
  def careless(g, node):
    """exp(x + y) for exp(x) * exp(y) and, wrongly, for x * y."""
    for n in g.nodes(node.children[0]) if node.op == t.SUM else ():
      if n.op == t.MUL:
        first, *rest = n.children
        inner = g.product(rest)
        if set(node.attr or ()) <= set(g.axes(inner)):
          yield g.product((first, g.insert(ENode(t.SUM, (inner,), node.attr))))

  axiom = Axiom("?", "sum[k](x*y)", "x * sum[k](y)", "k not in x", careless)
  (row,) = rows(axiom)
  (clause,) = row.clauses
  found = [i for i in row.violating(clause) if None not in i.sides()]
  with pytest.raises(AssertionError, match="union of classes"):
    for i in found:
      joins(axiom, i.lhs, i.rhs, i.axes)


# -- the language of the table


@pytest.mark.parametrize("text", ["k is odd", "m := rmax[k](s)", "x in", "j = = k"])
def test_a_condition_that_nobody_reads(text):
  with pytest.raises(FormulaError):
    read_clause(text)


@pytest.mark.parametrize(
  "text", ["sum[k](x", "x +", "sum(x)", "x ? y", "scaled[k](x)", "pow(x)", "x y", "psum[k](x, y)"]
)
def test_a_text_that_is_no_formula(text):
  with pytest.raises(FormulaError):
    parse(text)


def test_differences_and_quotients_are_sums_and_products():
  assert parse("x - y/z") == parse("x + (-1*y*pow[-1](z))") or parse("x-y/z").op == "add"
  minus = parse("x - y*z").args[1]
  assert minus.op == "mul" and minus.args[0] == Formula("const", value=Fraction(-1))
  assert parse("1/x") == parse("pow[-1](x)")
  assert parse("(x*y)*z") != parse("x*y*z") == parse("((x*y*z))")


@pytest.mark.parametrize("text", ["sum[k](y)", "run(rmax[k](x))", "scaled[k](x; y)"])
def test_a_formula_without_a_value(text):
  formula = parse(text)
  sizes = {"k": (5, 2, 2)}
  axes = {"x": "k", "y": ""}
  numbers = random_numbers(Float64(), (formula,), axes, sizes, np.random.default_rng(0))
  with pytest.raises(FormulaError):
    numbers.value(formula)


def test_values_of_blocks_and_iterations_by_hand():
  """Five elements in blocks of two and iterations of one."""
  sizes = {"k": (5, 2, 1)}
  rng = np.random.default_rng(1)
  used = (parse("x + s"),)
  numbers = random_numbers(Float64(), used, {"x": "k", "s": "k"}, sizes, rng)
  x, s = (numbers.inputs[name].data[0] for name in "xs")
  parts = numbers.value(parse("psum[k](x)"))
  assert parts.axes == ("k'",)
  assert np.allclose(parts.data[0], [x[0] + x[1], x[2] + x[3], x[4]])
  tops = numbers.value(parse("pmax[k](s)")).data[0]
  assert np.allclose(tops, [max(s[0], s[1]), max(s[2], s[3]), s[4]])
  scaled = numbers.value(parse("pscaled[k](x * exp(s-run(pmax[k](s))); pmax[k](s))")).data[0]
  weights = np.exp(s - np.repeat(tops, 2)[:5])
  assert np.allclose(scaled, np.add.reduceat(weights * x, [0, 2, 4]))
  # Without a shift the rescaling alone is left: acc <- acc * exp(m before - m) + x.
  top, acc = s[0], x[0]
  for k in range(1, 5):
    acc = acc * np.exp(top - max(top, s[k])) + x[k]
    top = max(top, s[k])
  assert np.allclose(numbers.value(parse("scaled[k](x; rmax[k](s))")).data, acc)
