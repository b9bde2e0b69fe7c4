"""Choosing regions: the set of candidates that saves the most time, by integer programming.

Variables: r_i (candidate i is used) and e_n (node n disappears). A node disappears only if a used
candidate covers it, and then either that candidate also yields its result or all readers of the
result disappear too and no used candidate reads it; so a value that two kernels recompute costs
nothing extra, and a value that somebody else still needs keeps its node. Each tensor is yielded by
at most one candidate.

    maximise  sum_n e_n * time(n) - sum_i r_i * time(i)

Up to ``EXACT`` candidates this is solved to the optimum. Larger programs are chains of layers, and
the relaxation of their whole integer program is loose; there a window of candidates moves down the
topological order, each solved to the optimum beside what is already chosen, and its first half is
kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from mirage_onnx.ir.program import Program
from mirage_onnx.match.cuts import Candidate

#: Cost added per used candidate, so that of two equal choices the one with fewer nodes wins.
TIE_US = 1e-3
#: Most candidates of one integer program, and of a window of a larger one.
EXACT, WINDOW = 500, 200


def choose(
    program: Program,
    candidates: Sequence[Candidate],
    times_us: Sequence[float],
    node_us: Mapping[str, float],
) -> tuple[int, ...]:
    """Indices of the chosen candidates.

    ``times_us``: the cost of each candidate (already divided by the margin it must win by),
    ``node_us``: what each node costs in ONNX Runtime.
    """
    count = len(candidates)
    if count <= EXACT:
        return _choose(program, candidates, times_us, node_us, 0)
    place = {n.name: i for i, n in enumerate(program.nodes)}
    last = [max(place[n] for n in c.nodes) for c in candidates]
    order = sorted(range(count), key=lambda i: (last[i], i))
    kept: list[int] = []
    start = 0
    while start < count:
        end = start + WINDOW
        # Candidates that end with the same node are kept or left to the next window together.
        middle = start + WINDOW // 2
        while middle < count and last[order[middle]] == last[order[middle - 1]]:
            middle += 1
        end = max(end, middle)
        if end >= count:
            middle = end = count
        some = [*kept, *order[start:end]]
        picked = _choose(
            program, [candidates[i] for i in some], [times_us[i] for i in some], node_us, len(kept)
        )
        kept = [some[k] for k in picked if k < len(kept) + middle - start]
        start = middle
    return tuple(sorted(kept))


def _choose(
    program: Program,
    candidates: Sequence[Candidate],
    times_us: Sequence[float],
    node_us: Mapping[str, float],
    fixed: int,
) -> tuple[int, ...]:
    """The best choice that has the first ``fixed`` candidates in it."""
    if not candidates:
        return ()
    count, nodes = len(candidates), sorted({n for c in candidates for n in c.nodes})
    index = {n: count + i for i, n in enumerate(nodes)}
    rows: list[tuple[dict[int, float], float]] = []
    readers = program.consumers()
    by_name = {n.name: n for n in program.nodes}
    covers = _indices(c.nodes for c in candidates)
    yields = _indices(c.outputs for c in candidates)
    for n in nodes:
        covering = covers[n]
        # e_n <= sum of the candidates that cover n
        rows.append(({index[n]: 1.0, **dict.fromkeys(covering, -1.0)}, 0.0))
        for o in by_name[n].outputs:
            yielding = yields.get(o, [])
            free = dict.fromkeys(yielding, -1.0)
            if o in program.outputs:
                # a graph output must be yielded
                rows.append(({index[n]: 1.0, **free}, 0.0))
            for r in readers.get(o, ()):
                # e_n <= yielded(o) + e_reader
                row = {index[n]: 1.0, **free}
                if r in index:
                    row[index[r]] = row.get(index[r], 0.0) - 1.0
                rows.append((row, 0.0))
            if len(yielding) > 1:
                rows.append((dict.fromkeys(yielding, 1.0), 1.0))
    maker = {o: n.name for n in program.nodes for o in n.outputs if o}
    for i, c in enumerate(candidates):
        for leaf in {t.tensor.name for t in c.region.inputs}:
            if (producer := maker.get(leaf)) in index:
                # what a used candidate reads is made by its node or yielded by another candidate
                row = {index[producer]: 1.0, i: 1.0}
                for j in yields.get(leaf, []):
                    row[j] = row.get(j, 0.0) - 1.0
                rows.append((row, 1.0))
    size = count + len(nodes)
    cost = np.zeros(size)
    cost[:count] = np.asarray(times_us) + TIE_US
    for i, c in enumerate(candidates):
        cost[i] += TIE_US * 1e-2 * len(c.nodes)
    for n in nodes:
        cost[index[n]] = -node_us.get(n, 0.0)
    while True:
        taken = _solve(cost, rows, fixed)
        chosen = tuple(i for i in range(count) if i in taken)
        gone = {n for n in nodes if index[n] in taken}
        cycle = _cycle(program, candidates, chosen, gone)
        if not cycle:
            return chosen
        # Regions that each may be replaced, but that would need each other's results: not all of
        # them, unless a node between them disappears or another candidate yields what it makes.
        broken = dict.fromkeys((i for i in cycle if isinstance(i, int)), 1.0)
        limit = len(broken) - 1.0
        for between in (by_name[x] for x in cycle if isinstance(x, str)):
            outs = [j for o in between.outputs for j in yields.get(o, []) if j not in broken]
            outs += [index[between.name]] if between.name in index else []
            broken |= dict.fromkeys(outs, -1.0)
        rows.append((broken, limit))


def _indices(names: Iterable[frozenset[str]]) -> dict[str, list[int]]:
    """Name -> the places of the sets that hold it, ascending."""
    found: dict[str, list[int]] = {}
    for i, some in enumerate(names):
        for name in some:
            found.setdefault(name, []).append(i)
    return found


def _cycle(
    program: Program, candidates: Sequence[Candidate], chosen: tuple[int, ...], gone: set[str]
) -> tuple[int | str, ...]:
    """Chosen candidates, and the nodes between, that need each other in a circle; () for none.

    ``gone``: nodes that disappear, through which nothing depends on anything.
    """
    left = [n for n in program.nodes if n.name not in gone]
    makers: dict[str, str | int] = {o: n.name for n in left for o in n.outputs if o}
    makers |= {o: i for i in chosen for o in candidates[i].outputs}
    inputs: dict[str | int, tuple[str, ...]] = {n.name: n.inputs for n in left}
    inputs |= {i: tuple(t.tensor.name for t in candidates[i].region.inputs) for i in chosen}
    graph = TopologicalSorter(
        {i: [makers[t] for t in read if t in makers] for i, read in inputs.items()}
    )
    try:
        graph.prepare()
    except CycleError as error:
        return tuple(dict.fromkeys(error.args[1]))
    return ()


def _solve(cost: np.ndarray, rows: list[tuple[dict[int, float], float]], fixed: int) -> set[int]:
    """The variables that are 1."""
    size = len(cost)
    entries = [(i, j, v) for i, (row, _) in enumerate(rows) for j, v in row.items()]
    r, c, v = (np.array(x) for x in zip(*entries, strict=True))
    matrix = coo_array((v, (r, c)), shape=(len(rows), size))
    limits = np.array([limit for _, limit in rows])
    found = milp(
        cost,
        constraints=LinearConstraint(matrix.tocsc(), -np.inf, limits),
        bounds=Bounds(np.arange(size) < fixed, 1),
        integrality=np.ones(size),
        options={"time_limit": 20.0, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return set(range(fixed))
    return {int(i) for i in np.flatnonzero(found.x > 0.5)}
