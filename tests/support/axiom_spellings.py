"""Random spellings out of a saturated e-graph, as formulas whose value can be taken."""

from fractions import Fraction

from axiom_formulas import BINDERS, Formula

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.egraph import is_part


def spelling(g, root, pick):
    """One spelling of a class, which picks one node of every class.

    The one with the least sum of random weights: so it is finite, and every node that is of use
    has its chance. The nodes of one operation, picked anew each time, weigh next to nothing.
    """
    ops = sorted({n.op for c in g.classes() for n in g.nodes(c)})
    favoured = pick.choice(ops)
    weight = {
        (c, n): 1e-4 if n.op == favoured else 10 ** pick.uniform(0, 3)
        for c in g.classes()
        for n in g.nodes(c)
    }
    chosen = _cheapest(g, weight)
    memo = {}

    def visit(c):
        c = g.find(c)
        if c not in memo:
            node = chosen[c]
            memo[c] = as_formula(node, tuple(visit(k) for k in node.children))
        return memo[c]

    return visit(root)


def _cheapest(g, weight):
    cost = {}
    chosen = {}
    changed = True
    while changed:
        changed = False
        for (c, n), own in weight.items():
            below = [cost.get(g.find(k)) for k in n.children]
            total = own + sum(x for x in below if x is not None)
            if None not in below and total < cost.get(c, float("inf")):
                cost[c], chosen[c], changed = total, n, True
    return chosen


def as_formula(node, args):
    """The node over the formulas of its children."""
    if node.op == t.INPUT:
        return Formula("var", value=str(node.attr))
    if node.op in (t.CONST, t.POW):
        assert isinstance(node.attr, Fraction)
        return Formula("const" if node.op == t.CONST else "pow", args, value=node.attr)
    if node.op in BINDERS:
        return Formula(node.op, args, tuple(_axes(node)))
    return Formula(node.op, args)


def _axes(node):
    assert isinstance(node.attr, tuple)
    for a in node.attr:
        yield f"{a[:-1]}'" if is_part(a) else a
