"""Degrees: how likely a random draw in Z_p is to miss a difference.

Fix one output element that differs. Both its values are quotients of polynomials in the input
elements and in one variable per (random function, formal argument), extent and irrational. A draw
misses the difference if
  (a) two formally different arguments of one function fall on one residue: at most C(m, 2) pairs,
      each a polynomial of degree <= 2 A, so at most C(m, 2) 2 A / p; or
  (b) they do not, then the function values are independent uniform variables, and the numerator of
      the difference, of degree <= D = max(n1 + d2, n2 + d1), is 0: at most D / p (Schwartz-Zippel).
Here m counts the function evaluations *that this element depends on*, A bounds the degrees of
their arguments and n, d those of numerator and denominator. This file computes all of them from
above. A maximum counts as three evaluations (two images and one back); a function value is a fresh
variable of degree 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from mirage_onnx.ir import term as t
from mirage_onnx.ir.ops import ELEMENTWISE, HALF
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, Phase, UGraph
from mirage_onnx.verify.field import P

#: Evaluations of random functions per element, where it is not 1.
_CALLS = {"max": 3, "min": 3, "relu": 3} | dict.fromkeys(
    ("add", "sub", "mul", "div", "neg", "recip", "square"), 0
)
_POWERS = {"recip": Fraction(-1), "square": Fraction(2), "sqrt": HALF, "rsqrt": -HALF}


@dataclass(frozen=True, slots=True)
class Degree:
    """Degrees of numerator and denominator; ``argument``: the largest of a function argument."""

    numerator: int
    denominator: int
    argument: int = 0

    def plus(self, other: Degree) -> Degree:
        n = max(self.numerator + other.denominator, other.numerator + self.denominator)
        return Degree(n, self.denominator + other.denominator, max(self.argument, other.argument))

    def times(self, other: Degree) -> Degree:
        return Degree(
            self.numerator + other.numerator,
            self.denominator + other.denominator,
            max(self.argument, other.argument),
        )

    def power(self, e: Fraction) -> Degree:
        if e.denominator != 1:
            return self.call().power(Fraction(e.numerator))
        n, d = self.numerator * abs(e.numerator), self.denominator * abs(e.numerator)
        return Degree(n, d, self.argument) if e > 0 else Degree(d, n, self.argument)

    def total(self, count: int) -> Degree:
        """The sum of ``count`` values, which may all have different denominators."""
        d = self.denominator
        return Degree(self.numerator + (count - 1) * d, count * d, self.argument)

    def call(self) -> Degree:
        """A random function of the value."""
        return Degree(1, 0, max(self.argument, self.numerator, self.denominator, 1))


LEAF, FIXED = Degree(1, 0), Degree(0, 0)


@dataclass(frozen=True, slots=True)
class Bound:
    """What one output element of a program can depend on."""

    degree: Degree
    evaluations: int


def miss_probability(left: Bound, right: Bound) -> float:
    """The bound for one draw."""
    m = left.evaluations + right.evaluations
    argument = max(left.degree.argument, right.degree.argument)
    a, b = left.degree, right.degree
    difference = max(a.numerator + b.denominator, b.numerator + a.denominator)
    return min(difference + m * (m - 1) // 2 * 2 * argument, P) / P


def elementwise_degree(op: str, args: Sequence[Degree]) -> Degree:
    if op in ("add", "sub"):
        return args[0].plus(args[1])
    if op == "mul":
        return args[0].times(args[1])
    if op == "div":
        return args[0].times(args[1].power(Fraction(-1)))
    if op == "neg":
        return args[0]
    if op in _POWERS:
        return args[0].power(_POWERS[op])
    if op == "sigmoid":
        return args[0].call().plus(FIXED).power(Fraction(-1))
    result = args[0].call()
    for a in args[1:]:
        result = Degree(1, 0, max(result.argument, a.call().argument))
    return result


def term_bound(root: Term, extents: Mapping[str, int]) -> Bound:
    """The bound of an element of ``root``."""
    nodes = t.walk([root])
    degrees: dict[Term, Degree] = {}
    for node in nodes:
        degrees[node] = _term_degree(node, [degrees[a] for a in node.args], extents)
    reduced: dict[Term, set[str]] = {node: set() for node in nodes}
    evaluations = 0
    for node in reversed(nodes):
        below = set(reduced[node])
        if node.op in t.REDUCTIONS:
            below |= set(_axes(node))
        for a in node.args:
            reduced[a] |= below
        calls: int = _CALLS.get(node.op, 1) if node.op in ELEMENTWISE else 0
        if node.op == t.POW and isinstance(node.attr, Fraction) and node.attr.denominator != 1:
            calls = 1
        if node.op == t.MAXR:
            calls = 1 + prod(extents[a] for a in _axes(node))
        evaluations += calls * prod([extents[a] for a in node.axes if a in reduced[node]])
    return Bound(degrees[root], evaluations)


def _term_degree(node: Term, args: list[Degree], extents: Mapping[str, int]) -> Degree:
    if node.op == t.INPUT:
        return LEAF
    if node.op == t.EXTENT:
        return Degree(len(_axes(node)), 0)
    if node.op == t.CONST:
        return LEAF if isinstance(node.attr, str) else FIXED
    if node.op in (t.ADD, t.MUL):
        return _fold(node.op, args)
    if node.op == t.POW:
        assert isinstance(node.attr, Fraction)
        return args[0].power(node.attr)
    if node.op == t.SUM:
        return args[0].total(prod(extents[a] for a in _axes(node)))
    return args[0].call() if node.op == t.MAXR else elementwise_degree(node.op, args)


def _axes(node: Term) -> tuple[str, ...]:
    assert isinstance(node.attr, tuple)
    return node.attr


def _fold(op: str, args: Iterable[Degree]) -> Degree:
    first, *rest = args
    for a in rest:
        first = first.plus(a) if op == "add" else first.times(a)
    return first


def ugraph_bounds(
    graph: UGraph, params: Sequence[KernelParams], extents: Mapping[str, int]
) -> dict[str, Bound]:
    """Tensor name -> bound of one of its elements."""
    degrees = {x.name: LEAF for x in graph.tensors if x.role in ("input", "weight")}
    bounds = {name: Bound(LEAF, 0) for name in degrees}
    for kernel, numbers in zip(graph.kernels, params, strict=True):
        runs = _iterations(kernel, numbers, extents), numbers.cluster if kernel.cluster else 1
        values: list[Degree] = []
        for op in kernel.ops:
            args = [values[a] for a in op.args]
            values.append(_op_degree(op, args, degrees, extents, runs))
        for save in kernel.saves:
            count = _evaluations(kernel, save.arg, bounds, extents, runs)
            degrees[save.tensor] = values[save.arg]
            bounds[save.tensor] = Bound(values[save.arg], count)
    return bounds


def _iterations(kernel: Kernel, numbers: KernelParams, extents: Mapping[str, int]) -> int:
    return -(-extents[kernel.loop] // numbers.loop_tile) if kernel.loop else 1


def _op_degree(
    op: BlockOp,
    args: list[Degree],
    tensors: Mapping[str, Degree],
    extents: Mapping[str, int],
    runs: tuple[int, int],
) -> Degree:
    match op.op:
        case "load":
            return tensors[op.tensor]
        case "extent":
            return Degree(len(op.reduced), 0)
        case "const":
            return LEAF if isinstance(op.value, str) else FIXED
        case "cast":
            return args[0]
        case "powr":
            assert isinstance(op.value, Fraction)
            return args[0].power(op.value)
        case "matmul":
            return args[0].times(args[1]).total(extents[op.reduced[0]])
        case "sum":
            return args[0].total(prod(extents[a] for a in op.reduced))
        case "acc_sum" | "red_sum":
            return args[0].total(runs[op.op == "red_sum"])
        case "rmax" | "acc_max" | "red_max":
            return args[0].call()
    return elementwise_degree(op.op, args)


def _evaluations(
    kernel: Kernel,
    root: int,
    tensors: Mapping[str, Bound],
    extents: Mapping[str, int],
    runs: tuple[int, int],
) -> int:
    """Function evaluations under one element of block value ``root``, counted from above."""
    reduced: dict[int, set[str]] = {root: set()}
    count = 0
    for index in range(root, -1, -1):
        if index not in reduced:
            continue
        op = kernel.ops[index]
        for a in op.args:
            reduced.setdefault(a, set()).update(reduced[index] | set(op.reduced))
        calls = _CALLS.get(op.op, 1) if op.op in ELEMENTWISE else 0
        match op.op:
            case "powr":
                calls = int(isinstance(op.value, Fraction) and op.value.denominator != 1)
            case "rmax":
                calls = 1 + prod(extents[a] for a in op.reduced)
            case "acc_max" | "red_max":
                calls = 1 + runs[op.op == "red_max"]
            case "load":
                calls = tensors[op.tensor].evaluations
        # A value over the loop axis has each element in one iteration, any other in all of them.
        repeats = runs[0] if op.phase is Phase.LOOP and kernel.loop not in op.axes else 1
        repeats *= runs[1] if kernel.cluster not in op.axes else 1
        count += calls * repeats * prod(extents[a] for a in op.axes if a in reduced[index])
    return count
