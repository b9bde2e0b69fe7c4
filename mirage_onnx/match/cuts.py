"""Candidate regions by cut enumeration, as in technology mapping.

A *cut* of a tensor is a set of tensors (its leaves) from which understood nodes compute it; the
nodes between are its *cone*. Cones may overlap: a norm that feeds three projections may be computed
again in each of their kernels, and the original disappears when nobody reads it any more. Per
tensor the best few cuts are kept (priority cuts). No cone knows what its operators are called: it
is bounded by counts of contractions, nodes and leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.ir.program import Node, Program
from mirage_onnx.ir.region import Region
from mirage_onnx.match.canonical import make_region


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one cone and of how many cuts of a tensor are kept."""

    contractions: int = 6
    #: Reductions and contractions one after the other on a path: what one kernel can hold.
    depth: int = 3
    nodes: int = 32
    leaves: int = 5
    kept: int = 24
    kept_per_contractions: int = 8
    outputs: int = 3
    #: A contraction feeds another one of its region only if its result has at most this many
    #: columns: every block of the second would compute it again.
    inner_columns: int = 32


@dataclass(frozen=True, slots=True)
class Cut:
    """Leaves (activations only) and the nodes between them and the tensor."""

    leaves: frozenset[str]
    nodes: frozenset[str]
    contractions: int
    depth: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible region: canonical form and what of the program it covers."""

    region: Region
    nodes: frozenset[str]
    outputs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Matches:
    """All candidates, and for every node that is in none the reason."""

    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]


def _operands(node: Node) -> tuple[str, ...]:
    """The inputs that a node computes with: not the axes or the shape that it is told."""
    read = {i for s in node.steps for i in s.inputs if isinstance(i, str)}
    return tuple(dict.fromkeys(i for i in node.inputs if i in read))


class _Graph:
    """What the enumeration asks of a program, computed once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.consumers = program.consumers()
        self.reads = {n.name: _operands(n) for n in program.nodes}
        self.node = {n.name: n for n in program.nodes}
        self.order = {n.name: i for i, n in enumerate(program.nodes)}
        self.reasons = {n.name: self._reason(n) for n in program.nodes}
        self.producer = {o: n for n in program.nodes for o in n.outputs if o}

    def _reason(self, node: Node) -> Rejection | None:
        """Why the node can be in no region, or None."""
        if node.barrier is not None:
            return node.barrier
        for step in node.steps:
            if step.op != "matmul":
                continue
            if not any(isinstance(i, str) and self._is_constant(node, i) for i in step.inputs):
                return Rejection("WEIGHT_RUNTIME", "no operand is an initializer", (node.name,))
        for name in (*self.reads[node.name], *node.outputs):
            tensor = self.program.tensors.get(name)
            if not name or name in self.program.constants:
                continue
            if tensor is None or tensor.dtype is None or not tensor.dtype.is_float:
                return Rejection("DTYPE", f"{name} is not a float tensor", (node.name,))
            if not tensor.is_static:
                return Rejection("DYNAMIC_DIM", f"{name} has a dynamic shape", (node.name,))
        return None

    def _is_constant(self, node: Node, name: str) -> bool:
        """A weight, or computed from one inside the node (a transpose)."""
        if name in self.program.weights:
            return True
        made = next((s for s in node.steps if s.output.name == name), None)
        return made is not None and all(
            isinstance(i, str) and self._is_constant(node, i) for i in made.inputs
        )

    def contractions(self, name: str) -> int:
        return sum(s.op == "matmul" for s in self.node[name].steps)

    def depth(self, name: str) -> int:
        """Reductions and contractions of a node (composite operators chain theirs)."""
        reducing = ("matmul", "sum", "mean", "rmax")
        return sum(s.op in reducing for s in self.node[name].steps)

    def reduces(self, name: str) -> bool:
        return any(s.op in ("sum", "mean", "rmax") for s in self.node[name].steps)

    def activations(self, node: Node) -> tuple[str, ...]:
        program = self.program
        return tuple(
            dict.fromkeys(
                i for i in self.reads[node.name]
                if i not in program.weights and i not in program.constants
            )
        )  # fmt: skip

    def inside(self, tensor: str) -> Node | None:
        """The node that computes ``tensor``, if a region may contain it."""
        node = self.producer.get(tensor)
        return node if node is not None and self.reasons[node.name] is None else None

    def is_natural(self, tensor: str) -> bool:
        """Whether a region border may lie here: others read the value, or a new stage begins."""
        node = self.producer.get(tensor)
        readers = self.consumers.get(tensor, ())
        if node is None or tensor in self.program.outputs:
            return True
        if any(self.reasons[r] is not None or self.contractions(r) for r in readers):
            return True
        if all(s.op == "cast" for s in node.steps):
            return False
        if self.contractions(node.name) or len(readers) > 1:
            return True
        return any(self.reduces(r) or self._casts_to_reduction(r) for r in readers)

    def _casts_to_reduction(self, name: str) -> bool:
        node = self.node[name]
        if not node.steps or any(s.op != "cast" for s in node.steps):
            return False
        return any(len(self.consumers.get(o, ())) > 1 for o in node.outputs)

    def elements(self, tensor: str) -> int:
        return prod(int(d) for d in self.program.tensors[tensor].shape or ())


def _cuts(graph: _Graph, limits: Limits) -> dict[str, tuple[Cut, ...]]:
    """The kept cuts of every tensor that a region may compute, in topological order."""
    found: dict[str, tuple[Cut, ...]] = {}
    for node in graph.program.nodes:
        if graph.reasons[node.name] is not None or len(node.outputs) != 1:
            continue
        own = graph.contractions(node.name)
        choices: list[list[Cut]] = []
        for tensor in graph.activations(node):
            options = list(found.get(tensor, ()))
            if own:
                options = [c for c in options if _feeds(graph, c, limits)]
            if graph.inside(tensor) is None or graph.is_natural(tensor):
                options.append(Cut(frozenset({tensor}), frozenset(), 0, 0))
            choices.append(options)
        cuts: dict[Cut, None] = {}
        for parts in product(*choices):
            nodes = frozenset({node.name}).union(*(p.nodes for p in parts))
            inner = {o for n in nodes for o in graph.node[n].outputs}
            leaves = frozenset().union(*(p.leaves for p in parts))
            if leaves & inner or len(leaves) > limits.leaves or len(nodes) > limits.nodes:
                continue
            count = own + sum(graph.contractions(n) for n in nodes if n != node.name)
            depth = graph.depth(node.name) + max((p.depth for p in parts), default=0)
            if count <= limits.contractions and depth <= limits.depth:
                cuts[Cut(leaves, nodes, count, depth)] = None
        found[node.outputs[0]] = _best(graph, tuple(cuts), limits)
    return found


def _feeds(graph: _Graph, cut: Cut, limits: Limits) -> bool:
    """Whether every contraction of the cone is small enough to be computed in front of another."""
    for name in cut.nodes:
        if graph.contractions(name):
            shape = graph.program.tensors[graph.node[name].outputs[0]].shape or (1,)
            if int(shape[-1]) > limits.inner_columns:
                return False
    return True


def _best(graph: _Graph, cuts: tuple[Cut, ...], limits: Limits) -> tuple[Cut, ...]:
    """Priority cuts: per number of contractions those with the fewest leaf elements per node."""

    def rank(cut: Cut) -> tuple[float, int, tuple[str, ...]]:
        border = sum(graph.elements(x) for x in cut.leaves)
        return (border / len(cut.nodes), -len(cut.nodes), tuple(sorted(cut.leaves)))

    kept: list[Cut] = []
    for count in sorted({c.contractions for c in cuts}):
        same = sorted((c for c in cuts if c.contractions == count), key=rank)
        kept += same[: limits.kept_per_contractions]
    return tuple(kept[: limits.kept])


def _variants(graph: _Graph, tensor: str, cut: Cut, limits: Limits) -> Iterator[frozenset[str]]:
    """Output sets of a cone: the tensor alone (the rest recomputed), or all that others read."""
    yield frozenset({tensor})
    escaping = {
        o
        for n in cut.nodes
        for o in graph.node[n].outputs
        if graph.is_natural(o)
        and (
            o in graph.program.outputs
            or any(r not in cut.nodes for r in graph.consumers.get(o, ()))
        )
    } | {tensor}
    # One kernel computes several outputs only over equal axes; others are regions of their own.
    shapes = {graph.program.tensors[o].shape for o in escaping}
    if (
        1 < len(escaping) <= limits.outputs
        and len(shapes) == 1
        and _is_convex(graph, cut, escaping)
    ):
        yield frozenset(escaping)


def _is_convex(graph: _Graph, cut: Cut, outputs: set[str]) -> bool:
    """Whether no leaf depends on an output through nodes outside the cone."""
    seen: set[str] = set()
    todo = list(cut.leaves)
    while todo:
        producer = graph.producer.get(todo.pop())
        if producer is None or producer.name in seen:
            continue
        seen.add(producer.name)
        if outputs & set(producer.outputs):
            return False
        todo += producer.inputs
    return True


def find_candidates(program: Program, limits: Limits | None = None) -> Matches:
    """All candidate regions of ``program``, and why nodes are in none."""
    bounds = limits or Limits()
    graph = _Graph(program)
    cuts = _cuts(graph, bounds)
    candidates: dict[tuple[frozenset[str], frozenset[str]], Candidate] = {}
    failures: dict[str, Rejection] = {}
    for tensor, options in cuts.items():
        if not graph.is_natural(tensor):
            continue
        for cut in options:
            for outputs in _variants(graph, tensor, cut, bounds):
                key = (cut.nodes, outputs)
                if key in candidates or _is_trivial(graph, cut):
                    continue
                made = _candidate(graph, cut, outputs)
                if isinstance(made, Candidate):
                    candidates[key] = made
                else:
                    failures.setdefault(tensor, made)
    covered = {n for c in candidates.values() for n in c.nodes}
    rejections = []
    for node in program.nodes:
        reason = graph.reasons[node.name]
        if reason is not None:
            rejections.append(Rejection(reason.code, reason.reason, (node.name,)))
        elif node.name not in covered:
            failed = next((failures[o] for o in node.outputs if o in failures), None)
            rejections.append(
                Rejection(failed.code, failed.reason, (node.name,))
                if failed
                else Rejection("TOO_SMALL", "nothing beside it to fuse with", (node.name,))
            )
    return Matches(tuple(candidates.values()), tuple(rejections))


def _is_trivial(graph: _Graph, cut: Cut) -> bool:
    """A single node of one step, or nothing but casts and moves: there is nothing to fuse."""
    steps = [s for n in cut.nodes for s in graph.node[n].steps]
    computing = [s for s in steps if s.op not in ("cast", "transpose", "reshape")]
    return len(computing) < 2 or len(cut.nodes) < 2


def _candidate(graph: _Graph, cut: Cut, outputs: frozenset[str]) -> Candidate | Rejection:
    nodes = tuple(sorted(cut.nodes, key=graph.order.__getitem__))
    made = {o for n in nodes for o in graph.node[n].outputs}
    inputs = tuple(dict.fromkeys(i for n in nodes for i in graph.reads[n] if i not in made))
    ordered = tuple(sorted(outputs, key=lambda o: graph.order[graph.producer[o].name]))
    try:
        region = make_region(graph.program, nodes, inputs, ordered)
    except RejectionError as error:
        return error.rejection
    return Candidate(region, cut.nodes, outputs)
