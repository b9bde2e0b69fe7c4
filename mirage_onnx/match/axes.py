"""Named axes: from positional steps to terms.

A union-find over (tensor, dimension) joins the dimensions that a step ties together (elementwise
operands, the two sides of a contraction); a class of dimensions is an axis. Dimensions of extent 1
are no axes: they only say where a tensor is broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import term as t
from mirage_onnx.ir.ops import to_term
from mirage_onnx.ir.program import Constant, Operand, Step
from mirage_onnx.ir.term import Term

Shape = tuple[int, ...]
Dimension = tuple[str, int]


@dataclass(slots=True)
class _Union:
    parent: dict[Dimension, Dimension]

    def find(self, d: Dimension) -> Dimension:
        self.parent.setdefault(d, d)
        while self.parent[d] != d:
            self.parent[d] = self.parent[self.parent[d]]
            d = self.parent[d]
        return d

    def join(self, a: Dimension, b: Dimension) -> None:
        first, second = sorted((self.find(a), self.find(b)))
        self.parent[second] = first


@dataclass(frozen=True, slots=True)
class Named:
    """Steps over named axes; axis names are arbitrary here (``canonical.py`` renames them).

    ``axes``: the axis of every dimension of a tensor (None where its extent is 1).
    """

    axes: Mapping[str, tuple[str | None, ...]]
    extents: Mapping[str, int]
    terms: Mapping[str, Term]


def _shapes(steps: Iterable[Step], inputs: Mapping[str, Shape]) -> dict[str, Shape]:
    shapes = dict(inputs)
    for s in steps:
        assert s.output.shape is not None
        shapes[s.output.name] = tuple(int(d) for d in s.output.shape)
    return shapes


def _tie(u: _Union, step: Step, shapes: Mapping[str, Shape]) -> None:
    out, out_shape = step.output.name, shapes[step.output.name]

    def join(name: str, i: int, j: int) -> None:
        if shapes[name][i] > 1 and out_shape[j] > 1:
            u.join((name, i), (out, j))

    names = [i for i in step.inputs if isinstance(i, str)]
    if step.op == "matmul":
        _tie_matmul(u, step, shapes)
    elif step.op == "transpose":
        assert isinstance(step.attr, tuple)
        for j, i in enumerate(step.attr):
            join(names[0], i, j)
    elif step.op == "reshape":
        kept = [[i for i, n in enumerate(shapes[x]) if n > 1] for x in (names[0], out)]
        if [shapes[names[0]][i] for i in kept[0]] != [out_shape[j] for j in kept[1]]:
            raise RejectionError("AXES_CONFLICT", "a reshape splits or merges dimensions", (out,))
        for i, j in zip(*kept, strict=True):
            join(names[0], i, j)
    else:  # elementwise and reductions (which keep their dims): aligned from the right
        for name in names:
            rank = len(shapes[name])
            for i in range(rank):
                join(name, i, len(out_shape) - rank + i)


def _tie_matmul(u: _Union, step: Step, shapes: Mapping[str, Shape]) -> None:
    a, b = (str(i) for i in step.inputs)
    out = step.output.name
    sa, sb, so = shapes[a], shapes[b], shapes[out]
    ka, kb = len(sa) - 1, max(len(sb) - 2, 0)
    if sa[ka] > 1:
        u.join((a, ka), (b, kb))
    matrix_out = len(so)
    if len(sb) > 1:
        matrix_out -= 1
        if sb[-1] > 1:
            u.join((b, len(sb) - 1), (out, matrix_out))
    if len(sa) > 1:
        matrix_out -= 1
        if sa[-2] > 1:
            u.join((a, len(sa) - 2), (out, matrix_out))
    for name, shape in ((a, sa), (b, sb)):
        batch = len(shape) - 2
        for i in range(batch):
            j = matrix_out - batch + i
            if shape[i] > 1 and so[j] > 1:
                u.join((name, i), (out, j))


def _constant(c: Constant) -> Term:
    return t.power(t.const(c.base), c.exponent)


def _exponent(c: Operand) -> Fraction:
    if isinstance(c, Constant) and isinstance(c.base, Fraction) and c.exponent == 1:
        return c.base
    raise RejectionError("OP_FORM", "a power with an exponent that is not a rational constant")


def name_axes(
    steps: tuple[Step, ...],
    inputs: Mapping[str, Shape],
    constants: Mapping[str, Constant],
) -> Named:
    """Axes and terms of ``steps``; ``inputs`` are the shapes of the tensors they read.

    Raises:
        RejectionError: AXES_CONFLICT where one tensor would have an axis twice, or a reshape does
            more than move dimensions of extent 1.
    """
    shapes = _shapes(steps, inputs)
    u = _Union({})
    for s in steps:
        _tie(u, s, shapes)
    label: dict[Dimension, str] = {}
    extents: dict[str, int] = {}
    axes: dict[str, tuple[str | None, ...]] = {}
    for name, shape in shapes.items():
        own: list[str | None] = []
        for i, n in enumerate(shape):
            if n == 1:
                own.append(None)
                continue
            root = u.find((name, i))
            axis = label.setdefault(root, f"x{len(label):03d}")
            if extents.setdefault(axis, n) != n or axis in own:
                raise RejectionError("AXES_CONFLICT", f"{name} would have one axis twice", (name,))
            own.append(axis)
        axes[name] = tuple(own)
    terms: dict[str, Term] = {
        name: _constant(constants[name])
        if name in constants
        else t.input_(name, (a for a in axes[name] if a))
        for name in inputs
    }
    for s in steps:
        terms[s.output.name] = _term(s, axes, terms, constants)
    return Named(axes, extents, terms)


def _term(
    step: Step,
    axes: Mapping[str, tuple[str | None, ...]],
    terms: Mapping[str, Term],
    constants: Mapping[str, Constant],
) -> Term:
    def value(operand: Operand) -> Term:
        if isinstance(operand, Constant):
            return _constant(operand)
        if operand in constants:
            return _constant(constants[operand])
        return terms[operand]

    args = [value(i) for i in step.inputs] if step.op != "pow" else [value(step.inputs[0])]
    if step.op in ("cast", "transpose", "reshape"):
        return args[0]
    if step.op == "pow":
        return t.power(args[0], _exponent(step.inputs[1]))
    if step.op == "matmul":
        a = axes[str(step.inputs[0])]
        return t.reduce_(t.SUM, [x for x in a[-1:] if x], t.mul(*args))
    if step.op in ("sum", "mean", "rmax"):
        assert isinstance(step.attr, tuple)
        source = axes[str(step.inputs[0])]
        reduced = [x for i in step.attr if (x := source[i])]
        if step.op == "rmax":
            return t.reduce_(t.MAXR, reduced, args[0])
        total = t.reduce_(t.SUM, reduced, args[0])
        return t.mul(t.power(t.extent(reduced), -1), total) if step.op == "mean" else total
    return to_term(step.op, *args)
