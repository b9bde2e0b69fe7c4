"""Which values are worth writing to memory between the kernels of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from mirage_onnx.ir.term import CONST, EXTENT, MAXR, MUL
from mirage_onnx.superopt.axioms import groupings
from mirage_onnx.superopt.choices import TILE
from mirage_onnx.superopt.egraph import (
    HEAVY,
    PMAX,
    PSCALED,
    RUN,
    SCALED,
    EGraph,
    is_part,
    part_of,
)

_MAXIMUM = (MAXR, PMAX)


def readable_classes(
    g: EGraph, extents: Mapping[str, int], operands: set[int], outputs: tuple[int, ...], most: int
) -> Iterator[int]:
    """Results of heavy nodes, operands of contractions, and outputs, of at most ``most`` elements.

    Nothing that is elementwise in the inputs, which any kernel computes as fast as it reads it, and
    nothing that only exists inside a loop. The parts of an axis are not counted as elements.
    """
    heavy, free = _above_heavy(g), _outside_loops(g)
    for c in g.classes():
        ops = {n.op for n in g.nodes(c)}
        if not g.axes(c) or ops & {CONST, EXTENT} or c not in heavy or c not in free:
            continue
        if not (ops & HEAVY or c in operands or c in outputs):
            continue
        if any(part_of(a) in g.axes(c) for a in g.axes(c)):
            continue
        if prod(extents[a] for a in g.axes(c) if not is_part(a)) <= most:
            yield c


def _above_heavy(g: EGraph) -> set[int]:
    """Classes that no spelling computes elementwise from inputs alone."""
    light: set[int] = set()
    changed = True
    while changed:
        changed = False
        for c in g.classes():
            if c not in light and any(
                n.op not in HEAVY and all(g.find(k) in light for k in n.children)
                for n in g.nodes(c)
            ):
                light.add(c)
                changed = True
    return set(g.classes()) - light


def contraction_operands(g: EGraph, extents: Mapping[str, int], *, batched: bool) -> set[int]:
    """Classes that are an operand of a contraction, with its factors where they cost least."""

    def work(operand: int) -> int:
        products = [len(n.children) for n in g.nodes(operand) if n.op == MUL]
        size = prod(min(extents.get(a, TILE), TILE) for a in g.axes(operand))
        return size * (min(products) - 1) if products else 0

    found: set[int] = set()
    for c in list(g.classes()):
        for n in g.nodes(c):
            if n.op in HEAVY and n.op not in _MAXIMUM and len(n.over) == 1:
                for m in g.nodes(n.children[0]):
                    if m.op == MUL:
                        pairs = groupings(g, m.children, n.over[0], batched=batched)
                        best = min(pairs, key=lambda p: (work(p[0]) + work(p[1]), p), default=())
                        found.update(best)
    return found


def _outside_loops(g: EGraph) -> set[int]:
    """Classes with a spelling that needs no running maximum, so that they are values of kernels."""
    free: set[int] = set()
    changed = True
    while changed:
        changed = False
        for k in g.classes():
            if (
                k not in free
                and any(
                    n.op != RUN
                    # A rescaled sum ends its loop: the running maxima of its terms are its own.
                    and all(g.find(i) in free for i in n.children[n.op in (SCALED, PSCALED) :])
                    for n in g.nodes(k)
                )
            ):
                free.add(k)
                changed = True
    return free
