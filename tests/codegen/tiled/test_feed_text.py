"""Blocks whose copies a warp of their own makes: right at every size, as text, and compiled."""

from dataclasses import replace

import numpy as np
import pytest
import tiled_kernels
from tiled_kernels import Case, near

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, KernelParams
from mirage_onnx.target import H100
from tests.codegen.tiled.test_alike import BY_WGMMA, GRAPH, SIZES, right
from tests.codegen.tiled.test_warpgroup import (
  ACROSS,
  GELU,
  NORM,
  PLAIN,
  RESIDUAL,
  SPLIT,
  TURNED,
  by_wgmma,
  emit,
)

#: With two or four multiprocessors each block has several tiles.
FEW = {n: replace(H100, name=f"few {n}", multiprocessors=n) for n in (2, 4)}
FED = {
  "one team": by_wgmma(PLAIN, 128, 128, teams=1, a0=397, a1=456, a2=264),
  "turned": by_wgmma(TURNED, 128, 128, teams=1, a0=256, a1=520, a2=264),
  "teams": by_wgmma(GELU, 64, 64, warps=4, stages=3, teams=2, a0=397, a1=1000, a2=200),
  "three teams": by_wgmma(GELU, 64, 64, warps=4, teams=3, a0=397, a1=328, a2=328),
  "columns shared": by_wgmma(
    RESIDUAL, 128, 64, warps=4, stages=3, teams=2, sharing=2, a0=512, a1=520, a2=200
  ),
  "rows shared": by_wgmma(RESIDUAL, 64, 128, stages=3, teams=1, sharing=2, a0=397, a1=520, a2=384),
  "four share": by_wgmma(
    PLAIN, 128, 64, warps=4, loop_tile=128, stages=3, teams=1, sharing=4, a0=512, a1=648
  ),
  "columns apart": by_wgmma(PLAIN, 256, 64, stages=3, teams=1, sharing=2, a0=256, a1=456, a2=520),
  "160 columns, all there": by_wgmma(GELU, 160, 128, stages=3, teams=1, a0=197, a1=200, a2=320),
  "224 columns": by_wgmma(RESIDUAL, 224, 128, stages=3, teams=1, a0=197, a1=264, a2=328),
  "bf16": by_wgmma(RESIDUAL.replace("f16", "bf16"), 128, 128, teams=1, a0=197, a1=264, a2=264),
}

#: Products of two activations, one a block.
BATCHED = """ugraph 1
tensor i0 f16[a3,a0,a1] input
tensor i1 f16[a3,a2,a1] input
tensor o0 f16[a3,a0,a2] output
kernel k0 grid=a2,a0,a3 cluster=- loop=a1
  %0 = load i0 imap=-,a0,a3 cmap=- fmap=a1 : f16[a3,a0,a1] loop shared
  %1 = load i1 imap=a2,-,a3 cmap=- fmap=a1 : f16[a3,a2,a1] loop shared
  %2 = matmul[a1] %0 %1 : f32[a3,a0,a2] loop C_frag
  %3 = acc_sum %2 : f32[a3,a0,a2] post C_frag
  %4 = cast %3 : f16[a3,a0,a2] post C_frag
  save o0 = %4 omap=a2,a0,a3
"""


@pytest.mark.parametrize("processors", FEW)
def test_right(monkeypatch, processors):
  monkeypatch.setattr(tiled_kernels, "H200", FEW[processors])
  cases = [c for c in FED.values() if c.params[0].sharing <= processors]
  near(cases, bound=2e-2)
  for c in cases:
    source = emit(c, FEW[processors])
    assert source.grid == (processors, 1, 1) and source.cluster == c.params[0].sharing
    assert [m.tensor for m in source.maps] == ["i0", "i1"] and "cp_async" not in source.text


@pytest.mark.parametrize("numbers", [{}, {"teams": 1}, {"teams": 1, "late": 1}, {"teams": 2, "warps": 4}])
def test_a_batch_of_products(monkeypatch, numbers):
  """The next product's rows lie behind the last of this one's; none of them is stored."""
  monkeypatch.setattr(tiled_kernels, "H200", FEW[2])
  warps = numbers.get("warps", 8)
  params = KernelParams(
    (128, 16 * warps, 1), 1, 64, stages=3, instruction="wgmma", **{"warps": warps, **numbers}
  )
  sizes = {"a0": 197, "a1": 328, "a2": 200, "a3": 3}
  near([Case(BATCHED, (params,), sizes)], bound=2e-2)
  assert bool(params.teams) == bool(emit(Case(BATCHED, (params,), sizes), FEW[2]).maps)


def test_several_kernels_in_a_launch(monkeypatch):
  params = replace(BY_WGMMA, teams=2, sharing=2)
  sizes = {**SIZES, "a0": 256}
  sources = emit_candidate(
    Candidate(GRAPH, (params, *(replace(params, beside=True) for _ in GRAPH.kernels[1:]))), sizes, FEW[2], "k"
  )
  assert len(sources) == 1 and [m.tensor for m in sources[0].maps] == ["i0", "i1", "i2", "i3"]
  right(sources, sizes)


def test_text(golden):
  text = emit(by_wgmma(GELU, 128, 64, warps=4, teams=2, sharing=2)).text
  assert text.partition('"warpgroup.cuh"\n')[2] == golden


@pytest.mark.parametrize("name", FED)
def test_compiles(name):
  """Also at sizes with which it would be used, without spills."""
  c = FED[name]
  source = emit(replace(c, extents={"a0": 4096, "a1": 768, "a2": 3072}))
  assert source.grid[0] in (128, 132)
  compile_cubin(source.text, H100, name=source.name)


@pytest.mark.parametrize(
  ("case", "why"),
  [
    (by_wgmma(NORM, 64, 64, warps=4, teams=2, a0=256, a1=328), "there are teams"),
    (by_wgmma(ACROSS, 64, 64, warps=4, teams=1, a0=256, a1=328), "rows along the depth"),
    (by_wgmma(PLAIN, 64, 64, warps=4, teams=1, a1=324), "multiples of 16 bytes"),
    (by_wgmma(PLAIN, 128, 64, warps=4, teams=1, sharing=2, a0=320), "not shared out by 2"),
    (by_wgmma(PLAIN, 128, 128, teams=4), "1 to 3 teams"),
    (by_wgmma(SPLIT, 64, 64, warps=4, cluster=2, teams=1, a1=512), "more than a ring"),
  ],
)
def test_refused(case, why):
  with pytest.raises(RejectionError, match=why):
    emit(case)


def test_teams_are_in_order():
  """Else one takes a parity of an earlier round for its own, and reads what is not there."""
  c = FED["teams"]
  source = emit(c, FEW[2])
  lines = source.text.splitlines()
  without = "\n".join(line for line in lines if "ptx::bar_" not in line)
  assert len(lines) == 3 + without.count("\n") + 1  # to wait, and of the first step and of others to say
  tensors = {t.name: np.zeros([c.extents[a] for a in t.axes], np.float16) for t in c.graph.tensors}
  compile_kernels([source]).run(tensors)
  with pytest.raises(EmulationError, match="never written|not been waited for"):
    compile_kernels([replace(source, text=without)]).run(tensors)
