"""Every row of the axiom table, tested from its own text.

Its two sides are equal in a finite field and in float64, its rule finds the right side wherever the
condition holds, and nowhere else. What the text asks for is read by ``axiom_formulas`` and
``axiom_instances``; the values come from plain loops over blocks and iterations.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
from axiom_draws import axes_of_instance, equal, instances, sizes
from axiom_formulas import with_exponents
from axiom_instances import rows
from axiom_nodes import fires, insert, joins, joins_by
from axiom_parser import parse
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from mirage_onnx.superopt.axioms import AXIOMS, saturate
from mirage_onnx.superopt.egraph import EGraph

#: Instances of one form that the tests of the rules go through, evenly chosen.
MOST_INSTANCES = 250
every_axiom = pytest.mark.parametrize("axiom", AXIOMS, ids=lambda a: a.name)


def chosen(found):
  """At most ``MOST_INSTANCES`` of them, each over axes in two orders of their names."""
  for i in found[:: 1 + len(found) // MOST_INSTANCES]:
    used = axes_of_instance(i)
    yield i
    yield i.renamed({a: f"a{len(used) - n}" for n, a in enumerate(used)})


@every_axiom
# An instance is small as it is drawn, and to shrink it takes minutes.
@settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_both_sides_are_equal(axiom, data):
  for row in rows(axiom):
    i = data.draw(instances(row))
    assert equal(i, data.draw(sizes(i)), data.draw(st.integers(0, 1 << 32))) == (True, True)


@every_axiom
def test_the_rule_finds_the_right_side(axiom):
  for row in rows(axiom):
    assert row.holding, "no instance satisfies the condition"
    for i in chosen(row.holding):
      assert len(set(i.sides())) == 1, "the sides vary over different axes"
      exponents = dict.fromkeys((*i.lhs.exponents, *i.rhs.exponents), Fraction(2))
      lhs, rhs = (with_exponents(f, exponents) for f in (i.lhs, i.rhs))
      assert joins(axiom, lhs, rhs, i.axes), (row.name, {**i.axes}, {**i.means})


@every_axiom
def test_the_rule_needs_its_condition(axiom):
  """Where one clause alone is violated, the right side has no value, or is not found."""
  for row in rows(axiom):
    for clause in row.clauses:
      for i in chosen(row.violating(clause)):
        if clause.defines:
          assert not fires(axiom, i.lhs, i.axes), (clause.text, {**i.axes})
        elif None not in i.sides() and len(set(i.sides())) == 1:
          assert not joins(axiom, i.lhs, i.rhs, i.axes), (clause.text, {**i.axes})


@every_axiom
def test_a_rule_keeps_the_axes(axiom):
  """Whatever it finds is over the axes of what it spells: a union insists on it."""
  for row in rows(axiom):
    for i in chosen(row.instances):
      fires(axiom, i.lhs, i.axes)


@every_axiom
def test_a_condition_says_something(axiom):
  """The clauses of a condition together keep an instance out."""
  for row in rows(axiom):
    assert not row.clauses or row.definitions or len(row.holding) < len(row.instances)


def test_names_are_different():
  assert len({a.name for a in AXIOMS}) == len(AXIOMS)


@every_axiom
def test_a_rule_that_does_nothing_is_noticed(axiom):
  idle = replace(axiom, apply=lambda g, node: iter(()))
  for row in rows(idle):
    assert not any(joins(idle, i.lhs, i.rhs, i.axes) for i in row.holding[:5])


@every_axiom
def test_the_others_do_not_imply_it(axiom):
  """Of some instance the right side is not found by the other axioms of the space."""
  others = tuple(a for a in AXIOMS if a is not axiom and a.is_in(axiom.needs))

  def change(g):
    saturate(g, others, max_iterations=8, max_nodes=2000)

  found = (i for row in rows(axiom) for i in chosen(row.holding))
  assert not all(joins_by(change, i.lhs, i.rhs, i.axes) for i in found)


def test_no_axioms_cancel():
  """All of them together do not make x * y / y a spelling of x, nor x / x one of 1."""
  axes = dict.fromkeys("xy", frozenset("k"))
  for text, short in (("x*y/y", "x"), ("x/x", "1"), ("sum[k](x*y/y)", "sum[k](x)")):
    g = EGraph()
    long, plain = (insert(g, parse(s), axes) for s in (text, short))
    saturate(g)
    assert g.find(long) != g.find(plain)
