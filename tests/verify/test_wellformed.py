"""Every rule of ``ir/ugraph.py``, broken one at a time: an edit of a text, and the sentence."""

import pytest
from goldens import edited, golden

from mirage_onnx.verify.wellformed import check_interface, check_ugraph

CLUSTER, LOW_RANK = "norm_linear_cluster", "lora_two_kernels"
SPLIT, CLUSTERED = "attention_split_kv", "attention_cluster"
BROKEN = [
    (CLUSTER, "grid=a1,a2", "grid=a1,a1", "two grid dimensions split one axis"),
    (CLUSTER, "%0 = load i1", "%0 = load i7", "there is no tensor i7"),
    (CLUSTER, "imap=-,a2 cmap=a0", "imap=a2,- cmap=a0", "sends the grid to a2"),
    (CLUSTER, "imap=-,- cmap", "imap=-,a2 cmap", "a map names a2, which i2 does not have"),
    (CLUSTER, "imap=-,- cmap", "imap=- cmap", "imap needs one entry per grid dimension"),
    (CLUSTER, "cmap=a0 fmap=a0 : f16[a0] ", "cmap=- fmap=a0 : f16[a0] ", "without ['cluster']"),
    (CLUSTER, "cmap=a0 fmap=a0 : f16[a0] ", "cmap=a0 fmap=- : f16[a0] ", "a0 is cut by"),
    (CLUSTER, "f16[a0,a1] loop shared", "f16[a1] loop shared", "i0 is over ('a1', 'a0')"),
    (CLUSTER, "%5 = matmul[a0]", "%5 = matmul[a2]", "an operand lacks a2"),
    (CLUSTER, "%4 = cast %3 : f16", "%4 = cast %3 : f32", "operands are"),
    (CLUSTER, "matmul[a0] %4 %2 : f32[a1,a2]", "matmul[a0] %4 %2 : f32[a2]", "the value is over"),
    (CLUSTER, "matmul[a0] %4 %2 : f32", "matmul[a0] %4 %2 : f16", "accumulates in f32"),
    (CLUSTER, "%6 = acc_sum %5", "%6 = red_sum %5", "is not of phase post"),
    (CLUSTER, "%9 = sum[a0] %8", "%9 = sum[a1] %8", "there is no ('a1',) here"),
    (CLUSTER, "%10 = acc_sum %9 : f32[a2]", "%10 = acc_sum %8 : f32[a0,a2]", "tiles of ['a0']"),
    (CLUSTER, "acc_sum %5 : f32[a1,a2] post", "acc_sum %5 : f32[a1,a2] loop", "only after"),
    (CLUSTER, "%7 = red_sum %6", "%7 = acc_sum %6", "accumulates a value from after the loop"),
    (CLUSTER, "%12 = extent[a0] : f32[] post", "%12 = extent[a0] : f32[] loop", "of phase post"),
    (CLUSTER, "extent[a0]", "extent[a9]", "no tensor has ('a9',)"),
    (CLUSTER, "extent[a0]", "extent[a0,a0]", "('a0', 'a0') names an axis twice"),
    ("residual_norm", "loop=-", "loop=a1", "no load is cut by the loop over a1"),
    ("residual_norm", "cluster=-", "cluster=a7", "no load is cut by the cluster over a7"),
    (CLUSTER, "cluster=a0", "cluster=-", "but the kernel to None"),
    (CLUSTER, "%13 = div %11 %12", "%13 = div %11 %17", "not an earlier value"),
    (CLUSTER, "%13 = div %11 %12", "%13 = div %11", "2 arguments are needed, not 1"),
    (CLUSTER, "%13 = div ", "%13 = frob ", "there is no such operation"),
    (CLUSTER, "const[2748779/274877906944]", "const", "a constant needs a value"),
    (CLUSTER, "const[2748779/274877906944]", "const[tau]", "what is tau?"),
    (CLUSTER, "= rsqrt %15", "= powr %15", "the exponent is missing"),
    (CLUSTER, "save o0 = %18", "save o0 = %4", "saved before the loop ends"),
    (CLUSTER, "save o0 = %18", "save o0 = %16", "o0 is over ('a2', 'a1')"),
    (CLUSTER, "omap=a1,a2", "omap=a2,a1", "all write what"),
    (CLUSTER, "omap=a1,a2", "omap=a1,-", "all write what"),
    (CLUSTER, "save o0", "save i1", "read and saved by one kernel"),
    (CLUSTER, "tensor o0 f16[a2,a1] output", "tensor o0 f16[a2,a1] result", "unknown role"),
    (CLUSTER, "tensor i2 f16", "tensor i1 f16", "two tensors have one name"),
    (CLUSTER, "tensor i2 f16", "tensor i2 u8", "no float type"),
    (CLUSTER, "tensor o0 f16", "tensor o0 bool", "o0 is bool, which is no float type"),
    (CLUSTER, "%13 = div %11 %12 : f32", "%13 = div %11 %12 : bool", "bool is no float type"),
    (LOW_RANK, "save t0 = %7", "save i0 = %7", "i0 is an input"),
    (LOW_RANK, "load t0", "load o0", "o0 is read before a kernel has saved it"),
    (LOW_RANK, "save t0 = %7", "save o0 = %7", "o0 is over ('a2', 'a1')"),
    (LOW_RANK, "%4 = load t0 imap=-,a2", "%4 = load t0 imap=-,-", "a2 is cut by"),
    ("softmax_late_scale", "%1 = load t0 imap=a0", "%1 = load t0 imap=-", "a0 is cut by"),
    ("residual_norm", "  save o1 = %14 omap=a0\n", "", "the output tensor o1 is never saved"),
    ("residual_norm", "save o1 = %14", "save o0 = %14", "o0 is saved twice"),
    # running values and part axes
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


@pytest.mark.parametrize(("name", "old", "new", "sentence"), BROKEN)
def test_a_broken_rule_is_named(name, old, new, sentence):
    graph = golden(name).ugraph
    assert check_ugraph(graph) is None
    found = check_ugraph(edited(graph, (old, new)))
    assert found is not None and found.code == "NOT_EQUIVALENT"
    assert sentence in found.reason


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("tensor i0 f16[a1,a0] weight", "tensor i0 f16[a1,a0] input", "('a0', 'a1') in memory"),
        ("tensor i1 f16[a2,a0] input", "tensor i1 f16[a2,a0] weight", "i1 is no initializer"),
        ("tensor o0 f16[a2,a1]", "tensor o0 f16[a1,a2]", "o0 is over ('a2', 'a1') in memory"),
        ("tensor o0 f16", "tensor o0 bf16", "o0 is f16, not bf16"),
        ("tensor i2 f16[a0]", "tensor i2 f16[a9]", "i2 has an axis of unknown extent"),
        ("tensor i2 ", "tensor i9 ", "the region has no weight i9"),
        ("i2 f16[a0] weight", "i2 f16[a0] temp", "i2 is both a temp and a region tensor"),
        ("o0 f16[a2,a1] output", "t0 f16[a2,a1] temp", "the graph writes [], not ['o0']"),
    ],
)  # fmt: skip
def test_the_interface_is_the_region_s(old, new, sentence):
    given = golden("norm_linear")
    found = check_interface(given.region, edited(given.ugraph, (old, new)))
    assert found is not None and sentence in found.reason


def test_blocks_that_write_one_part_are_refused():
    tensor = ("tensor t1 f32[a0,a1,a3/k0]", "tensor t1 f32[a0,a1]")
    save = ("%14 omap=a3/k0,a0", "%14 omap=a3,a0")
    found = check_ugraph(edited(golden(SPLIT).ugraph, tensor, save))
    assert found is not None and "differ in ['a3'] write the same part of t1" in found.reason


def test_a_part_over_an_axis_that_the_region_lacks_is_refused():
    given = golden(SPLIT)
    assert check_interface(given.region, given.ugraph) is None
    found = check_interface(given.region, edited(given.ugraph, ("a3/k0", "a9/k0")))
    assert found is not None and "t0 has an axis of unknown extent" in found.reason
