"""Blocks whose copies a warp of their own makes: right at every size, as text, and compiled."""

from dataclasses import replace

import numpy as np
import pytest
import tiled_kernels
from tiled_kernels import near

from mirage_onnx.codegen.candidates import emit_candidate
from mirage_onnx.codegen.compile import compile_cubin
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate
from mirage_onnx.target import H100
from tests.codegen.tiled.test_alike import BY_WGMMA, GRAPH, SIZES, right
from tests.codegen.tiled.test_warpgroup import ACROSS, GELU, NORM, PLAIN, RESIDUAL, TURNED, by_wgmma, emit

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
  "bf16": by_wgmma(RESIDUAL.replace("f16", "bf16"), 128, 128, teams=1, a0=197, a1=264, a2=264),
}


@pytest.mark.parametrize("processors", FEW)
def test_right(monkeypatch, processors):
  monkeypatch.setattr(tiled_kernels, "H200", FEW[processors])
  cases = [c for c in FED.values() if c.params[0].sharing <= processors]
  near(cases, bound=2e-2)
  for c in cases:
    source = emit(c, FEW[processors])
    assert source.grid == (processors, 1, 1) and source.cluster == c.params[0].sharing
    assert [m.tensor for m in source.maps] == ["i0", "i1"] and "cp_async" not in source.text


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
  assert len(lines) == 2 + without.count("\n") + 1
  tensors = {t.name: np.zeros([c.extents[a] for a in t.axes], np.float16) for t in c.graph.tensors}
  compile_kernels([source]).run(tensors)
  with pytest.raises(EmulationError, match="never written|not been waited for"):
    compile_kernels([replace(source, text=without)]).run(tensors)
