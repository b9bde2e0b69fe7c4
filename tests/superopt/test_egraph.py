"""The e-graph: congruence, flat sums and products, determinism."""

import pytest

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.axioms import Saturation, saturate
from mirage_onnx.superopt.egraph import EGraph, ENode

X, Y, V = t.input_("x", "ij"), t.input_("y", "ij"), t.input_("v", "i")


def test_equal_terms_are_one_class():
  g = EGraph()
  assert g.insert_term(t.mul(X, V)) == g.insert_term(t.mul(V, X))
  assert len(g) == g.size == 3


def test_commutative_nodes_are_sorted():
  g = EGraph()
  a, b = g.insert_term(X), g.insert_term(Y)
  assert g.insert(ENode("max", (b, a))) == g.insert(ENode("max", (a, b)))
  assert g.product([b, a]) == g.product([a, b])
  assert g.total([a]) == a


def test_congruence_goes_up():
  """Where x = y, f(x) = f(y) and g(f(x)) = g(f(y)) and x * v = y * v."""
  g = EGraph()
  x, y = g.insert_term(X), g.insert_term(Y)
  pairs = []
  for f in (
    lambda u: t.apply("exp", u), lambda u: t.apply("tanh", t.apply("exp", u)),
    lambda u: t.mul(u, V), lambda u: t.reduce_(t.SUM, "i", t.mul(u, V)),
  ):  # fmt: skip
    pairs.append((g.insert_term(f(X)), g.insert_term(f(Y))))
  assert all(g.find(a) != g.find(b) for a, b in pairs)
  assert g.union(x, y)
  assert not g.union(x, y)
  g.rebuild()
  assert all(g.find(a) == g.find(b) for a, b in pairs)
  for c in g.classes():
    for n in g.nodes(c):
      assert g.canonical(n) == n
      assert g.find(g.insert(n)) == c


def test_classes_over_other_axes_cannot_be_equal():
  g = EGraph()
  x, v = g.insert_term(X), g.insert_term(V)
  with pytest.raises(AssertionError, match="union of classes over"):
    g.union(x, v)


def test_axes_of_new_nodes():
  g = EGraph()
  x, v = g.insert_term(X), g.insert_term(V)
  assert g.axes(g.product([x, v])) == ("i", "j")
  assert g.axes(g.insert(ENode(t.SUM, (x,), ("j",)))) == ("i",)


def dump(g):
  return [(c, g.nodes(c)) for c in g.classes()]


def test_the_same_insertions_give_the_same_graph():
  def build():
    g = EGraph()
    g.insert_term(t.reduce_(t.SUM, "j", t.mul(t.add(X, V), Y, V)))
    saturate(g)
    return g

  assert dump(build()) == dump(build())


def test_why_saturation_stops():
  def graph():
    g = EGraph()
    g.insert_term(t.reduce_(t.SUM, "j", t.mul(t.add(X, V), Y, V)))
    return g

  assert saturate(graph()) is Saturation.SATURATED
  assert saturate(graph(), max_iterations=1) is Saturation.ITERATIONS
  assert saturate(graph(), max_nodes=3) is Saturation.NODES
  g = graph()
  before = g.size
  assert saturate(g, ()) is Saturation.SATURATED
  assert g.size == before
