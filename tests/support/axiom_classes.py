"""The values of all classes of an e-graph, and the nodes that disagree with their class.

A class has the value of the first of its nodes that can be computed. A running maximum has none
outside of its loop, so what holds one stays a formula until the sum that ends the loop.
"""

from dataclasses import replace
from math import prod

from axiom_formulas import BINDERS, SCALED, Formula, FormulaError
from axiom_values import same

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.egraph import RUN, is_part


def disagreements(g, numbers):
  forms = {}
  values = dict(numbers.inputs)
  numbers = replace(numbers, inputs=values)
  wrong = []
  todo = [(c, n) for c in g.classes() for n in g.nodes(c)]
  while todo:
    later = []
    for c, n in todo:
      f = _formula(g, n, forms, numbers)
      name = f"class {c}"
      if f is None:
        later.append((c, n))
        continue
      try:
        got = numbers.value(f)
      except FormulaError:
        forms.setdefault(c, f)
        continue
      forms[c] = Formula("var", value=name)
      if not same(numbers.domain, got, values.setdefault(name, got)):
        wrong.append(f"{n} in {name}")
    if len(later) == len(todo):
      break
    todo = later
  return wrong


def _formula(g, n, forms, numbers):
  if n.op == t.EXTENT:
    return Formula("const", value=prod(map(numbers.extent, n.attr)))
  children = [forms.get(g.find(c)) for c in n.children]
  if n.op == RUN or n.op in SCALED:
    # What runs is looked at as far as the loop has come: the maximum must be seen as one.
    children[-1] = _maximum(g, n, forms)
  if None in children:
    return None
  return _as_formula(n, tuple(c for c in children if c is not None))


def _maximum(g, n, forms):
  """The first node of a class that is a maximum over the axis of the loop."""
  for m in g.nodes(n.children[-1]):
    if m.op in ("rmax", "pmax") and m.attr == n.attr and m.op in BINDERS:
      inner = forms.get(g.find(m.children[0]))
      return None if inner is None else _as_formula(m, (inner,))
  raise AssertionError(f"{n} runs up to no maximum")


def _as_formula(node, args):
  if node.op == t.INPUT:
    return Formula("var", value=str(node.attr))
  if node.op in (t.CONST, t.POW):
    return Formula("const" if node.op == t.CONST else "pow", args, value=node.attr)
  if node.op in BINDERS:
    return Formula(node.op, args, tuple(_axes(node)))
  return Formula(node.op, args)


def _axes(node):
  for a in node.attr:
    yield f"{a[:-1]}'" if is_part(a) else a
