"""Regions written by hand, and µGraphs that compute them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mirage_onnx.ir import ops, term
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Constant, Step, Tensor
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.term import Term
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.ir.ugraph import UGraph

F16, F32 = DType.F16, DType.F32
EPS = Constant(Fraction(1, 100000))
Shape = tuple[int, ...]


class Builder:
    """A region from ONNX-like steps; terms and axes are given beside them."""

    def __init__(self, **extents: int) -> None:
        self.extents = extents
        self.inputs: list[RegionTensor] = []
        self.outputs: list[RegionTensor] = []
        self.terms: list[Term] = []
        self.steps: list[Step] = []

    def input(self, axes: str, *, ones: int = 0, weight: bool = False, dtype: DType = F16) -> Term:
        """``ones``: leading dimensions of extent 1 of the ONNX tensor."""
        names = tuple(axes.split())
        shape = (1,) * ones + tuple(self.extents[a] for a in names)
        name = f"i{len(self.inputs)}"
        tensor = Tensor(f"x{len(self.inputs)}", dtype, shape)
        self.inputs.append(RegionTensor(name, dtype, names, tensor, weight))
        return term.input_(name, names)

    def step(
        self, op: str, *inputs: str | Constant, shape: Shape, attr: object = None, to: DType = F16
    ) -> str:
        name = f"t{len(self.steps)}"
        self.steps.append(Step(op, inputs, Tensor(name, to, shape), attr))  # type: ignore[arg-type]
        return name

    def output(self, tensor: str, axes: str, value: Term) -> None:
        step = next(s for s in self.steps if s.output.name == tensor)
        assert step.output.dtype is not None
        name = f"o{len(self.outputs)}"
        names = tuple(axes.split())
        self.outputs.append(RegionTensor(name, step.output.dtype, names, step.output))
        self.terms.append(value)

    def region(self) -> Region:
        return Region(
            ("node",), tuple(self.steps), {}, tuple(self.inputs), tuple(self.outputs),
            tuple(self.terms), self.extents,
        )  # fmt: skip


def mean_square_scale(x: Term, axis: str) -> Term:
    """1 / sqrt(mean(x^2) + eps)."""
    squares = term.reduce_("sum", [axis], term.power(x, 2))
    mean = term.mul(term.power(term.extent([axis]), -1), squares)
    return term.power(term.add(mean, term.const(Fraction(1, 100000))), Fraction(-1, 2))


def norm_steps(b: Builder, x: str, gamma: str, rows: int, size: int) -> str:
    """RMS normalisation as exporters write it, statistics in fp32."""
    wide = b.step("cast", x, shape=(1, rows, size), attr=F32, to=F32)
    square = b.step("pow", wide, Constant(Fraction(2)), shape=(1, rows, size), to=F32)
    mean = b.step("mean", square, shape=(1, rows, 1), attr=(-1,), to=F32)
    shifted = b.step("add", mean, EPS, shape=(1, rows, 1), to=F32)
    root = b.step("sqrt", shifted, shape=(1, rows, 1), to=F32)
    scale = b.step("recip", root, shape=(1, rows, 1), to=F32)
    normal = b.step("mul", wide, scale, shape=(1, rows, size), to=F32)
    narrow = b.step("cast", normal, shape=(1, rows, size), attr=F16)
    return b.step("mul", narrow, gamma, shape=(1, rows, size))


def norm_linear() -> Region:
    b = Builder(a0=16, a1=4096, a2=4096)
    x = b.input("a0 a1", ones=1)
    gamma = b.input("a1", weight=True)
    w = b.input("a1 a2", weight=True)
    normal = norm_steps(b, "x0", "x1", 16, 4096)
    y = b.step("matmul", normal, "x2", shape=(1, 16, 4096))
    value = term.mul(x, mean_square_scale(x, "a1"), gamma, w)
    b.output(y, "a0 a2", term.reduce_("sum", ["a1"], value))
    return b.region()


NORM_LINEAR = """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a1] weight
tensor i2 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=-,- cmap=- fmap=a1 : f16[a1] loop depth
  %2 = load i2 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop A_frag
  %3 = mul %0 %1 : f32[a0,a1] loop B_frag
  %4 = cast %3 : f16[a0,a1] loop B_frag
  %5 = matmul[a1] %4 %2 : f32[a0,a2] loop C_frag
  %6 = acc_sum %5 : f32[a0,a2] post C_frag
  %7 = square %0 : f32[a0,a1] loop B_frag
  %8 = sum[a1] %7 : f32[a0] loop row
  %9 = acc_sum %8 : f32[a0] post row
  %10 = extent[a1] : f32[] post uniform
  %11 = div %9 %10 : f32[a0] post row
  %12 = const[1/100000] : f32[] post uniform
  %13 = add %11 %12 : f32[a0] post row
  %14 = rsqrt %13 : f32[a0] post row
  %15 = mul %6 %14 : f32[a0,a2] post C_frag
  %16 = cast %15 : f16[a0,a2] post C_frag
  save o0 = %16 omap=a2,a0
"""


NORM_LINEAR_CLUSTER = """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a1] weight
tensor i2 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=-,- cmap=a1 fmap=a1 : f16[a1] loop depth
  %2 = load i2 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %3 = mul %0 %1 : f32[a0,a1] loop B_frag
  %4 = cast %3 : f16[a0,a1] loop B_frag
  %5 = matmul[a1] %4 %2 : f32[a0,a2] loop C_frag
  %6 = acc_sum %5 : f32[a0,a2] post C_frag
  %7 = red_sum %6 : f32[a0,a2] post C_frag
  %8 = square %0 : f32[a0,a1] loop B_frag
  %9 = sum[a1] %8 : f32[a0] loop row
  %10 = acc_sum %9 : f32[a0] post row
  %11 = red_sum %10 : f32[a0] post row
  %12 = extent[a1] : f32[] post uniform
  %13 = recip %12 : f32[] post uniform
  %14 = mul %11 %13 : f32[a0] post row
  %15 = const[1/100000] : f32[] post uniform
  %16 = add %14 %15 : f32[a0] post row
  %17 = powr[-1/2] %16 : f32[a0] post row
  %18 = mul %7 %17 : f32[a0,a2] post C_frag
  %19 = cast %18 : f16[a0,a2] post C_frag
  save o0 = %19 omap=a2,a0
"""


def gated() -> Region:
    """silu(x W1) * (x W2), with the two halves of a sigmoid gate written out."""
    b = Builder(a0=8, a1=4096, a2=4096)
    x = b.input("a0 a1")
    w1, w2 = b.input("a1 a2", weight=True), b.input("a1 a2", weight=True)
    gate = b.step("matmul", "x0", "x1", shape=(8, 4096))
    up = b.step("matmul", "x0", "x2", shape=(8, 4096))
    sigmoid = b.step("sigmoid", gate, shape=(8, 4096))
    silu = b.step("mul", gate, sigmoid, shape=(8, 4096))
    y = b.step("mul", silu, up, shape=(8, 4096))
    g = term.reduce_("sum", ["a1"], term.mul(x, w1))
    u = term.reduce_("sum", ["a1"], term.mul(x, w2))
    b.output(y, "a0 a2", term.mul(g, ops.to_term("sigmoid", g), u))
    return b.region()


GATED = """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2 cluster=- loop=a1
  %0 = load i0 imap=- cmap=- fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2 cmap=- fmap=a1 : f16[a2,a1] loop A_frag
  %2 = load i2 imap=a2 cmap=- fmap=a1 : f16[a2,a1] loop A_frag
  %3 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %4 = acc_sum %3 : f32[a0,a2] post C_frag
  %5 = matmul[a1] %0 %2 : f32[a0,a2] loop C_frag
  %6 = acc_sum %5 : f32[a0,a2] post C_frag
  %7 = neg %4 : f32[a0,a2] post C_frag
  %8 = exp %7 : f32[a0,a2] post C_frag
  %9 = const[1] : f32[] post uniform
  %10 = add %8 %9 : f32[a0,a2] post C_frag
  %11 = div %4 %10 : f32[a0,a2] post C_frag
  %12 = mul %11 %6 : f32[a0,a2] post C_frag
  %13 = cast %12 : f16[a0,a2] post C_frag
  save o0 = %13 omap=a2
"""


def low_rank() -> Region:
    """x W + (x A) B / 2."""
    b = Builder(a0=16, a1=4096, a2=4096, a3=16)
    x = b.input("a0 a1")
    w, a, c = (b.input(axes, weight=True) for axes in ("a1 a2", "a1 a3", "a3 a2"))
    main = b.step("matmul", "x0", "x1", shape=(16, 4096))
    down = b.step("matmul", "x0", "x2", shape=(16, 16))
    up = b.step("matmul", down, "x3", shape=(16, 4096))
    half = b.step("mul", up, Constant(Fraction(1, 2)), shape=(16, 4096))
    y = b.step("add", main, half, shape=(16, 4096))
    inner = term.reduce_("sum", ["a1"], term.mul(x, a))
    outer = term.reduce_("sum", ["a3"], term.mul(inner, c))
    linear = term.reduce_("sum", ["a1"], term.mul(x, w))
    b.output(y, "a0 a2", term.add(linear, term.mul(term.const(Fraction(1, 2)), outer)))
    return b.region()


LOW_RANK = """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a3,a1] weight
tensor i3 f16[a2,a3] weight
tensor o0 f16[a0,a2] output
tensor t0 f16[a0,a3] temp
kernel k0 grid=a3,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i2 imap=a3,- cmap=a1 fmap=a1 : f16[a3,a1] loop A_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a3] loop C_frag
  %3 = acc_sum %2 : f32[a0,a3] post C_frag
  %4 = red_sum %3 : f32[a0,a3] post C_frag
  %5 = const[1/2] : f32[] post uniform
  %6 = mul %4 %5 : f32[a0,a3] post C_frag
  %7 = cast %6 : f16[a0,a3] post C_frag
  save t0 = %7 omap=a3,a0
kernel k1 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop A_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = load t0 imap=-,a0 cmap=- fmap=- : f16[a0,a3] post B_frag
  %5 = load i3 imap=a2,- cmap=- fmap=- : f16[a2,a3] post A_frag
  %6 = matmul[a3] %4 %5 : f32[a0,a2] post C_frag
  %7 = add %3 %6 : f32[a0,a2] post C_frag
  %8 = cast %7 : f16[a0,a2] post C_frag
  save o0 = %8 omap=a2,a0
"""


def residual_norm() -> Region:
    """s = x + r and gamma * s / sqrt(mean(s^2) + eps): two outputs."""
    b = Builder(a0=64, a1=4096)
    x, r = b.input("a0 a1", ones=1), b.input("a0 a1", ones=1)
    gamma = b.input("a1", weight=True)
    s = b.step("add", "x0", "x1", shape=(1, 64, 4096))
    y = norm_steps(b, s, "x2", 64, 4096)
    value = term.add(x, r)
    b.output(s, "a0 a1", value)
    b.output(y, "a0 a1", term.mul(value, mean_square_scale(value, "a1"), gamma))
    return b.region()


RESIDUAL_NORM = """\
ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a0,a1] input
tensor i2 f16[a1] weight
tensor o0 f16[a0,a1] output
tensor o1 f16[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = load i1 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %2 = load i2 imap=- cmap=- fmap=- : f16[a1] post vector
  %3 = add %0 %1 : f32[a0,a1] post vector
  %4 = square %3 : f32[a0,a1] post vector
  %5 = sum[a1] %4 : f32[a0] post uniform
  %6 = extent[a1] : f32[] post uniform
  %7 = div %5 %6 : f32[a0] post uniform
  %8 = const[1/100000] : f32[] post uniform
  %9 = add %7 %8 : f32[a0] post uniform
  %10 = rsqrt %9 : f32[a0] post uniform
  %11 = mul %3 %10 : f32[a0,a1] post vector
  %12 = mul %11 %2 : f32[a0,a1] post vector
  %13 = cast %12 : f16[a0,a1] post vector
  %14 = cast %3 : f16[a0,a1] post vector
  save o0 = %14 omap=a0
  save o1 = %13 omap=a0
"""


def softmax() -> Region:
    """exp(x - max) / sum(exp(x - max)) over the last axis, in fp32."""
    b = Builder(a0=64, a1=1024)
    x = b.input("a0 a1", dtype=F32)
    top = b.step("rmax", "x0", shape=(64, 1), attr=(1,), to=F32)
    shifted = b.step("sub", "x0", top, shape=(64, 1024), to=F32)
    e = b.step("exp", shifted, shape=(64, 1024), to=F32)
    total = b.step("sum", e, shape=(64, 1), attr=(1,), to=F32)
    y = b.step("div", e, total, shape=(64, 1024), to=F32)
    value = ops.to_term("exp", ops.to_term("sub", x, term.reduce_("rmax", ["a1"], x)))
    b.output(y, "a0 a1", ops.to_term("div", value, term.reduce_("sum", ["a1"], value)))
    return b.region()


SOFTMAX = """\
ugraph 1
tensor i0 f32[a0,a1] input
tensor o0 f32[a0,a1] output
tensor t0 f32[a0] temp
kernel k0 grid=a0 cluster=a1 loop=a1
  %0 = load i0 imap=a0 cmap=a1 fmap=a1 : f32[a0,a1] loop vector
  %1 = rmax[a1] %0 : f32[a0] loop uniform
  %2 = acc_max %1 : f32[a0] post uniform
  %3 = red_max %2 : f32[a0] post uniform
  save t0 = %3 omap=a0
kernel k1 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f32[a0,a1] post vector
  %1 = load t0 imap=a0 cmap=- fmap=- : f32[a0] post uniform
  %2 = sub %0 %1 : f32[a0,a1] post vector
  %3 = exp %2 : f32[a0,a1] post vector
  %4 = sum[a1] %3 : f32[a0] post uniform
  %5 = div %3 %4 : f32[a0,a1] post vector
  save o0 = %5 omap=a0
"""

TEXTS = {
    "norm_linear": (norm_linear, NORM_LINEAR),
    "norm_linear_cluster": (norm_linear, NORM_LINEAR_CLUSTER),
    "gated": (gated, GATED),
    "low_rank": (low_rank, LOW_RANK),
    "residual_norm": (residual_norm, RESIDUAL_NORM),
    "softmax": (softmax, SOFTMAX),
}


@pytest.fixture(scope="session")
def goldens() -> dict[str, tuple[Region, UGraph]]:
    """Name -> a region and a µGraph that computes it."""
    return {name: (region(), parse_ugraph(text)) for name, (region, text) in TEXTS.items()}
