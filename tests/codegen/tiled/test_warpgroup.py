"""Contractions by wgmma: right at every size, as text, compiled, and where they cannot be."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import tiled_kernels
from tiled_kernels import ATTENTION, Case, near

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams
from mirage_onnx.target import H100

HEAD = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
{}tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop shared
  %2 = matmul[a1] {} : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
"""
PLAIN = (
  HEAD.format("", "%0 %1")
  + """  %4 = cast %3 : f16[a0,a2] post C_frag
  save o0 = %4 omap=a2,a0
"""
)
#: Operand A is the weight: the lowering turns it round, for rows of the result.
TURNED = PLAIN.replace("%0 %1", "%1 %0")
GELU = (
  HEAD.format("tensor i2 f16[a2] weight\n", "%0 %1")
  + """  %4 = load i2 imap=a2,- cmap=- fmap=- : f16[a2] post column
  %5 = cast %4 : f32[a2] post column
  %6 = add %3 %5 : f32[a0,a2] post C_frag
  %7 = const[6369051672525773/9007199254740992] : f32[] post uniform
  %8 = mul %6 %7 : f32[a0,a2] post C_frag
  %9 = erf %8 : f32[a0,a2] post C_frag
  %10 = const[1] : f32[] post uniform
  %11 = add %9 %10 : f32[a0,a2] post C_frag
  %12 = mul %6 %11 : f32[a0,a2] post C_frag
  %13 = const[1/2] : f32[] post uniform
  %14 = mul %12 %13 : f32[a0,a2] post C_frag
  %15 = cast %14 : f16[a0,a2] post C_frag
  save o0 = %15 omap=a2,a0
"""
)
RESIDUAL = (
  HEAD.format("tensor i2 f16[a0,a2] input\n", "%0 %1")
  + """  %4 = load i2 imap=a2,a0 cmap=- fmap=- : f16[a0,a2] post C_frag
  %5 = cast %4 : f32[a0,a2] post C_frag
  %6 = add %3 %5 : f32[a0,a2] post C_frag
  %7 = cast %6 : f16[a0,a2] post C_frag
  save o0 = %7 omap=a2,a0
"""
)
#: rsqrt(mean(i0^2)) * ((i0 * i3) i1^T): operand A is computed, so it is registers.
NORM = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i3 f16[a1] weight
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load i3 imap=-,- cmap=- fmap=a1 : f16[a1] loop depth
  %2 = cast %0 : f32[a0,a1] loop A_frag
  %3 = cast %1 : f32[a1] loop depth
  %4 = mul %2 %3 : f32[a0,a1] loop A_frag
  %5 = cast %4 : f16[a0,a1] loop A_frag
  %6 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop shared
  %7 = matmul[a1] %5 %6 : f32[a0,a2] loop C_frag
  %8 = acc_sum %7 : f32[a0,a2] post C_frag
  %9 = square %2 : f32[a0,a1] loop A_frag
  %10 = sum[a1] %9 : f32[a0] loop row
  %11 = acc_sum %10 : f32[a0] post row
  %12 = extent[a1] : f32[] post uniform
  %13 = div %11 %12 : f32[a0] post row
  %14 = rsqrt %13 : f32[a0] post row
  %15 = mul %8 %14 : f32[a0,a2] post C_frag
  %16 = cast %15 : f16[a0,a2] post C_frag
  save o0 = %16 omap=a2,a0
"""
#: silu(i0 i1^T) * (i0 i2^T): two products of one operand A.
GATED = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor i2 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=- loop=a1
  %0 = load i0 imap=-,a0 cmap=- fmap=a1 : f16[a0,a1] loop shared
  %1 = load i1 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop shared
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = load i2 imap=a2,- cmap=- fmap=a1 : f16[a2,a1] loop shared
  %5 = matmul[a1] %0 %4 : f32[a0,a2] loop C_frag
  %6 = acc_sum %5 : f32[a0,a2] post C_frag
  %7 = sigmoid %3 : f32[a0,a2] post C_frag
  %8 = mul %3 %7 : f32[a0,a2] post C_frag
  %9 = mul %8 %6 : f32[a0,a2] post C_frag
  %10 = cast %9 : f16[a0,a2] post C_frag
  save o0 = %10 omap=a2,a0
"""
#: A weight as ONNX has it: operand B down its rows.
ACROSS = PLAIN.replace("i1 f16[a2,a1]", "i1 f16[a1,a2]").replace("f16[a2,a1] loop", "f16[a1,a2] loop")
#: The ranks of a cluster share out the depth.
SPLIT = """ugraph 1
tensor i0 f16[a0,a1] input
tensor i1 f16[a2,a1] weight
tensor o0 f16[a0,a2] output
kernel k0 grid=a2,a0 cluster=a1 loop=a1
  %0 = load i0 imap=-,a0 cmap=a1 fmap=a1 : f16[a0,a1] loop shared
  %1 = load i1 imap=a2,- cmap=a1 fmap=a1 : f16[a2,a1] loop shared
  %2 = matmul[a1] %0 %1 : f32[a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a0,a2] post C_frag
  %4 = red_sum %3 : f32[a0,a2] post C_frag
  %5 = cast %4 : f16[a0,a2] post C_frag
  save o0 = %5 omap=a2,a0
"""


def by_wgmma(
  text, columns, rows, *, loop_tile=64, warps=8, stages=4, cluster=1, teams=0, sharing=1, late=0,
  **extents,
):  # fmt: skip
  sizes = {"a0": 128, "a1": 256, "a2": 256, **extents}
  feed = {"teams": teams, "sharing": sharing, "late": late}
  params = KernelParams((columns, rows), cluster, loop_tile, warps, stages, "wgmma", **feed)
  return Case(text, (params,), sizes)


def emit(c, target=H100):
  graph = c.graph
  return emit_kernel(graph, graph.kernels[0], c.params[0], c.all_extents(), target)


RUN = {
  "exact": by_wgmma(PLAIN, 128, 128),
  "turned": by_wgmma(TURNED, 128, 128),
  "few rows": by_wgmma(PLAIN, 64, 64, warps=4, a0=77),
  "rows": by_wgmma(PLAIN, 128, 128, a0=197, a2=200),
  "depth": by_wgmma(PLAIN, 64, 128, a0=130, a1=1000, a2=64),
  "panels": by_wgmma(PLAIN, 96, 64, warps=4, loop_tile=128, stages=3, a1=456, a2=192),
  "shared columns": by_wgmma(PLAIN, 256, 64, stages=3, a0=64),
  "shared depth": by_wgmma(PLAIN, 64, 64, loop_tile=128, stages=3, a0=77, a1=840),
  "depth of registers": by_wgmma(NORM, 64, 64, loop_tile=128, stages=3, a0=77, a1=840),
  "two stages": by_wgmma(PLAIN, 64, 128, stages=2),
  "one stage": by_wgmma(PLAIN, 64, 128, stages=1),
  "all at once": by_wgmma(PLAIN, 64, 128, a1=192),
  "one step": by_wgmma(PLAIN, 64, 128, a1=64),
  "gelu": by_wgmma(GELU, 128, 128, a0=197, a1=200),
  "residual": by_wgmma(RESIDUAL, 192, 128, a0=140, a1=192, a2=384),
  "norm": by_wgmma(NORM, 128, 128, a0=197, a1=200),
  "across": by_wgmma(ACROSS, 128, 64, warps=4, a0=77, a1=1000, a2=200),
  "across, shared columns": by_wgmma(ACROSS, 128, 64, stages=3, a0=77, a1=200),
  "gated": by_wgmma(GATED, 64, 128, a0=197, a1=456),
  "split": by_wgmma(SPLIT, 64, 64, warps=4, stages=3, cluster=2, a0=77, a1=448),
}


def test_right_in_the_emulator():
  near(RUN.values(), bound=6e-3)


def attention(rows, loop_tile, stages, **extents):
  params = KernelParams((rows, 1), 1, loop_tile, rows // 16, stages, "wgmma")
  return Case(ATTENTION, (params,), {"a0": 2, "a2": 64, "a4": 64, **extents})


def test_attention_of_many_queries():
  """What one product leaves in registers is operand A of the next, whose B lies down its rows."""
  cases = [attention(64, 64, 2, a1=200, a3=77), attention(128, 64, 3, a1=256, a2=128, a3=128, a4=128)]
  near(cases, bound=6e-3)
  text = emit(attention(64, 128, 2, a1=512, a3=256)).text
  assert "wgmma(F16{}" in text and "wgmma<true>(F16{}" in text and "mma_rows" not in text


@pytest.mark.parametrize("stages", [2, 3])
def test_logits_below_what_is_not_there(stages):
  """Beyond the end of the keys logits are 0: of exp(0 - maximum), which may be infinite, nothing is taken."""
  c = attention(64, 64, stages, a0=1, a1=232, a3=64)
  source = emit(c, tiled_kernels.H200)
  rng = np.random.default_rng(3)
  q, k, v = (rng.standard_normal(s).astype(np.float16) for s in ((1, 64, 64), (1, 232, 64), (1, 232, 64)))
  q, k = -np.abs(q) - np.float16(1), np.abs(k) + np.float16(1)  # logits of -100 to -500
  y = np.full((1, 64, 64), np.nan, np.float16)
  compile_kernels([source]).run({"i0": k, "i1": q, "i2": v, "o0": y})
  s = q[0].astype(float) @ k[0].astype(float).T
  p = np.exp(s - s.max(1, keepdims=True))
  want = p @ v[0].astype(float) / p.sum(1, keepdims=True)
  assert np.abs(y[0] - want).max() < 4e-3 * np.abs(want).max()


def test_queries_that_stay_are_registers(monkeypatch):
  """Their tile is free when the loop begins, and several blocks a multiprocessor want its bytes."""
  monkeypatch.setattr(tiled_kernels, "H200", replace(H100, name="small", multiprocessors=1))
  c = attention(128, 128, 2, a1=256, a3=256)
  source = emit(c, tiled_kernels.H200)
  assert "wgmma(F16{}, v2[0], a[0], b)" in source.text
  assert source.text.count("= ptx::smem<unsigned short>();") == 2  # Q's tile and the first of the ring
  near([c], bound=6e-3)


@pytest.mark.parametrize("rows", [64, 192])
def test_long_queries_stay_in_shared_memory(rows):
  """Fragments of 128 elements a head would leave registers for two warpgroups only."""
  c = attention(rows, 64, 3, a0=1, a1=136, a2=128, a3=200, a4=128)
  assert "wgmma(F16{}, v2[0], a, b)" in emit(c).text
  near([c], bound=6e-3)


MASKED = ATTENTION.replace("tensor o0", "tensor i3 bool[a3,a1] input\ntensor o0")


def masked(text):
  """Logits of which a truth value for each is added, behind the first product."""
  lines, found = text.splitlines(), []
  for line in lines:
    number = re.match(r"  %(\d+) = (\w+)", line)
    if number and int(number[1]) > 2:
      line = re.sub(r"%(\d+)", lambda m: f"%{int(m[1]) + 3 * (int(m[1]) > 1)}", line)
    elif line.startswith("  save"):
      line = re.sub(r"%(\d+)", lambda m: f"%{int(m[1]) + 3}", line)
    found.append(line)
    if number and number[1] == "2":
      found += [
        "  %3 = load i3 imap=a3,- cmap=a1 fmap=a1 : bool[a3,a1] loop C_frag",
        "  %4 = cast %3 : f32[a1,a3] loop C_frag",
        "  %5 = add %2 %4 : f32[a0,a1,a3] loop C_frag",
      ]
  return "\n".join(found) + "\n"


@pytest.mark.parametrize(("keys", "ring"), [(208, True), (200, False)])
def test_masks_of_truth_values(keys, ring):
  """Through the ring by 16 bytes where rows begin there."""
  c = replace(attention(64, 64, 3, a1=keys, a3=77), text=masked(MASKED))
  assert ("s3_ring" in emit(c).text) == ring
  near([c], bound=6e-3)


def test_bf16_is_right():
  near([by_wgmma(PLAIN.replace("f16", "bf16"), 64, 128, a0=177, a1=328, a2=136)], bound=3e-2)


def test_rows_that_only_a_run_counts():
  """One text is right for any number of rows."""
  c = by_wgmma(GELU, 64, 64, warps=4, a0=512, a1=200, a2=136)
  source = emit_kernel(c.graph, c.graph.kernels[0], c.params[0], c.all_extents(), H100, frozenset({"a0"}))
  assert source.sizes == ("a0",)
  module = compile_kernels([source])
  for rows in (1, 64, 77, 200):
    rng = np.random.default_rng(rows)
    x, w, b = (rng.standard_normal(s).astype(np.float16) for s in ((rows, 200), (136, 200), (136,)))
    y = np.full((rows, 136), np.nan, np.float16)
    module.run({"i0": x, "i1": w, "i2": b, "o0": y}, sizes={"a0": rows})
    z = x.astype(float) @ w.astype(float).T + b
    want = z / 2 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    assert np.abs(y - want).max() < 2e-3 * np.abs(want).max()


SMALL = replace(H100, name="small", multiprocessors=2)
STANDING = [
  by_wgmma(PLAIN, 64, 128, a0=197, a1=456, a2=456),
  by_wgmma(GELU, 64, 64, warps=4, a0=397, a1=1000, a2=200),
  by_wgmma(RESIDUAL, 64, 128, a0=397, a1=520, a2=200),
]


def test_blocks_that_stand_for_several(monkeypatch):
  """With more tiles than blocks at once each block goes on, the first copies of its next tile under way."""
  monkeypatch.setattr(tiled_kernels, "H200", SMALL)
  near(STANDING, bound=6e-3)
  for c in STANDING:
    source = emit(c, SMALL)
    assert "tile += " in source.text and source.grid[0] % 2 == 0 and source.grid[1:] == (1, 1)
    assert "tile += " not in emit(c).text


@pytest.mark.parametrize("name", ["norm", "split", "shared depth"])
def test_blocks_that_end(name):
  """Where more than the ring is in shared memory, or ranks share a tile."""
  c = RUN[name]
  assert "tile += " not in emit(replace(c, extents={**c.extents, "a0": 1280, "a1": 2048}), SMALL).text


def test_text(golden):
  text = emit(by_wgmma(GELU, 64, 64, warps=4, a0=77)).text
  assert text.partition('"warpgroup.cuh"\n')[2] == golden


@pytest.mark.parametrize("name", ["exact", "rows", "gelu", "residual"])
def test_products_stay_under_way(name):
  """One iteration's products run while the next waits for its tiles, so a tile is free a step later."""
  c = RUN[name]
  text = emit(replace(c, extents={**c.extents, "a1": 512})).text
  assert "wgmma_wait<1>" in text and "ahead = step + 2" in text


@pytest.mark.parametrize("name", ["two stages", "one stage", "norm"])
def test_products_are_waited_for(name):
  """Where the ring has no tile to spare, or operand A is registers that the next step changes."""
  text = emit(RUN[name]).text
  assert "wgmma_wait<1>" not in text and "wgmma_wait<0>" in text


COMPILED = {
  "128x128": by_wgmma(PLAIN, 128, 128, stages=3, a0=4096, a1=768, a2=3072),
  "128x256": by_wgmma(PLAIN, 256, 128, a0=4096, a1=4096, a2=4096),
  "gelu": by_wgmma(GELU, 192, 128, a0=4000, a1=1000, a2=3000),
  "residual": by_wgmma(RESIDUAL, 128, 128, a0=4096, a1=768, a2=768),
  "attention": attention(128, 128, 2, a1=512, a3=512),
  "gated": by_wgmma(GATED, 128, 128, a0=4096, a1=4096, a2=4096),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_without_spills_and_waits(name):
  """C7514 and its like: ptxas waits for every single product."""
  source = emit(COMPILED[name])
  cubin = compile_cubin(source.text, H100, name=source.name)
  assert cubin.spill_bytes == 0 and "C75" not in cubin.log


def test_two_products_stay_under_way():
  assert "wgmma_wait<2>" in emit(COMPILED["gated"]).text


REFUSED = {
  "rows": (by_wgmma(PLAIN, 128, 96), "one for warpgroups"),
  "warps": (by_wgmma(PLAIN, 128, 128, warps=4), "one for warpgroups"),
  "columns": (by_wgmma(PLAIN, 40, 128), "one for warpgroups"),
  "depth": (by_wgmma(PLAIN, 128, 128, loop_tile=32), "one for warpgroups"),
  "order": (by_wgmma(ACROSS, 96, 128), "one for warpgroups"),
  "type": (by_wgmma(PLAIN.replace("f16", "f32"), 128, 128), "one for warpgroups"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  c, reason = REFUSED[name]
  with pytest.raises(RejectionError, match=reason) as caught:
    emit(c)
  assert caught.value.rejection.code == "LAYOUT"


def test_a_gpu_without_it():
  old = replace(H100, name="old", instructions=())
  with pytest.raises(RejectionError, match="old has no instruction 'wgmma'"):
    emit(RUN["exact"], old)


def test_numbers_as_text():
  params = RUN["exact"].params[0]
  assert params.to_text().endswith(" stages=4 instruction=wgmma")
  assert KernelParams.from_text(params.to_text()) == params
