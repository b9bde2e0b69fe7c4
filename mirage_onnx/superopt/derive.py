"""Derivations: every way one kernel can compute its targets, given the roles of the dimensions.

A derivation picks, for each value it needs and for the phase it needs it in, one spelling of the
value's class. It is found backwards from the targets, so every prefix is a subexpression of
something equal to the target (the pruning by abstract expressions holds by construction). The
choices are those of the design: which spelling, where each reduction happens (inside the loop's
tile, over the loop by an accumulator, in the tile after the loop) and how the factors of a
contraction are grouped into its two operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from mirage_onnx.ir.term import CONST, EXTENT, INPUT, MUL, REDUCTIONS, SUM
from mirage_onnx.ir.ugraph import Phase
from mirage_onnx.superopt.axioms import groupings
from mirage_onnx.superopt.egraph import EGraph, ENode

#: A value at a place: its class and the phase that computes it.
Place = tuple[int, Phase]


@dataclass(frozen=True, slots=True, order=True)
class Roles:
    """What a kernel does with the dimensions: the loop's axis and the axes split by the grid."""

    loop: str | None
    grid: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """How a place gets its value from the places it ``needs``.

    ``kind``: ``load`` | ``scalar`` | ``pure`` (elementwise ``node``) | ``tile`` (reduction of a
    tile, ``node``) | ``acc`` (reduction of ``node`` over the loop) | ``contract`` (two operands,
    over ``axis``; over the loop when the needed places are in it).
    """

    kind: str
    node: ENode
    needs: tuple[Place, ...] = ()
    axis: str = ""

    @property
    def weight(self) -> int:
        """What the operator bound counts: contractions, reductions, accumulators."""
        return int(self.kind in ("acc", "tile", "contract"))


Derivation = Mapping[Place, Choice]


@dataclass(slots=True)
class Counts:
    """States visited and prefixes pruned, by reason."""

    states: int = 0
    limit: int = 200_000
    pruned: Counter[str] = field(default_factory=Counter)

    def visit(self) -> None:
        self.states += 1
        if self.states > self.limit:
            raise StateLimitError

    def prune(self, reason: str) -> None:
        self.pruned[reason] += 1


class StateLimitError(Exception):
    """The search has visited as many states as it may."""


#: Ways to compute one place by elementwise operations that are kept (fewest operations first).
MAX_CHAINS = 4
#: Of each operand, so many are combined into chains of the result (fewest operations first).
MAX_PARTS = 3


@dataclass(frozen=True, slots=True)
class Chain:
    """An elementwise chain, one step of the search: what it picks and which reductions it needs.

    ``ops`` counts its operations, weighted by how much work a place means (an operation inside the
    loop or over more axes costs more), so that of two chains with equal needs the cheaper stays.
    """

    ops: int
    needs: frozenset[Place]
    choices: tuple[tuple[Place, Choice], ...]


def unplaceable(axes: tuple[str, ...], phase: Phase, roles: Roles) -> str | None:
    """Why no thread layout holds a value over ``axes`` at this place, or None if one does.

    A streaming kernel keeps tiles over the loop's axis and one other in the loop, and over two axes
    after it; a row kernel spreads one axis over the threads.
    """
    if roles.loop is None:
        free = sum(a not in roles.grid for a in axes)
        return (
            "a row kernel's value over two axes that the grid does not split" if free > 1 else None
        )
    if phase is Phase.POST:
        if roles.loop in axes:
            return "a value that varies over the loop is needed after it"
        return "a value over three axes after the loop" if len(axes) > 2 else None
    limit = 2 if roles.loop in axes else 1
    return "a value in the loop over rows and columns" if len(axes) > limit else None


class Chains:
    """The elementwise closure of places: all minimal chains down to loads and reductions."""

    def __init__(self, g: EGraph, roles: Roles, leaves: frozenset[int], counts: Counts) -> None:
        self.g, self.roles, self.leaves, self.counts = g, roles, leaves, counts
        self._known: dict[Place, dict[frozenset[Place], Chain]] = {}

    def at(self, place: Place) -> list[Chain]:
        """The chains that compute ``place``, fewest needs first."""
        if place not in self._known:
            self._fix(place)
        found = self._known[place].values()
        ranked = sorted(found, key=lambda c: (len(c.needs), c.ops, sorted(c.needs)))
        return ranked[:MAX_CHAINS]

    def _fix(self, goal: Place) -> None:
        """Least fixpoint over the (possibly cyclic) elementwise spellings under ``goal``."""
        order: dict[Place, list[Choice]] = {}
        todo = [goal]
        while todo:
            place = todo.pop()
            if place in order or place in self._known:
                continue
            order[place] = self._elementwise(place)
            for choice in order[place]:
                todo += choice.needs
        fresh: dict[Place, dict[frozenset[Place], Chain]] = {p: {} for p in order}
        places = list(reversed(order))
        for place in places:
            if self._has_reduction(place):
                fresh[place][frozenset({place})] = Chain(0, frozenset({place}), ())
        changed = True
        while changed:
            changed = False
            for place in places:
                for choice in order[place]:
                    tables = [fresh.get(q) or self._known.get(q, {}) for q in choice.needs]
                    changed |= self._extend(fresh[place], place, choice, tables)
        self._known.update(fresh)

    def _extend(
        self,
        table: dict[frozenset[Place], Chain],
        place: Place,
        choice: Choice,
        tables: list[dict[frozenset[Place], Chain]],
    ) -> bool:
        work = self._work(place, choice)
        grown = False
        ranked = [
            sorted(t.values(), key=lambda c: (c.ops, sorted(c.needs)))[:MAX_PARTS] for t in tables
        ]
        for parts in product(*ranked):
            picked: dict[Place, Choice] = {place: choice}
            for part in parts:
                for q, c in part.choices:
                    picked.setdefault(q, c)
            if any(place == q for part in parts for q, _ in part.choices):
                continue
            needs = frozenset().union(*(part.needs for part in parts))
            ops = work + sum(part.ops for part in parts)
            old = table.get(needs)
            if old is None or ops < old.ops:
                if any(n < needs and c.ops <= ops for n, c in table.items()):
                    continue
                table[needs] = Chain(ops, needs, tuple(picked.items()))
                grown = True
        return grown

    def _work(self, place: Place, choice: Choice) -> int:
        if choice.kind != "pure":
            return 0
        steps = max(1, len(choice.node.children) - 1)
        weight = 1 + 2 * len(self.g.axes(place[0]))
        return steps * weight * (4 if place[1] is Phase.LOOP else 1)

    def _has_reduction(self, place: Place) -> bool:
        c, phase = place
        if c in self.leaves or unplaceable(self.g.axes(c), phase, self.roles):
            return False
        return any(n.op in REDUCTIONS for n in self.g.nodes(c))

    def _elementwise(self, place: Place) -> list[Choice]:
        c, phase = place
        reason = unplaceable(self.g.axes(c), phase, self.roles)
        if reason:
            self.counts.prune(reason)
            return []
        nodes = self.g.nodes(c)
        for n in nodes:
            if n.op in (CONST, EXTENT):
                return [Choice("scalar", n)]
        for n in nodes:
            if n.op == INPUT or c in self.leaves:
                return [Choice("load", n)]
        return [
            Choice("pure", n, tuple((self.g.find(k), phase) for k in n.children))
            for n in nodes
            if n.op not in REDUCTIONS
        ]


def _heavy(g: EGraph, place: Place, roles: Roles, counts: Counts) -> list[Choice]:
    """The reductions that compute a place."""
    return [
        choice
        for n in g.nodes(place[0])
        if n.op in REDUCTIONS
        for choice in _reductions(g, n, place[1], roles, counts)
    ]


def _reductions(
    g: EGraph, n: ENode, phase: Phase, roles: Roles, counts: Counts
) -> Iterator[Choice]:
    bound = set(n.attr)  # type: ignore[arg-type]
    child = g.find(n.children[0])
    if bound & set(roles.grid):
        counts.prune("a reduction over a dimension that the grid splits")
        return
    over_loop = roles.loop in bound
    if over_loop and phase is Phase.LOOP:
        counts.prune("a reduction over the loop is needed inside it")
        return
    inner = Phase.LOOP if over_loop else phase
    if n.op == SUM and len(bound) == 1 and roles.loop is not None:
        (axis,) = bound
        if inner is Phase.LOOP and not over_loop:
            counts.prune("a contraction inside the loop over another axis than the loop's")
        else:
            yield from _contractions(g, n, child, axis, inner, counts)
    if unplaceable(g.axes(child), inner, roles):
        counts.prune("a reduction of a tile that no layout holds")
    elif over_loop:
        yield Choice("acc", n, ((child, inner),), str(roles.loop))
    else:
        yield Choice("tile", n, ((child, inner),))


def _contractions(
    g: EGraph, n: ENode, child: int, axis: str, inner: Phase, counts: Counts
) -> Iterator[Choice]:
    """Group the factors of sum[axis](f0 * f1 * ...) into two operands that share only ``axis``."""
    seen: set[tuple[int, int]] = set()
    for m in g.nodes(child):
        if m.op != MUL:
            continue
        for operands in groupings(g, m.children, axis):
            if operands in seen:
                counts.prune("the same grouping of factors twice")
                continue
            seen.add(operands)
            yield Choice("contract", n, tuple((o, inner) for o in operands), axis)


def derivations(
    g: EGraph,
    targets: tuple[int, ...],
    roles: Roles,
    leaves: frozenset[int],
    counts: Counts,
    bound: int,
) -> Iterator[Derivation]:
    """All acyclic derivations of ``targets`` (after the loop) within the operator bound.

    A step of the search resolves one reduction, with the elementwise chains that feed it.
    """
    goal = tuple((g.find(t), Phase.POST) for t in targets)
    chains = Chains(g, roles, leaves - {c for c, _ in goal}, counts)
    emitted: set[frozenset[tuple[Place, Choice]]] = set()

    def feed(
        chosen: dict[Place, Choice], places: tuple[Place, ...]
    ) -> Iterator[tuple[dict[Place, Choice], list[Place]]]:
        """Every way to feed ``places`` by chains, with the reductions these need in turn."""
        if not places:
            yield chosen, []
            return
        for chain in chains.at(places[0]):
            merged = {**dict(chain.choices), **chosen}
            for rest, pending in feed(merged, places[1:]):
                yield rest, [*sorted(chain.needs), *pending]

    def expand(
        chosen: dict[Place, Choice], pending: list[Place], used: int
    ) -> Iterator[Derivation]:
        counts.visit()
        pending = [p for p in pending if p not in chosen]
        if not pending:
            order = order_places(chosen, goal)
            if roles.loop is not None and not any(
                c.kind == "contract" and c.needs[0][1] is Phase.LOOP for c in chosen.values()
            ):
                counts.prune("a loop without a contraction: a row kernel computes the same")
                return
            if order is None:
                counts.prune("a value that depends on itself")
                return
            identity = frozenset((p, chosen[p]) for p in order)
            if identity in emitted:
                counts.prune("the same derivation twice")
            else:
                emitted.add(identity)
                yield {p: chosen[p] for p in order}
            return
        place = pending[0]
        for choice in _heavy(g, place, roles, counts):
            if used + choice.weight > bound:
                counts.prune("more contractions, reductions and accumulators than the bound")
                continue
            for merged, more in feed({**chosen, place: choice}, choice.needs):
                yield from expand(merged, [*pending[1:], *more], used + choice.weight)

    for chosen, pending in feed({}, goal):
        yield from expand(chosen, pending, 0)


def order_places(chosen: Mapping[Place, Choice], goal: tuple[Place, ...]) -> list[Place] | None:
    """The places in an order in which each comes after what it needs, or None for a cycle."""
    done: dict[Place, None] = {}
    active: set[Place] = set()

    def visit(p: Place) -> bool:
        if p in done:
            return True
        if p in active:
            return False
        active.add(p)
        if not all(visit(q) for q in chosen[p].needs):
            return False
        done[p] = None
        return True

    return list(done) if all(visit(p) for p in goal) else None
