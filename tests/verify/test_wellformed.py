"""Every rule of ``ir/ugraph.py``, broken one at a time: an edit of a text, and the sentence."""

from __future__ import annotations

import pytest
from goldens import GOLDENS

from mirage_onnx.ir.region import Region
from mirage_onnx.ir.text import parse_ugraph, print_ugraph
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.verify.wellformed import check_interface, check_ugraph

CLUSTER, LOW_RANK = "norm_linear_cluster", "low_rank"
BROKEN = [
    (CLUSTER, "grid=a2,a0", "grid=a2,a2", "two grid dimensions split one axis"),
    (CLUSTER, "%0 = load i0", "%0 = load i7", "there is no tensor i7"),
    (CLUSTER, "imap=-,a0 cmap=a1", "imap=a0,- cmap=a1", "sends the grid to a0"),
    (CLUSTER, "imap=-,- cmap", "imap=-,a0 cmap", "a map names a0, which i1 does not have"),
    (CLUSTER, "imap=-,- cmap", "imap=- cmap", "imap needs one entry per grid dimension"),
    (CLUSTER, "cmap=a1 fmap=a1 : f16[a1] ", "cmap=- fmap=a1 : f16[a1] ", "without ['cluster']"),
    (CLUSTER, "cmap=a1 fmap=a1 : f16[a1] ", "cmap=a1 fmap=- : f16[a1] ", "a1 is cut by"),
    (CLUSTER, "f16[a2,a1] loop A", "f16[a2] loop A", "i2 is over ('a2', 'a1')"),
    (CLUSTER, "%5 = matmul[a1]", "%5 = matmul[a0]", "an operand lacks a0"),
    (CLUSTER, "%4 = cast %3 : f16", "%4 = cast %3 : f32", "operands are"),
    (CLUSTER, "matmul[a1] %4 %2 : f32[a0,a2]", "matmul[a1] %4 %2 : f32[a0]", "the value is over"),
    (CLUSTER, "matmul[a1] %4 %2 : f32", "matmul[a1] %4 %2 : f16", "accumulates in f32"),
    (CLUSTER, "%6 = acc_sum %5", "%6 = red_sum %5", "is not of phase post"),
    (CLUSTER, "%9 = sum[a1] %8", "%9 = sum[a2] %8", "there is no ('a2',) here"),
    (CLUSTER, "%10 = acc_sum %9 : f32[a0]", "%10 = acc_sum %8 : f32[a0,a1]", "tiles of ['a1']"),
    (CLUSTER, "acc_sum %5 : f32[a0,a2] post", "acc_sum %5 : f32[a0,a2] loop", "only after"),
    (CLUSTER, "%7 = red_sum %6", "%7 = acc_sum %6", "accumulates a value from after the loop"),
    (CLUSTER, "%12 = extent[a1] : f32[] post", "%12 = extent[a1] : f32[] loop", "of phase post"),
    (CLUSTER, "extent[a1]", "extent[a9]", "no tensor has ('a9',)"),
    (CLUSTER, "extent[a1]", "extent[a1,a1]", "('a1', 'a1') names an axis twice"),
    ("residual_norm", "loop=-", "loop=a1", "no load is cut by the loop over a1"),
    ("residual_norm", "cluster=-", "cluster=a7", "no load is cut by the cluster over a7"),
    (CLUSTER, "cluster=a1", "cluster=-", "but the kernel to None"),
    (CLUSTER, "%14 = mul %11 %13", "%14 = mul %11 %18", "not an earlier value"),
    (CLUSTER, "%14 = mul %11 %13", "%14 = mul %11", "2 arguments are needed, not 1"),
    (CLUSTER, "%14 = mul ", "%14 = frob ", "there is no such operation"),
    (CLUSTER, "const[1/100000]", "const", "a constant needs a value"),
    (CLUSTER, "const[1/100000]", "const[tau]", "what is tau?"),
    (CLUSTER, "powr[-1/2]", "powr", "the exponent is missing"),
    (CLUSTER, "save o0 = %19", "save o0 = %4", "saved before the loop ends"),
    (CLUSTER, "save o0 = %19", "save o0 = %17", "o0 is over ('a0', 'a2')"),
    (CLUSTER, "omap=a2,a0", "omap=a0,a2", "all write what"),
    (CLUSTER, "omap=a2,a0", "omap=a2,-", "all write what"),
    (CLUSTER, "save o0", "save i0", "read and saved by one kernel"),
    (CLUSTER, "tensor o0 f16[a0,a2] output", "tensor o0 f16[a0,a2] result", "unknown role"),
    (CLUSTER, "tensor i1 f16", "tensor i0 f16", "two tensors have one name"),
    (CLUSTER, "tensor i1 f16", "tensor i1 u8", "no float type"),
    (CLUSTER, "tensor o0 f16", "tensor o0 bool", "o0 is bool, which is no float type"),
    (CLUSTER, "%14 = mul %11 %13 : f32", "%14 = mul %11 %13 : bool", "bool is no float type"),
    (LOW_RANK, "save t0 = %7", "save i3 = %7", "i3 is an input"),
    (LOW_RANK, "load t0", "load o0", "o0 is read before a kernel has saved it"),
    (LOW_RANK, "save t0 = %7", "save o0 = %7", "o0 is over ('a0', 'a2')"),
    (LOW_RANK, "%4 = load t0 imap=-,a0", "%4 = load t0 imap=-,-", "a0 is cut by"),
    ("softmax", "%1 = load t0 imap=a0", "%1 = load t0 imap=-", "a0 is cut by"),
    ("residual_norm", "  save o1 = %13 omap=a0\n", "", "the output tensor o1 is never saved"),
    ("residual_norm", "save o1 = %13", "save o0 = %13", "o0 is saved twice"),
]  # fmt: skip


@pytest.mark.parametrize(("golden", "old", "new", "sentence"), BROKEN)
def test_a_broken_rule_is_named(
    goldens: dict[str, tuple[Region, UGraph]], golden: str, old: str, new: str, sentence: str
) -> None:
    text = print_ugraph(goldens[golden][1])
    found = check_ugraph(parse_ugraph(text.replace(old, new)))
    assert old in text
    assert found is not None and found.code == "NOT_EQUIVALENT"
    assert sentence in found.reason


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("tensor i2 f16[a2,a1] weight", "tensor i2 f16[a2,a1] input", "('a1', 'a2') in memory"),
        ("tensor i0 f16[a0,a1] input", "tensor i0 f16[a0,a1] weight", "i0 is no initializer"),
        ("tensor o0 f16[a0,a2]", "tensor o0 f16[a2,a0]", "o0 is over ('a0', 'a2') in memory"),
        ("tensor o0 f16", "tensor o0 bf16", "o0 is f16, not bf16"),
        ("tensor i1 f16[a1]", "tensor i1 f16[a9]", "i1 has an axis of unknown extent"),
        ("tensor i1 ", "tensor i9 ", "the region has no weight i9"),
        ("i1 f16[a1] weight", "i1 f16[a1] temp", "i1 is both a temp and a region tensor"),
        ("o0 f16[a0,a2] output", "t0 f16[a0,a2] temp", "the graph writes [], not ['o0']"),
    ],
)  # fmt: skip
def test_the_interface_is_the_region_s(
    goldens: dict[str, tuple[Region, UGraph]], old: str, new: str, sentence: str
) -> None:
    region, graph = goldens["norm_linear"]
    text = print_ugraph(graph)
    found = check_interface(region, parse_ugraph(text.replace(old, new)))
    assert old in text and found is not None
    assert sentence in found.reason


def test_goldens_are_well_formed(goldens: dict[str, tuple[Region, UGraph]]) -> None:
    for region, graph in goldens.values():
        assert check_ugraph(graph) is None
        assert check_interface(region, graph) is None


SPLIT, CLUSTERED = "attention_split_kv", "attention_cluster"
#: The same of running values and part axes, in the texts of ``goldens``.
BROKEN_LATER = [
    (SPLIT, "%10 = prev %7", "%10 = prev %6", "rmax has no previous value"),
    (SPLIT, "%10 = prev %7 : f32[a0,a1] loop", "%10 = prev %7 : f64[a0,a1] loop", "is f32"),
    (SPLIT, "%7 = run_max %6 : f32", "%7 = run_max %6 : f16", "kept in f32, not f16"),
    (SPLIT, "%7 = run_max %6 : f32[a0,a1]", "%7 = run_max %5 : f32[a0,a1,a3]", "tiles of ['a3']"),
    (SPLIT, "%7 = run_max %6 : f32[a0,a1] loop", "%7 = run_max %6 : f32[a0,a1] post",
     "['%6'] is not of phase post"),
    (SPLIT, "%14 = acc_scaled %13 %12", "%14 = acc_scaled %13", "2 arguments are needed"),
    (SPLIT, "%14 = acc_scaled %13 %12 : f32[a0,a1] post",
     "%14 = acc_scaled %13 %12 : f32[a0,a1] loop", "only after"),
    (SPLIT, "acc_scaled %13 %12 : f32", "acc_scaled %13 %12 : f16", "accumulates in f32"),
    (SPLIT, "%14 = acc_scaled %13 %12", "%14 = acc_scaled %4 %12", "the factor varies over"),
    (SPLIT, "%14 = acc_scaled %13 %12 : f32[a0,a1]", "%14 = acc_scaled %9 %12 : f32[a0,a1,a3]",
     "tiles of ['a3']"),
    (CLUSTERED, "%24 = mul %16 %23 : f32[a0,a3] post", "%24 = acc_scaled %16 %23 : f32[a0,a3] post",
     "accumulates a value from after the loop"),
    (SPLIT, "save t1 = %14 omap=a3/k0,a0", "save t1 = %14 omap=a3,a0", "t1 is over"),
    (SPLIT, "save t1 = %14 omap=a3/k0,a0", "save t1 = %14 omap=a3/k1,a0", "all write what"),
    (SPLIT, "save t1 = %14 omap=a3/k0,a0", "save t1 = %14 omap=a3/k0,a0/k0", "varies over ['a0']"),
    (SPLIT, "save t1 = %14 omap=a3/k0,a0", "save t1 = %14 omap=a3/k0", "all write what"),
    (SPLIT, "tensor t1 f32[a0,a1,a3/k0]", "tensor t1 f32[a0,a1]", "t1 is over"),
    (SPLIT, "tensor t1 f32[a0,a1,a3/k0] temp", "tensor t1 f32[a0,a1,a3/k9] temp", "no grid has"),
    (SPLIT, "tensor t1 f32[a0,a1,a3/k0] temp", "tensor t1 f32[a0,a1,a4/k0] temp", "no grid has"),
    (SPLIT, "tensor t1 f32[a0,a1,a3/k0] temp", "tensor t1 f32[a0,a1,a3/k0] output", "part axis"),
    (SPLIT, "%4 = const[1/8] : f32[]", "%4 = extent[a3/k0] : f32[]", "a number of the launch"),
    (SPLIT, "kernel k1", "kernel k0", "two kernels have one name"),
    (SPLIT, "kernel k1", "kernel k1/2", "holds a /"),
]  # fmt: skip


@pytest.mark.parametrize(("golden", "old", "new", "sentence"), BROKEN_LATER)
def test_a_broken_rule_of_running_values_and_parts(
    golden: str, old: str, new: str, sentence: str
) -> None:
    text = print_ugraph(next(g for g in GOLDENS if g.name == golden).ugraph)
    assert check_ugraph(parse_ugraph(text)) is None and text.count(old) == 1
    found = check_ugraph(parse_ugraph(text.replace(old, new)))
    assert found is not None and sentence in found.reason


def test_blocks_that_write_one_part_are_refused() -> None:
    text = print_ugraph(next(g for g in GOLDENS if g.name == SPLIT).ugraph)
    text = text.replace("tensor t1 f32[a0,a1,a3/k0]", "tensor t1 f32[a0,a1]")
    found = check_ugraph(parse_ugraph(text.replace("%14 omap=a3/k0,a0", "%14 omap=a3,a0")))
    assert found is not None and "differ in ['a3'] write the same part of t1" in found.reason


def test_a_part_over_an_axis_that_the_region_lacks_is_refused() -> None:
    golden = next(g for g in GOLDENS if g.name == SPLIT)
    assert check_interface(golden.region, golden.ugraph) is None
    text = print_ugraph(golden.ugraph).replace("a3/k0", "a9/k0")
    found = check_interface(golden.region, parse_ugraph(text))
    assert found is not None and "t0 has an axis of unknown extent" in found.reason
