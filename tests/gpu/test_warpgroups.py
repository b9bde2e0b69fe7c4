"""Contractions by wgmma on the GPU: the kernels of the emulator's tests, and many tiles."""

import numpy as np
import pytest
from banded import banded, banded_text
from tiled_kernels import Case, drawn

from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.ir import DType, KernelParams
from mirage_onnx.target import H200
from mirage_onnx.tune.device import Gpu
from mirage_onnx.verify.domain import Rounded
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from tests.codegen.tiled.test_feed_text import BATCHED
from tests.codegen.tiled.test_feed_text import FED as FED_PRODUCTS
from tests.codegen.tiled.test_ring_feed_text import CASES as FED
from tests.codegen.tiled.test_turns_text import CASES as BANDED
from tests.codegen.tiled.test_warpgroup import (
  ACROSS,
  GELU,
  PLAIN,
  RESIDUAL,
  RUN,
  STANDING,
  attention,
  by_wgmma,
  emit,
)

pytestmark = pytest.mark.gpu

CASES = {
  **RUN,
  **{f"standing {n}": c for n, c in enumerate(STANDING)},
  **{f"fed, {name}": c for name, c in FED_PRODUCTS.items()},
  "batched": Case(
    BATCHED, (KernelParams((128, 128, 1), 1, 64, 8, 4, "wgmma"),), {"a0": 197, "a1": 576, "a2": 1000, "a3": 8}
  ),
  "fed, batched": Case(
    BATCHED,
    (KernelParams((128, 128, 1), 1, 64, 8, 4, "wgmma", teams=1, late=1),),
    {"a0": 197, "a1": 576, "a2": 1000, "a3": 16},
  ),
  "fed, stored late": by_wgmma(GELU, 256, 128, teams=1, late=1, a0=2100, a1=456, a2=5000),
  "fed, functions stored late": by_wgmma(GELU, 256, 128, teams=1, late=2, a0=2100, a1=456, a2=5000),
  "fed, functions stored late, three": by_wgmma(
    GELU, 128, 192, warps=12, teams=1, late=2, a0=2100, a1=456, a2=5000
  ),
  "fed, stored late, shared": by_wgmma(
    RESIDUAL, 128, 128, stages=4, teams=1, sharing=2, late=1, a0=2304, a1=328, a2=2504
  ),
  "fed, many tiles": by_wgmma(PLAIN, 64, 64, warps=4, teams=2, a0=1600, a1=456, a2=2504),
  "fed, many tiles that two share": by_wgmma(
    PLAIN, 64, 64, warps=4, teams=2, sharing=2, a0=1664, a1=456, a2=2504
  ),
  "many tiles": by_wgmma(PLAIN, 64, 64, warps=4, a0=1600, a1=456, a2=2504),
  "many tiles across": by_wgmma(ACROSS, 128, 64, warps=4, a0=1600, a1=456, a2=2504),
  "bf16": by_wgmma(PLAIN.replace("f16", "bf16"), 64, 128, a0=177, a1=328, a2=136),
  "attention": attention(64, 64, 2, a1=200, a3=77),
  "wide attention": attention(128, 64, 3, a1=256, a2=128, a3=128, a4=128),
  "attention in long steps": attention(128, 128, 2, a1=500, a3=300),
  "attention of a band": banded(banded_text("..0 else 0"), 64, 64, 2, a1=264, a3=200),
  **{f"fed: {n}": c for n, c in FED.items()},
  **{f"band: {n}": c for n, c in BANDED.items() if n.startswith("sharp")},
  "attention of a window": banded(banded_text("-70..3 else 0"), 64, 64, 3, a1=328, a3=328),
}


def test_right_on_the_gpu(h200):
  gpu, rng = Gpu(H200), np.random.default_rng(7)
  cases = list(CASES.values())
  sources = [emit(c, H200) for c in cases]
  assert any("tile += " in s.text for s in sources)
  wrong = {}
  for name, c, source, image in zip(CASES, cases, sources, compile_many(sources, H200, 4), strict=True):
    assert isinstance(image, Cubin), (name, image)
    graph, (given, inputs) = c.graph, drawn(c, rng)
    assert all(given[t.name].dtype == t.dtype.numpy for t in graph.tensors)
    with gpu.scope():
      at = {n: gpu.put(x) for n, x in given.items()}
      gpu.launch_source(gpu.load(image, source.name, source.smem_bytes), source, at)
      got = gpu.get(at["o0"], given["o0"].shape, given["o0"].dtype).astype(np.float64)
    out = graph.tensor("o0")
    want = interpret_ugraph(Rounded(), graph, c.params, c.extents, inputs)["o0"].aligned(out.axes)[0]
    gap = np.abs(got - want.astype(np.float64)).max() / max(1.0, float(np.abs(want).max()))
    if not gap < (3e-2 if out.dtype is DType.BF16 else 6e-3):
      wrong[name] = gap
  assert not wrong
