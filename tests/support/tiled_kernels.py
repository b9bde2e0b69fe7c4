"""Small block graphs for the tests of ``codegen/tiled``, and what the emulator makes of them."""

import re
from dataclasses import dataclass

import numpy as np

from mirage_onnx.codegen.tiled import emit_tiled
from mirage_onnx.codegen.tiled.kernel import plan_tiled
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.ir.ugraph import KernelParams, ugraph_extents
from mirage_onnx.target import H200
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named

#: o0 = softmax(i1 i0^T) i2 with a running maximum; a1 are the keys.
ATTENTION = """ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor i1 f16[a0,a3,a2] input
tensor i2 f16[a0,a1,a4] input
tensor o0 f16[a0,a3,a4] output
kernel k0 grid=a3,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1,a2] loop shared
  %1 = load i1 imap=a3,a0 cmap=- fmap=- : f16[a0,a3,a2] loop A_frag
  %2 = matmul[a2] %1 %0 : f32[a0,a1,a3] loop C_frag
  %3 = rmax[a1] %2 : f32[a0,a3] loop row
  %4 = run_max %3 : f32[a0,a3] loop row
  %5 = sub %2 %4 : f32[a0,a1,a3] loop C_frag
  %6 = exp %5 : f32[a0,a1,a3] loop C_frag
  %7 = sum[a1] %6 : f32[a0,a3] loop row
  %8 = prev %4 : f32[a0,a3] loop row
  %9 = sub %8 %4 : f32[a0,a3] loop row
  %10 = exp %9 : f32[a0,a3] loop row
  %11 = acc_scaled %7 %10 : f32[a0,a3] post row
  %12 = acc_max %3 : f32[a0,a3] post row
  %13 = red_max %12 : f32[a0,a3] post row
  %14 = sub %12 %13 : f32[a0,a3] post row
  %15 = exp %14 : f32[a0,a3] post row
  %16 = mul %11 %15 : f32[a0,a3] post row
  %17 = red_sum %16 : f32[a0,a3] post row
  %18 = load i2 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1,a4] loop shared
  %19 = cast %6 : f16[a0,a1,a3] loop A_frag
  %20 = matmul[a1] %19 %18 : f32[a0,a3,a4] loop C_frag
  %21 = acc_scaled %20 %10 : f32[a0,a3,a4] post C_frag
  %22 = mul %21 %15 : f32[a0,a3,a4] post C_frag
  %23 = red_sum %22 : f32[a0,a3,a4] post C_frag
  %24 = div %23 %17 : f32[a0,a3,a4] post C_frag
  %25 = cast %24 : f16[a0,a3,a4] post C_frag
  save o0 = %25 omap=a3,a0
"""

#: o0 = rsqrt(mean(i0^2)) * (i0 i1^T), no loop.
NORM_LINEAR = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=-
  %0 = load i0 imap=-,a0 cmap=- fmap=- : f16[a0,a1] post shared
  %1 = load i1 imap=a2,- cmap=- fmap=- : f16[a2,a1] post B_frag
  %2 = cast %0 : f32[a0,a1] post A_frag
  %3 = square %2 : f32[a0,a1] post A_frag
  %4 = sum[a1] %3 : f32[a0] post row
  %5 = extent[a1] : f32[] post uniform
  %6 = div %4 %5 : f32[a0] post row
  %7 = rsqrt %6 : f32[a0] post row
  %8 = mul %2 %7 : f32[a0,a1] post A_frag
  %9 = cast %8 : f16[a0,a1] post A_frag
  %10 = matmul[a1] %9 %1 : f32[a0,a2] post C_frag
  %11 = cast %10 : f16[a0,a2] post C_frag
  save o0 = %11 omap=a2,a0
"""

#: o0 = i0 - max(i0) over rows: no contraction.
CENTRED = """ugraph 1
tensor i0 f32[a0,a1] input
tensor o0 f32[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f32[a0,a1] post vector
  %1 = rmax[a1] %0 : f32[a0] post row
  %2 = sub %0 %1 : f32[a0,a1] post vector
  save o0 = %2 omap=a0
"""

#: o0 = i0 where i1 is true, else its square.
MASKED = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 bool[a0,a1] input
tensor o0 f32[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = load i1 imap=a0 cmap=- fmap=- : bool[a0,a1] post LAYOUT
  %2 = square %0 : f32[a0,a1] post vector
  %3 = select %1 %0 %2 : f32[a0,a1] post vector
  save o0 = %3 omap=a0
"""

#: Partial sums over tiles of a1 in one kernel, their sum in the next.
PARTS = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a1,a2] weight
tensor t0 f32[a0,a1/k0,a2] temp
tensor o0 f16[a0,a2] output
kernel k0 grid=a1,a0 cluster=- loop=-
  %0 = load i0 imap=a1,a0 cmap=- fmap=- : f16[a0,a1] post A_frag
  %1 = load i1 imap=a1,- cmap=- fmap=- : f16[a1,a2] post shared
  %2 = matmul[a1] %0 %1 : f32[a0,a2] post C_frag
  save t0 = %2 omap=a1/k0,a0
kernel k1 grid=a0 cluster=- loop=-
  %0 = load t0 imap=a0 cmap=- fmap=- : f32[a0,a1/k0,a2] post vector
  %1 = sum[a1/k0] %0 : f32[a0,a2] post row
  %2 = cast %1 : f16[a0,a2] post row
  save o0 = %2 omap=a0
"""


def product(
    a = "a0,a1", b = "a2,a1", *, dtype = "f16", loop = True,
    layouts = ("shared", "shared"), second = "",
):  # fmt: skip
    """o0[a0, a2] = a contraction over a1 of tensors with their axes in these orders."""
    phase, cut = ("loop", "a1") if loop else ("post", "-")
    total = "  %3 = acc_sum %2 : f32[a0,a2] post C_frag\n" if loop else ""
    return (
        f"ugraph 1\ntensor i0 {dtype}[{a}] input\ntensor i1 {second or dtype}[{b}] weight\n"
        f"tensor o0 f32[a0,a2] output\nkernel k0 grid=a2,a0 cluster=- loop={cut}\n"
        f"  %0 = load i0 imap=-,a0 cmap=- fmap={cut} : {dtype}[{a}] {phase} {layouts[0]}\n"
        f"  %1 = load i1 imap=a2,- cmap=- fmap={cut} : {second or dtype}[{b}] {phase} {layouts[1]}"
        f"\n  %2 = matmul[a1] %0 %1 : f32[a0,a2] {phase} C_frag\n{total}"
        f"  save o0 = %{3 if loop else 2} omap=a2,a0\n"
    )


@dataclass(frozen=True)
class Case:
    """A graph with numbers for its kernels and the extents of its axes."""

    text: str
    params: tuple[KernelParams, ...]
    extents: dict[str, int]

    @property
    def graph(self):
        return parse_ugraph(self.text)

    def all_extents(self):
        return ugraph_extents(self.graph, self.params, self.extents)

    def plan(self, kernel=0):
        graph = self.graph
        return plan_tiled(
            graph, graph.kernels[kernel], self.params[kernel], self.all_extents(), H200
        )


def case(
    text, *tile, cluster = 1, loop_tile = 0, warps = 4, stages = 1,
    **extents,
):  # fmt: skip
    """A graph of one kernel."""
    return Case(text, (KernelParams(tile, cluster, loop_tile, warps, stages),), extents)


def errors(cases, seed):
    """The largest error of every case, relative to its largest output if that is above 1."""
    named = [
        Case(re.sub(r"\bk(\d)\b", rf"c{n}k\1", c.text), c.params, c.extents)
        for n, c in enumerate(cases)
    ]
    sources, owners = [], []
    for number, c in enumerate(named):
        graph = c.graph
        for kernel, params in zip(graph.kernels, c.params, strict=True):
            sources.append(emit_tiled(graph, kernel, params, c.all_extents(), H200))
            owners.append(number)
    module = compile_kernels(sources)
    rng, found = np.random.default_rng(seed), []
    for number, c in enumerate(named):
        extents, graph, tensors, inputs = c.all_extents(), c.graph, {}, {}
        for t in graph.tensors:
            shape = tuple(extents[a] for a in t.axes)
            if t.role in ("input", "weight"):
                drawn = rng.standard_normal(shape)
                drawn = drawn > 0 if t.dtype is DType.BOOL else drawn
                tensors[t.name] = np.asarray(drawn).astype(t.dtype.numpy)
                inputs[t.name] = Named(tensors[t.name].astype(np.float64)[None], t.axes)
            else:
                tensors[t.name] = np.full(shape, np.nan).astype(t.dtype.numpy)
        module.run(tensors, [i for i, owner in enumerate(owners) if owner == number])
        wanted = interpret_ugraph(Rounded(), graph, c.params, c.extents, inputs)
        worst = 0.0
        for t in graph.tensors:
            if t.role == "output":
                want = wanted[t.name].aligned(t.axes)[0].astype(np.float64)
                gap = np.abs(tensors[t.name].astype(np.float64) - want).max()
                scale = max(1.0, float(np.abs(want).max()))
                worst = max(worst, float(gap) / scale if np.isfinite(gap) else np.inf)
        found.append(worst)
    return found
