"""Block graphs in canonical text, and what they mean in float64."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.ir.ugraph import KernelParams, UGraph
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named

TEXTS = {
    # o0 = i0 i1
    "plain": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = matmul[a1] %1 %0 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = red_sum %3 : f32[a0,a2] post shared
  %5 = cast %4 : f16[a0,a2] post element
  save o0 = %5 omap=a2,a0
""",
    # o0 = rsqrt(mean(i0^2) + eps) * (i0 i1) + i2 + i3
    "scaled": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a2] weight
tensor i3 f16[a0,a2] input
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = square %0 : f32[a0,a1] loop B_frag
  %3 = sum[a1] %2 : f32[a0] loop row
  %4 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %5 = acc_sum %3 : f32[a0] post row
  %6 = acc_sum %4 : f32[a0,a2] post C_frag
  %7 = red_sum %5 : f32[a0] post row
  %8 = red_sum %6 : f32[a0,a2] post shared
  %9 = extent[a1] : f32[] post uniform
  %10 = div %7 %9 : f32[a0] post row
  %11 = const[1/100000] : f32[] post uniform
  %12 = add %10 %11 : f32[a0] post row
  %13 = rsqrt %12 : f32[a0] post row
  %14 = mul %8 %13 : f32[a0,a2] post element
  %15 = load i2 imap=a2,- cmap=- fmap=- : f16[a2] post column
  %16 = add %14 %15 : f32[a0,a2] post element
  %17 = cast %16 : f16[a0,a2] post element
  %18 = load i3 imap=a2,a0 cmap=- fmap=- : f16[a0,a2] post element
  %19 = add %17 %18 : f32[a0,a2] post element
  %20 = cast %19 : f16[a0,a2] post element
  save o0 = %20 omap=a2,a0
""",
    # every layout of the loop: o0 = (i0 * i2 + i3) (i1 - i4), and sums and maxima on the side
    "layouts": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a1] weight
tensor i3 f32[a0] input
tensor i4 f16[a2] weight
tensor o0 f32[a2,a0] output
tensor o1 f32[a0] output
tensor o2 f32[a2] output
tensor o3 f32[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = load i2 imap=-,- cmap=a1 fmap=a1 : f16[a1] loop depth
  %3 = load i3 imap=-,a0 cmap=- fmap=- : f32[a0] loop row
  %4 = load i4 imap=a2,- cmap=- fmap=- : f16[a2] loop column
  %5 = mul %0 %2 : f32[a0,a1] loop B_frag
  %6 = neg %3 : f32[a0] loop row
  %7 = sub %5 %6 : f32[a0,a1] loop B_frag
  %8 = cast %7 : f16[a0,a1] loop B_frag
  %9 = sub %1 %4 : f32[a2,a1] loop A_frag
  %10 = cast %9 : f16[a2,a1] loop A_frag
  %11 = matmul[a1] %10 %8 : f32[a0,a2] loop C_frag
  %12 = acc_sum %11 : f32[a0,a2] post C_frag
  %13 = exp %2 : f32[a1] loop depth
  %14 = sum[a1] %13 : f32[] loop uniform
  %15 = acc_sum %14 : f32[] post uniform
  %16 = sum[a1] %9 : f32[a2] loop column
  %17 = acc_sum %16 : f32[a2] post column
  %18 = rmax[a1] %7 : f32[a0] loop row
  %19 = acc_max %18 : f32[a0] post row
  %20 = rmax[a1] %10 : f32[a2] loop column
  %21 = acc_max %20 : f32[a2] post column
  %22 = red_sum %12 : f32[a0,a2] post shared
  %23 = red_sum %15 : f32[] post uniform
  %24 = red_sum %17 : f32[a2] post column
  %25 = red_max %19 : f32[a0] post row
  %26 = red_max %21 : f32[a2] post column
  %27 = add %22 %23 : f32[a0,a2] post element
  %28 = max %24 %26 : f32[a2] post column
  %29 = mul %24 %25 : f32[a0,a2] post element
  save o0 = %27 omap=a2,a0
  save o1 = %25 omap=-,a0
  save o2 = %28 omap=a2,-
  save o3 = %29 omap=a2,a0
""",
    # o0 = sigmoid(i0 i1) * (i0 i2)
    "pair": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = load i2 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %3 = matmul[a1] %1 %0 : f32[a0,a2] loop C_frag
  %4 = matmul[a1] %2 %0 : f32[a0,a2] loop C_frag
  %5 = acc_sum %3 : f32[a0,a2] post C_frag
  %6 = acc_sum %4 : f32[a0,a2] post C_frag
  %7 = red_sum %5 : f32[a0,a2] post shared
  %8 = red_sum %6 : f32[a0,a2] post shared
  %9 = sigmoid %7 : f32[a0,a2] post element
  %10 = mul %9 %8 : f32[a0,a2] post element
  %11 = cast %10 : f16[a0,a2] post element
  save o0 = %11 omap=a2,a0
""",
    # o0 = i0 i1 + half(i0 i2) i3: i2 has a small column axis a3 that every block has whole
    "small_third": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a3,a1] weight
tensor i3 f16[a2,a3] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = load i2 imap=-,- cmap=a1 fmap=a1 : f16[a3,a1] loop A_frag
  %3 = matmul[a1] %1 %0 : f32[a0,a2] loop C_frag
  %4 = matmul[a1] %2 %0 : f32[a0,a3] loop C_frag
  %5 = acc_sum %3 : f32[a0,a2] post C_frag
  %6 = acc_sum %4 : f32[a0,a3] post C_frag
  %7 = red_sum %5 : f32[a0,a2] post shared
  %8 = red_sum %6 : f32[a0,a3] post shared
  %9 = cast %8 : f16[a0,a3] post shared
  %10 = load i3 imap=a2,- cmap=- fmap=- : f16[a2,a3] post element
  %11 = matmul[a3] %9 %10 : f32[a0,a2] post element
  %12 = add %7 %11 : f32[a0,a2] post element
  %13 = cast %12 : f16[a0,a2] post element
  save o0 = %13 omap=a2,a0
""",
    # y = i0 i1; o0 = y / max|y|, o1 = y rsqrt(sum y^2), over the columns, which a block has whole
    "over_columns": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
tensor o1 f16[a0,a2] output
kernel k0 grid=a0 cluster=a1 loop=a1
  %0 = load i0 imap=a0 cmap=a1 fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=- cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = red_sum %3 : f32[a0,a2] post shared
  %5 = abs %4 : f32[a0,a2] post shared
  %6 = rmax[a2] %5 : f32[a0] post row
  %7 = div %4 %6 : f32[a0,a2] post element
  %8 = cast %7 : f16[a0,a2] post element
  %9 = square %4 : f32[a0,a2] post shared
  %10 = sum[a2] %9 : f32[a0] post row
  %11 = rsqrt %10 : f32[a0] post row
  %12 = mul %4 %11 : f32[a0,a2] post element
  %13 = cast %12 : f16[a0,a2] post element
  save o0 = %8 omap=a0
  save o1 = %13 omap=a0
""",
    # a vector times a matrix, scaled by its own length
    "vector": """ugraph 1
tensor i0 f16[a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a2] output
kernel k0 grid=a2 cluster=a1 loop=a1
  %0 = load i0 imap=- cmap=a1 fmap=a1 : f16[a1] loop B_frag
  %1 = load i1 imap=a2 cmap=a1 fmap=a1 : f16[a2,a1] loop A_frag
  %2 = square %0 : f32[a1] loop B_frag
  %3 = sum[a1] %2 : f32[] loop uniform
  %4 = matmul[a1] %1 %0 : f32[a2] loop C_frag
  %5 = acc_sum %3 : f32[] post uniform
  %6 = acc_sum %4 : f32[a2] post column
  %7 = red_sum %5 : f32[] post uniform
  %8 = red_sum %6 : f32[a2] post column
  %9 = rsqrt %7 : f32[] post uniform
  %10 = mul %8 %9 : f32[a2] post column
  %11 = cast %10 : f16[a2] post column
  save o0 = %11 omap=a2
""",
    # one product per a3, which the grid splits into ones
    "batch": """ugraph 1
tensor i0 f16[a0,a3,a1] input
tensor i1 f16[a3,a2,a1] input
tensor o0 f16[a3,a0,a2] output
kernel k0 grid=a2,a0,a3 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0,a3 cmap=a1 fmap=a1 : f16[a0,a3,a1] loop B_frag
  %1 = load i1 imap=a2,-,a3 cmap=a1 fmap=a1 : f16[a3,a2,a1] loop A_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2,a3] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2,a3] post C_frag
  %4 = red_sum %3 : f32[a0,a2,a3] post shared
  %5 = cast %4 : f16[a0,a2,a3] post element
  save o0 = %5 omap=a2,a0,a3
""",
    # the weight as the model has it: depth first
    "depth_first": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a1,a2] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a1,a2] loop A_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = cast %3 : f16[a0,a2] post element
  save o0 = %4 omap=a2,a0
""",
    # o0 = i0 rsqrt(mean(i0^2) + eps) i1, o1 its factor, o2 = exp(i0 - max i0) / sum, transposed
    "rows": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f32[a1] weight
tensor o0 f16[a0,a1] output
tensor o1 f32[a0] output
tensor o2 f32[a1,a0] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = load i1 imap=- cmap=- fmap=- : f32[a1] post vector
  %2 = square %0 : f32[a0,a1] post vector
  %3 = sum[a1] %2 : f32[a0] post uniform
  %4 = extent[a1] : f32[] post uniform
  %5 = div %3 %4 : f32[a0] post uniform
  %6 = const[1/100000] : f32[] post uniform
  %7 = add %5 %6 : f32[a0] post uniform
  %8 = rsqrt %7 : f32[a0] post uniform
  %9 = mul %0 %8 : f32[a0,a1] post vector
  %10 = mul %9 %1 : f32[a0,a1] post vector
  %11 = cast %10 : f16[a0,a1] post vector
  %12 = rmax[a1] %0 : f32[a0] post uniform
  %13 = sub %0 %12 : f32[a0,a1] post vector
  %14 = exp %13 : f32[a0,a1] post vector
  %15 = sum[a1] %14 : f32[a0] post uniform
  %16 = div %14 %15 : f32[a0,a1] post vector
  save o0 = %11 omap=a0
  save o1 = %8 omap=a0
  save o2 = %16 omap=a0
""",
    # operands of several orders and subsets of axes; bf16
    "rows_mixed": """ugraph 1
tensor i0 bf16[a0,a2,a1] input
tensor i1 bf16[a1,a2] input
tensor i2 bf16[a2] input
tensor o0 bf16[a2,a0,a1] output
kernel k0 grid=a0,a2 cluster=- loop=-
  %0 = load i0 imap=a0,a2 cmap=- fmap=- : bf16[a0,a2,a1] post vector
  %1 = load i1 imap=-,a2 cmap=- fmap=- : bf16[a1,a2] post vector
  %2 = load i2 imap=-,a2 cmap=- fmap=- : bf16[a2] post uniform
  %3 = add %0 %1 : f32[a0,a2,a1] post vector
  %4 = tanh %3 : f32[a0,a2,a1] post vector
  %5 = max %4 %2 : f32[a0,a2,a1] post vector
  %6 = cast %5 : bf16[a0,a2,a1] post vector
  save o0 = %6 omap=a0,a2
""",
    # a row kernel feeds a streaming kernel
    "chain": """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor t0 f16[a0,a1] temp
tensor o0 f16[a0,a2] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = erf %0 : f32[a0,a1] post vector
  %2 = cast %1 : f16[a0,a1] post vector
  save t0 = %2 omap=a0
kernel k1 grid=a2,a0 cluster=- loop=a1
  %0 = load t0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop B_frag
  %1 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop A_frag
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = cast %3 : f16[a0,a2] post element
  save o0 = %4 omap=a2,a0
""",
}


class Graphs:
    """``graphs["plain"]``; ``graphs["plain:bf16"]`` has bf16 for f16."""

    def text(self, name: str) -> str:
        base, _, dtype = name.partition(":")
        return TEXTS[base].replace("f16", dtype) if dtype else TEXTS[base]

    def __getitem__(self, name: str) -> UGraph:
        return parse_ugraph(self.text(name))

    def inputs(
        self, graph: UGraph, extents: Mapping[str, int], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Random inputs and weights, and poisoned outputs and workspace, in their own types."""
        tensors = {}
        for tensor in graph.tensors:
            shape = tuple(extents[a] for a in tensor.axes)
            values = np.full(shape, np.nan)
            if tensor.role in ("input", "weight"):
                values = rng.standard_normal(shape)
            tensors[tensor.name] = values.astype(tensor.dtype.numpy)
        return tensors

    def expected(
        self, graph: UGraph, extents: Mapping[str, int], tensors: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The outputs in float64, casts rounded, each kernel one block."""
        inputs = {
            t.name: Named(tensors[t.name].astype(np.float64)[None], t.axes)
            for t in graph.tensors
            if t.role in ("input", "weight")
        }
        numbers = [
            KernelParams(
                tuple(extents[a] for a in k.grid), loop_tile=extents[k.loop] if k.loop else 0
            )
            for k in graph.kernels
        ]
        values = interpret_ugraph(Rounded(), graph, numbers, extents, inputs)
        return {t.name: values[t.name].data[0] for t in graph.tensors if t.role == "output"}


@pytest.fixture(scope="session")
def graphs() -> Graphs:
    return Graphs()
