"""Formulas of the axiom table as nodes of an e-graph, and one application of an axiom to it.

Nodes are inserted as they are written: the constructors of terms would flatten and fold them. An
e-graph flattens a product of products too, unless the inner one is also something else: here it is
an input of its own.
"""

from axiom_formulas import SCALED, FormulaError

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.egraph import RUN, EGraph, ENode, part_of


def insert(g, f, axes, loop="", *, nested=True):
  """The class of ``f`` for variables over ``axes``; ``run`` belongs to the loop over ``loop``.

  ``nested``: a product that is a factor of another one stays one, as an input of its own.
  """
  if f.op == "var":
    return g.insert_term(t.input_(str(f.value), map(_graph_axis, axes[str(f.value)])))
  if f.op == "const":
    return g.insert(ENode(t.CONST, (), f.value))
  inner = f.axes[0] if f.op in SCALED else loop
  children = tuple(insert(g, a, axes, inner, nested=nested) for a in f.args)
  if f.op in ("mul", "add"):
    for a, c in zip(f.args, children, strict=True):
      if nested and a.op == f.op:
        g.union(c, g.insert_term(t.input_(repr(a), g.axes(c))))
    g.rebuild()
    return g.product(children) if f.op == "mul" else g.total(children)
  if f.op == "run":
    if not loop:
      raise FormulaError("a running maximum outside of its loop")
    return g.insert(ENode(RUN, children, (loop,)))
  if f.op == "pow":
    return g.insert(ENode(t.POW, children, f.value))
  attr = tuple(sorted(map(_graph_axis, f.axes)))
  return g.insert(ENode(f.op, children, attr or None))


def _graph_axis(axis):
  return part_of(axis[:-1]) if axis.endswith("'") else axis


def apply_once(g, axiom):
  for c in list(g.classes()):
    for node in g.nodes(c):
      for equal in list(axiom.apply(g, node)):
        g.union(c, equal)
  g.rebuild()


def joins(axiom, lhs, rhs, axes):
  """Whether the axiom, applied to ``lhs`` once, makes ``rhs`` a spelling of it."""
  return joins_by(lambda g: apply_once(g, axiom), lhs, rhs, axes)


def joins_by(change, lhs, rhs, axes):
  """Whether ``change`` of the e-graph of ``lhs`` makes ``rhs`` a spelling of it.

  All of ``rhs`` must be there then: of a product that a rule groups, the class of each group.
  """
  g = EGraph()
  root = insert(g, lhs, axes)
  change(g)
  before = g.size
  found = insert(g, rhs, axes, nested=False)
  return g.find(found) == g.find(root) and g.size == before


def fires(axiom, lhs, axes):
  g = EGraph()
  root = insert(g, lhs, axes)
  before = set(map(g.canonical, g.nodes(root)))
  apply_once(g, axiom)
  return set(map(g.canonical, g.nodes(root))) != before
