"""What is loaded behind products of fed blocks: all of a tile is brought to L2 before, and nothing else."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mirage_onnx.emulator import compile_kernels
from mirage_onnx.target import H100
from tests.codegen.tiled.test_warpgroup import GELU, RESIDUAL, by_wgmma, emit

FEW = replace(H100, name="few", multiprocessors=2)
ASKS = re.compile(r"ptx::prefetch_l2\((g_\w+ [^;]*)\);")


@pytest.mark.parametrize(
  ("columns", "rows", "teams", "sizes"),
  [
    (128, 64, 2, {"a0": 397, "a1": 328, "a2": 264}),
    (128, 128, 1, {"a0": 130, "a1": 136, "a2": 136}),
    (192, 64, 1, {"a0": 66, "a1": 136, "a2": 200}),
  ],
)
def test_every_line_once(columns, rows, teams, sizes, rng):
  """As loads of four bytes they would be right, and reach every line of the tensor."""
  case = by_wgmma(RESIDUAL, columns, rows, warps=4 * (rows // 64), stages=3, teams=teams, **sizes)
  source = emit(case, FEW)
  (asked,) = ASKS.findall(source.text)
  assert asked.startswith("g_i2 ")
  marked = f"static_cast<void>(ptx::ld_u32({asked})); "
  marked += f"g_o1[(({asked}) - g_i2) / 8] = 1;"
  text = ASKS.sub(lambda _: f"{{ {marked} }}", source.text)
  text = text.replace("    PTX_TENSOR_MAP", "    unsigned short* __restrict__ g_o1,\n    PTX_TENSOR_MAP", 1)
  seen = replace(source, text=text, args=(*source.args, "o1"))
  tensors = {
    t.name: rng.standard_normal([case.extents[a] for a in t.axes]).astype(np.float16)
    for t in case.graph.tensors
  }
  lines = tensors["i2"].size // 8 + 1
  tensors["o1"] = np.zeros(lines, np.uint16)
  compile_kernels([seen]).run(tensors)
  wide = {n: tensors[n].astype(float) for n in ("i0", "i1", "i2")}
  np.testing.assert_allclose(
    tensors["o0"].astype(float), wide["i0"] @ wide["i1"].T + wide["i2"], rtol=4e-3, atol=4e-2
  )
  width = sizes["a2"]
  starts = {(r * width + c) // 8 for r in range(sizes["a0"]) for c in range(0, width, 64)}
  assert set(np.flatnonzero(tensors["o1"])) == starts


def test_only_tiles():
  """A vector of columns is a line or two, and is there at once."""
  assert "prefetch_l2" not in emit(by_wgmma(GELU, 64, 64, warps=4, teams=2)).text
  assert "prefetch_l2" not in emit(by_wgmma(RESIDUAL, 64, 64, warps=4)).text
