"""All kernel graphs of a region within the bound, each kernel with its cheapest numbers.

saturate      all spellings of the region's outputs (axioms.py)
cut           which intermediate values are written to memory, i.e. which kernels there are
assign roles  which dimension the loop walks and which the grid splits, per kernel
derive        every derivation of a kernel's targets under these roles (derive.py)
build         block graph and thread layouts, or a typed refusal (build.py, thread.py)
solve         numbers by the cost model (numbers.py)
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import prod

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.term import CONST, EXTENT, INPUT, REDUCTIONS, SUM, walk
from mirage_onnx.ir.text import print_kernel
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, UGraph
from mirage_onnx.superopt.axioms import Axiom, saturate
from mirage_onnx.superopt.build import build_kernel
from mirage_onnx.superopt.cost import LATENCY_US
from mirage_onnx.superopt.derive import Counts, Roles, derivations
from mirage_onnx.superopt.egraph import EGraph
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.result import Bound
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class _Built:
    cost_us: float
    text: str
    kernel: Kernel
    params: tuple[KernelParams, ...]


class BudgetError(Exception):
    """The time budget ended."""


class Programs:
    """The state of one search over one region."""

    def __init__(
        self, region: Region, target: Target, bound: Bound, axioms: tuple[Axiom, ...], end: float
    ) -> None:
        self.region, self.target, self.bound, self.deadline = region, target, bound, end
        self.counts = Counts(limit=bound.states)
        self.reasons: dict[str, Rejection] = {}
        self.memo: dict[tuple[object, ...], list[_Built]] = {}
        self.built = 0
        self.graph = g = EGraph()
        roots = [g.insert_term(t) for t in region.terms]
        saturate(g, axioms)
        self.outputs = [g.find(c) for c in roots]
        self.depth = _depths(g)
        self.inputs: dict[int, KTensor] = {}
        for c in g.classes():
            for n in g.nodes(c):
                if n.op == INPUT:
                    self.inputs[c] = self._input_tensor(str(n.attr))

    def _input_tensor(self, name: str) -> KTensor:
        source = next(i for i in self.region.inputs if i.name == name)
        axes = source.axes
        if source.is_weight and len(axes) == 2 and not source.splits_dims:
            contracted = _contracted_axis(self.region, name)
            if contracted == axes[0]:
                axes = (axes[1], axes[0])
        return KTensor(name, source.dtype, axes, "weight" if source.is_weight else "input")

    # -- kernels -------------------------------------------------------------------------------

    def roles(self, targets: tuple[int, ...]) -> Iterator[Roles]:
        g, extents = self.graph, self.region.extents
        common = set(g.axes(targets[0]))
        for t in targets[1:]:
            common &= set(g.axes(t))
        loops: set[str] = set()
        for c in g.classes():
            for n in g.nodes(c):
                if n.op in REDUCTIONS:
                    loops.update(n.attr)  # type: ignore[arg-type]
        ordered = sorted(common, key=lambda a: (-extents[a], a))
        for loop in (None, *sorted(loops)):
            free = [a for a in ordered if a != loop]
            if loop is not None:
                # A streaming kernel's tile has 8 rows and 16 columns at least.
                free = [a for a in free if extents[a] > 8]
            for count in range(min(3, len(free)), -1, -1):
                for grid in combinations(free, count):
                    yield Roles(loop, grid)

    def kernels(
        self, targets: tuple[tuple[int, KTensor], ...], leaves: dict[int, KTensor]
    ) -> list[_Built]:
        """The cheapest kernels that compute ``targets`` from the inputs and ``leaves``."""
        under = self.reachable(tuple(c for c, _ in targets))
        leaves = {c: t for c, t in leaves.items() if c in under}
        key = (
            tuple((c, t.name, t.axes, t.dtype) for c, t in targets),
            tuple(sorted((c, t.name) for c, t in leaves.items())),
        )
        if key in self.memo:
            return self.memo[key]
        g = self.graph
        tensors = {**self.inputs, **leaves}
        named = {t.name: t for t in (*tensors.values(), *(t for _, t in targets))}
        classes = tuple(c for c, _ in targets)
        found: dict[str, _Built] = {}
        for roles in self.roles(classes):
            if time.monotonic() > self.deadline:
                raise BudgetError
            for d in derivations(
                g, classes, roles, frozenset(tensors), self.counts, self.bound.operators
            ):
                try:
                    kernel = build_kernel(
                        g, "k", targets, roles, d, tensors, clusters=self.target.has_clusters
                    )
                except RejectionError as error:
                    self.reasons.setdefault(error.rejection.reason, error.rejection)
                    continue
                self.built += 1
                points = solve(
                    kernel, named, self.region.extents, self.target, pruned=self.counts.pruned
                )
                if points:
                    text = print_kernel(kernel)
                    found[text] = _Built(
                        points[0][0].time_us, text, kernel, tuple(p for _, p in points)
                    )
        ranked = sorted(found.values(), key=lambda b: (b.cost_us, b.text))
        self.memo[key] = ranked[: self.bound.kernels_kept]
        return self.memo[key]

    def reachable(self, roots: tuple[int, ...]) -> set[int]:
        """All classes that some spelling of ``roots`` mentions."""
        g = self.graph
        seen: set[int] = set()
        todo = list(roots)
        while todo:
            c = g.find(todo.pop())
            if c not in seen:
                seen.add(c)
                todo += [k for n in g.nodes(c) for k in n.children]
        return seen

    # -- cuts ----------------------------------------------------------------------------------

    def cut_classes(self) -> list[int]:
        """Classes worth writing to memory: not inputs, not constants, no giants."""
        g, extents = self.graph, self.region.extents
        largest = max((prod(extents[a] for a in t.axes) for t in self._activations()), default=1)
        found = []
        for c in g.classes():
            ops = {n.op for n in g.nodes(c)}
            if ops & {INPUT, CONST, EXTENT} or c in self.outputs or not g.axes(c):
                continue
            if prod(extents[a] for a in g.axes(c)) > 2 * largest:
                self.counts.prune("an intermediate larger than the region's tensors")
                continue
            found.append(c)
        return sorted(found, key=lambda c: (self.depth[c], c))

    def _activations(self) -> list[KTensor]:
        own = [t for t in self.inputs.values() if t.role == "input"]
        return own + [KTensor(o.name, o.dtype, o.axes, "output") for o in self.region.outputs]

    def temp(self, c: int, index: int) -> KTensor:
        """Workspace tensor of a class: the axis that is contracted later comes last."""
        g = self.graph
        contracted = {
            a
            for k in g.classes()
            for n in g.nodes(k)
            if n.op == SUM
            for a in n.attr  # type: ignore[union-attr]
        }
        axes = tuple(sorted(g.axes(c), key=lambda a: (a in contracted, a)))
        half = {o.dtype for o in self.region.outputs if o.dtype.is_half}
        matrix = len(axes) > 1 and axes[-1] in contracted
        dtype = next(iter(sorted(half)), DType.F32) if matrix else DType.F32
        return KTensor(f"t{index}", dtype, axes, "temp")

    def programs(self) -> Iterator[tuple[float, UGraph, tuple[KernelParams, ...]]]:
        """All kernel graphs: for each set of cuts and each grouping, the best kernels combined."""
        cuts = self.cut_classes()
        best = float("inf")
        for count in range(self.bound.cuts + 1):
            if best <= self.least_us(count + 1):
                self.counts.prune("more kernels cannot beat the best program found")
                break
            for chosen in combinations(cuts, count):
                self.counts.visit()
                for program in self._combine(chosen):
                    best = min(best, program[0])
                    yield program

    def least_us(self, kernels: int) -> float:
        """A lower bound, in the cost model, of any program with this many kernels."""
        extents, target = self.region.extents, self.target
        tensors = [(t.axes, t.dtype) for t in self.inputs.values()]
        tensors += [(t.axes, t.dtype) for t in self.region.outputs]
        total = sum(prod(extents[a] for a in axes) * dtype.size_bytes for axes, dtype in tensors)
        work = total / (target.stream_tbps * 1e6)
        return kernels * target.launch_us + max(1.25 * LATENCY_US * kernels, work)

    def _combine(
        self, chosen: tuple[int, ...]
    ) -> Iterator[tuple[float, UGraph, tuple[KernelParams, ...]]]:
        targets: list[tuple[int, KTensor]] = [(c, self.temp(c, i)) for i, c in enumerate(chosen)]
        for c, o in zip(self.outputs, self.region.outputs, strict=True):
            targets.append((c, KTensor(o.name, o.dtype, o.axes, "output")))
        targets.sort(key=lambda t: (self.depth[t[0]], t[1].name))
        for grouping in _groupings(targets, self.graph):
            leaves: dict[int, KTensor] = {}
            options: list[list[_Built]] = []
            for group in grouping:
                built = self.kernels(tuple(group), dict(leaves))
                if not built:
                    break
                options.append(built)
                leaves.update({c: t for c, t in group if c not in self.inputs})
            else:
                yield from self._programs_of(grouping, options)

    def _programs_of(
        self, grouping: list[list[tuple[int, KTensor]]], options: list[list[_Built]]
    ) -> Iterator[tuple[float, UGraph, tuple[KernelParams, ...]]]:
        tensors = (*self.inputs.values(), *(t for group in grouping for _, t in group))
        for combo in product(*(o[: 3 if len(options) > 1 else None] for o in options)):
            kernels = tuple(replace(b.kernel, name=f"k{i}") for i, b in enumerate(combo))
            loaded = {o.tensor for k in kernels for o in k.loads}
            saved = {s.tensor for k in kernels for s in k.saves}
            if any(t.role == "temp" and t.name not in loaded for t in tensors):
                self.counts.prune("an intermediate that no kernel reads")
                continue
            kept = tuple(
                sorted(
                    (t for t in tensors if t.name in loaded | saved),
                    key=lambda t: (("input", "weight", "temp", "output").index(t.role), t.name),
                )
            )
            graph = UGraph(kept, kernels)
            for i in range(max(len(b.params) for b in combo)):
                params = tuple(b.params[min(i, len(b.params) - 1)] for b in combo)
                cost = sum(b.cost_us for b in combo) + 0.01 * i
                yield cost, graph, params


def _depths(g: EGraph) -> dict[int, int]:
    """Least depth of any spelling of each class."""
    depth: dict[int, int] = {}
    changed = True
    while changed:
        changed = False
        for c in g.classes():
            for n in g.nodes(c):
                if all(g.find(k) in depth for k in n.children):
                    d = 1 + max((depth[g.find(k)] for k in n.children), default=-1)
                    if d < depth.get(c, 1 << 30):
                        depth[c] = d
                        changed = True
    return depth


def _contracted_axis(region: Region, name: str) -> str | None:
    """The axis of input ``name`` that a sum over a product with it reduces."""
    own = set(next(i for i in region.inputs if i.name == name).axes)
    for t in walk(region.terms):
        if t.op == SUM and any(u.op == INPUT and u.attr == name for u in walk(t.args)):
            hit = own & set(t.attr)  # type: ignore[arg-type]
            direct = t.args[0].args if t.args[0].op == "mul" else t.args
            if hit and any(u.op == INPUT and u.attr == name for u in direct):
                return sorted(hit)[0]
    return None


def _groupings(
    targets: list[tuple[int, KTensor]], g: EGraph
) -> Iterator[list[list[tuple[int, KTensor]]]]:
    """One kernel per target, and (if different) one kernel per set of targets over equal axes."""
    yield [[t] for t in targets]
    merged: list[list[tuple[int, KTensor]]] = []
    for t in targets:
        if merged and g.axes(merged[-1][0][0]) == g.axes(t[0]):
            merged[-1].append(t)
        else:
            merged.append([t])
    if len(merged) < len(targets):
        yield merged
