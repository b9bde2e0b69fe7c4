"""Each rule refuses what it names, and nothing that the generator writes."""

from pathlib import Path

import pytest

import mirage_onnx.codegen.emit as emit_module
from mirage_onnx.codegen import emit_kernel
from mirage_onnx.codegen.compile import DEVICE_HEADERS
from mirage_onnx.codegen.rules import COLLECTIVES, broken_rules
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.target import H200

WRONG = {
    "asm": 'asm volatile("bar.sync 0;");',
    "static shared memory": "__shared__ float s[4];",
    "device variable": "static int counter;",
    "builtin index": "const int i = threadIdx.x;",
    "builtin": "__syncthreads();",
    "spin": "while (ptx::ld_acquire_u32(p) == 0) {\n}",
    "poll in a for loop": "for (int i = 0; i < n; ++i) {\n  v = ptx::ld_acquire_u32(p);\n}",
    "early return": "if (ptx::thread() > 3) return;",
    "macro": "#define N 4",
    "block barrier of some threads": "if (ptx::thread() < 32) ptx::sync_block();",
    "block barrier of some warps": "if (ptx::warp() == 0) {\n  ptx::sync_block();\n}",
    "cluster barrier of some blocks": "if (ptx::block_x() == 0) {\n  ptx::cluster_sync();\n}",
    "shuffle of some lanes": "if (ptx::lane() < 4) {\n  v = ptx::shfl_xor(v, 1);\n}",
    "trip count by thread": (
        "for (int e = ptx::thread(); e < 100; e += 64) {\n  v = warp_reduce<Sum>(v);\n}"
    ),
    "condition by a derived value": (
        "const int e = ptx::thread() / 32;\nconst int f = e + 1;\nif (f < 2) {\n"
        "  v = block_reduce<Sum, 4>(v, smem);\n}"
    ),
    "condition by what memory holds": (
        "const int n = load<F32, Path::kConst>(g_i0);\nif (n > 0) {\n  ptx::sync_block();\n}"
    ),
    "nested": (
        "if (ptx::lane() == 0) {\n  for (int i = 0; i < 4; ++i) {\n"
        "    mma_step(d, a, b, c);\n  }\n}"
    ),
    "short circuit": "const bool b = ptx::lane() > 1 && ptx::any(p);",
    "matrix load of some lanes": "if (ptx::lane() < 8) ptx::ldmatrix_x4(r, p);",
}
RIGHT = {
    "whole block": "ptx::sync_block();\nv = block_reduce<Sum, 4>(v, smem);",
    "block-uniform condition": "if (ptx::block_x() == 0) {\n  ptx::sync_block();\n}",
    "warps by turns": "for (int e = ptx::warp(); e < 9; e += 4) {\n  v = warp_reduce<Sum>(v);\n}",
    "a counter's name used again": (
        "for (int e = ptx::thread(); e < 9; e += 64) {\n  s[e] = 0;\n}\n"
        "for (int e = ptx::warp(); e < 9; e += 4) {\n  v = warp_reduce<Sum>(v);\n}"
    ),
    "after a divergent block": "if (ptx::lane() == 0) {\n  s[0] = v;\n}\nptx::sync_block();",
    "uniform loop": ("for (int r = 0; r < rounds; ++r, k += kRound) {\n  mma_step(d, a, b, c);\n}"),
    "else": "if (first == 0) {\n  v = 1.0f;\n} else {\n  ptx::sync_warp();\n}",
    "a word in a comment": "const int a = 1;  // while asm static return",
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
    assert broken_rules(WRONG[name])


@pytest.mark.parametrize("name", RIGHT)
def test_accepts(name):
    assert not broken_rules(RIGHT[name])


def test_violation_says_where():
    (found,) = broken_rules("const int a = 1;\n\n  asm();  // x\n")
    assert str(found) == "line 3 `asm();`: PTX is written in the ptx headers only"


def test_an_emitted_kernel_that_breaks_a_rule_is_refused(graphs, monkeypatch):
    graph, params = graphs["rows"], KernelParams((1,), warps=4)
    extents = {"a0": 8, "a1": 1000, "a2": 4, "a3": 4}
    good = emit_kernel(graph, graph.kernels[0], params, extents, H200)
    assert not broken_rules(good.text)
    broken = emit_module.KernelSource(
        good.name, good.text.replace("ptx::thread()", "threadIdx.x"), good.grid, good.block,
        good.cluster, good.smem_bytes, good.args, good.pdl,
    )  # fmt: skip
    monkeypatch.setattr(emit_module, "emit_row", lambda *_: broken)
    with pytest.raises(RejectionError, match="indices come from ptx accessors") as caught:
        emit_kernel(graph, graph.kernels[0], params, extents, H200)
    assert caught.value.rejection.code == "EMIT_RULE"


def test_collectives_exist_in_the_device_headers():
    text = "".join(p.read_text() for p in Path(DEVICE_HEADERS).glob("*.cuh"))
    missing = [c for c in COLLECTIVES if f" {c}(" not in text]
    assert not missing
