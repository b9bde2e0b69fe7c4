"""Random spellings out of a saturated e-graph, as formulas whose value can be taken."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

from axiom_formulas import BINDERS, Formula

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.egraph import EGraph, ENode, is_part


def spelling(g: EGraph, root: int, pick: random.Random) -> Formula:
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
    memo: dict[int, Formula] = {}

    def visit(c: int) -> Formula:
        c = g.find(c)
        if c not in memo:
            node = chosen[c]
            memo[c] = as_formula(node, tuple(visit(k) for k in node.children))
        return memo[c]

    return visit(root)


def _cheapest(g: EGraph, weight: dict[tuple[int, ENode], float]) -> dict[int, ENode]:
    cost: dict[int, float] = {}
    chosen: dict[int, ENode] = {}
    changed = True
    while changed:
        changed = False
        for (c, n), own in weight.items():
            below = [cost.get(g.find(k)) for k in n.children]
            total = own + sum(x for x in below if x is not None)
            if None not in below and total < cost.get(c, float("inf")):
                cost[c], chosen[c], changed = total, n, True
    return chosen


def as_formula(node: ENode, args: tuple[Formula, ...]) -> Formula:
    """The node over the formulas of its children."""
    if node.op == t.INPUT:
        return Formula("var", value=str(node.attr))
    if node.op in (t.CONST, t.POW):
        assert isinstance(node.attr, Fraction)
        return Formula("const" if node.op == t.CONST else "pow", args, value=node.attr)
    if node.op in BINDERS:
        return Formula(node.op, args, tuple(_axes(node)))
    return Formula(node.op, args)


def _axes(node: ENode) -> Iterator[str]:
    assert isinstance(node.attr, tuple)
    for a in node.attr:
        yield f"{a[:-1]}'" if is_part(a) else a
