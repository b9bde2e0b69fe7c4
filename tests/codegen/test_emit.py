"""The text: goldens, the rules that it keeps, and a reason for every refusal."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.codegen.compile import DEVICE_HEADERS
from mirage_onnx.codegen.emit import special_emitter
from mirage_onnx.codegen.row import emit_row
from mirage_onnx.codegen.streaming import emit_streaming
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.target import H200

SIZES = {"a0": 8, "a1": 4096, "a2": 4096, "a3": 16}


def emit(graph, params, **extents):
    return emit_kernel(graph, graph.kernels[0], params, {**SIZES, **extents}, H200)


def test_streaming_kernel_text(graphs, golden):
    source = emit(graphs["scaled"], KernelParams((16, 8), warps=8, stages=8, loop_tile=256))
    assert source.text == golden
    assert (source.grid, source.block, source.cluster) == ((256, 1, 1), 256, 1)
    assert source.args == ("i0", "i1", "i2", "i3", "o0")
    assert source.smem_bytes == 4 * (8 * 8 + 8 * 160)


def test_cluster_kernel_text(graphs, golden):
    params = KernelParams((32, 8), cluster=4, warps=2, stages=4, loop_tile=64)
    source = emit(graphs["small_third"], params, a0=11, a1=1000)
    assert source.text == golden
    assert (source.grid, source.block, source.cluster) == ((512, 2, 1), 64, 4)


def test_row_kernel_text(graphs, golden):
    source = emit(graphs["rows"], KernelParams((1,), warps=4), a1=1000)
    assert source.text == golden
    assert source.grid == (8, 1, 1)
    assert source.smem_bytes == 4 * 4 * 3


def test_only_ptx_cuh_holds_asm_and_builtins(graphs):
    builtins = re.compile(r"\basm\b|threadIdx|blockIdx|__\w+\(|__shared__|__device__|__global__")
    headers = [p for p in Path(DEVICE_HEADERS).glob("*.cuh") if not p.name.startswith("ptx")]
    texts = {p.name: p.read_text() for p in headers}
    texts["kernel"] = emit(graphs["small_third"], KernelParams((32, 8), warps=2, stages=4)).text
    for name, text in texts.items():
        code = re.sub(r"//.*", "", text)
        assert not builtins.findall(code), name


def test_text_does_not_depend_on_the_run(graphs):
    params = KernelParams((32, 8), cluster=2, warps=2, stages=4)
    assert emit(graphs["layouts"], params) == emit(graphs["layouts"], params)


def test_odd_names_become_identifiers():
    text = """ugraph 1
tensor model.x/0 f16[batch,int] input
tensor class f16[batch,int] output
kernel k0 grid=batch cluster=- loop=-
  %0 = load model.x/0 imap=batch cmap=- fmap=- : f16[batch,int] post vector
  save class = %0 omap=batch
"""
    graph = parse_ugraph(text)
    source = emit_kernel(
        graph, graph.kernels[0], KernelParams((1,), warps=1), {"batch": 2, "int": 64}, H200
    )
    assert source.args == ("model.x/0", "class")
    assert "g_model_x_0 + first_x_batch * 64" in source.text


def test_few_stages_for_few_steps(graphs):
    """A ring no longer than a warp's share: 16 steps of 4 warps are 4 stages, not 8."""
    source = emit(graphs["plain"], KernelParams((16, 8), warps=4, stages=8), a1=512)
    assert "1 rounds of 4 stages" in source.text


# ---- refusals

NUMBERS = KernelParams((16, 8), warps=2, stages=2)
ROW = KernelParams((1,), warps=2)


#: what, graph, text to replace and by what, numbers, code, words of the reason
REFUSALS = [
    ("tiles", "plain", "", "", replace(NUMBERS, tile=(16,)), "LAYOUT", "1 tile sizes"),
    ("zero", "plain", "", "", replace(NUMBERS, stages=0), "LAYOUT", "below 1"),
    ("warps", "plain", "", "", replace(NUMBERS, warps=33), "LAYOUT", "1 to 32 warps"),
    ("cluster", "plain", "", "", replace(NUMBERS, cluster=16), "LAYOUT", "no clusters of 16"),
    ("cluster axis", "plain", "cluster=a1", "cluster=-", replace(NUMBERS, cluster=2), "LAYOUT",
     "the cluster splits None"),
    ("no cluster reduction", "plain", "red_sum %3", "abs %3", replace(NUMBERS, cluster=2),
     "EMIT_UNSUPPORTED", "without a reduction over the cluster"),
    ("smem", "plain", "", "", KernelParams((1024, 8), warps=8), "SMEM", "bytes of shared memory"),
    ("unmapped", "plain", "imap=-,a0", "imap=-,-", NUMBERS, "LAYOUT", "does not split it"),
    ("whole rows", "plain", "omap=a2,a0", "omap=a2,-", NUMBERS, "LAYOUT", "does not split it"),
    ("f32 operands", "plain:f32", "", "", NUMBERS, "EMIT_UNSUPPORTED", "matmul of f32 and f32"),
    ("two types", "plain", "i1 f16[a2,a1] weight", "i1 bf16[a2,a1] weight", NUMBERS,
     "EMIT_UNSUPPORTED", "i1 is bf16 and loaded as f16"),
    ("16-bit sum", "plain", "acc_sum %2 : f32", "acc_sum %2 : f16", NUMBERS, "EMIT_UNSUPPORTED",
     "an accumulator is f32"),
    ("operand layouts", "plain", "loop A_frag", "loop B_frag", NUMBERS, "LAYOUT",
     "one operand of layout A_frag"),
    ("loop layout", "scaled", "square %0 : f32[a0,a1] loop B_frag",
     "square %0 : f32[a0,a1] loop shared", NUMBERS, "LAYOUT", "layout"),
    ("mixed", "layouts", "mul %0 %2 : f32[a0,a1]", "mul %0 %1 : f32[a0,a1]", NUMBERS, "LAYOUT",
     "takes no value of A_frag"),
    ("grid splits depth", "plain", "grid=a2,a0", "grid=a2,a1", NUMBERS, "LAYOUT", "split"),
    ("loop op", "scaled", "square %0", "where %0", NUMBERS, "EMIT_UNSUPPORTED",
     "no rule for 'where' in the loop"),
    ("loop order", "scaled", "acc_sum %4", "acc_sum %0", NUMBERS, "EMIT_UNSUPPORTED",
     "acc_sum of 'load'"),
    ("post op", "scaled", "rsqrt %12", "where %12", NUMBERS, "EMIT_UNSUPPORTED",
     "no rule for 'where' after the loop"),
    ("cast before red", "plain", "red_sum %3", "red_max %3", NUMBERS, "EMIT_UNSUPPORTED",
     "red_max of 'acc_sum'"),
    ("depth after loop", "scaled", "load i3 imap=a2,a0 cmap=- fmap=- : f16[a0,a2]",
     "load i0 imap=-,a0 cmap=- fmap=- : f16[a0,a1]", NUMBERS, "LAYOUT", "axis a1 is not an axis"),
    ("reduction split", "over_columns", "grid=a0", "grid=a0,a2",
     KernelParams((8, 16)), "LAYOUT", ""),
    ("no loop", "plain", "loop=a1", "loop=-", NUMBERS, "EMIT_UNSUPPORTED", "without a loop"),
    ("const", "scaled", "const[1/100000]", f"const[{10**40}]", NUMBERS, "EMIT_UNSUPPORTED",
     "beyond fp32"),
    ("named const", "scaled", "const[1/100000]", "const[tau]", NUMBERS, "EMIT_UNSUPPORTED",
     "no number for the constant"),
    ("type", "rows", "f32[a1,a0] output", "f64[a1,a0] output", ROW, "EMIT_UNSUPPORTED",
     "elements of type f64"),
    ("row tile", "rows", "", "", KernelParams((2,)), "LAYOUT", "do not share out 128 threads"),
    ("rows missing", "rows", "", "", KernelParams((16,)), "LAYOUT", "do not share out"),
    ("row cluster", "rows", "", "", replace(ROW, cluster=2), "LAYOUT", "does not use clusters"),
    ("row op", "rows", "rsqrt %7", "where %7", ROW, "EMIT_UNSUPPORTED", "in a row kernel"),
    ("row sum type", "rows", "%3 = sum[a1] %2 : f32", "%3 = sum[a1] %2 : f16", ROW,
     "EMIT_UNSUPPORTED", "has type f32"),
    ("row sum axis", "rows", "%3 = sum[a1]", "%3 = sum[a0]", ROW, "EMIT_UNSUPPORTED",
     "reduces a1, not"),
    ("boolean in the loop", "layouts", "f16[a1] ", "bool[a1] ", NUMBERS, "EMIT_UNSUPPORTED",
     "i2 is read in the loop as bool"),
    ("row length", "rows", "", "", replace(ROW, warps=1), "LAYOUT", "elements of a1 per thread"),
]  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS, ids=[r[0] for r in REFUSALS])
def test_refusal(graphs, refusal):
    _, name, old, new, params, code, words = refusal
    text = graphs.text(name)
    assert not old or old in text
    graph = parse_ugraph(text.replace(old, new) if old else text)
    kernel = graph.kernels[0]
    special = special_emitter(kernel)
    assert special is not None
    with pytest.raises(RejectionError) as info:
        special(graph, kernel, params, SIZES, H200)
    assert info.value.rejection.code == code, info.value.rejection
    assert words in info.value.rejection.reason


def test_refusal_of_too_many_blocks(graphs):
    graph = graphs["rows_mixed"]
    with pytest.raises(RejectionError, match="70000 blocks in a dimension"):
        emit(graph, KernelParams((1, 1), warps=1), a0=2, a1=64, a2=70000)


def test_refusal_of_a_loop_that_no_output_needs(graphs):
    graph = parse_ugraph(graphs.text("scaled").replace("save o0 = %20", "save o0 = %18"))
    with pytest.raises(RejectionError, match="no output of k0 needs its loop"):
        emit_streaming(graph, graph.kernels[0], NUMBERS, SIZES, H200)


def test_refusal_of_large_tensors(graphs):
    graph, sizes = graphs["plain"], {**SIZES, "a1": 2**16, "a2": 2**15}
    with pytest.raises(RejectionError, match="2\\^31 elements"):
        emit_streaming(graph, graph.kernels[0], NUMBERS, sizes, H200)


def test_refusal_of_no_axis_in_the_block():
    text = """ugraph 1
tensor i0 f16[a0] input
tensor o0 f16[a0] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0] post uniform
  save o0 = %0 omap=a0
"""
    graph = parse_ugraph(text)
    with pytest.raises(RejectionError, match="one axis inside the block"):
        emit_row(graph, graph.kernels[0], KernelParams((1,)), SIZES, H200)
