"""Matrix functions of the emulator: how mma adds, by hand, and what it refuses.

That fragments lie as the PTX document says is tested by ``test_primitives.py``.
"""

import re
from dataclasses import replace

import numpy as np
import pytest

from mirage_onnx import emulator
from mirage_onnx.emulator import EmulationError
from tests.emulator.kernels import kernel
from tests.support.primitives import CASES, tensor_core

MISUSES = {
  "misaligned_row": ("ptx::ldmatrix_x4(s + ptx::lane() % 16 * 16 + 8)", "misaligned shared read"),
  "row_outside": ("ptx::ldmatrix_x2(s + 512 + ptx::lane() * 16 - 240)", "out-of-bounds shared"),
  "stored_outside": (
    "ptx::stmatrix_x1(s + ptx::lane() % 8 * 16 + (ptx::lane() == 7 ? 512 : 0), 0)",
    "out-of-bounds shared write of 16 bytes",
  ),
  "two_instructions": (
    "ptx::lane() < 9 ? ptx::movmatrix(1) : ptx::ldmatrix_x1(s)",
    "diverged warp: this lane is at (movmatrix|ldmatrix_x1)",
  ),
}
KERNELS = [
  *(
    kernel(
      name,
      f"PTX_KERNEL(32) {name}(float* y) {{ char* s = ptx::smem<char>();\n"
      "ptx::smem<ptx::U4>()[ptx::lane()] = {1, 2, 3, 4}; ptx::sync_warp();\n"
      f"{text}; }}",
      "y",
      smem=512,
    )
    for name, (text, _) in MISUSES.items()
  ),
  kernel(
    "short_warp",
    "PTX_KERNEL(16) short_warp(float* y) { ptx::st_f32(y, ptx::movmatrix(1)); }",
    "y",
    block=16,
  ),
]


@pytest.mark.parametrize("name", list(MISUSES))
def test_misuse_is_an_error(run, name):
  with pytest.raises(EmulationError) as caught:
    run(name, y=np.zeros(4, np.float32))
  assert re.search(MISUSES[name][1], str(caught.value), re.DOTALL), caught.value


def test_a_fragment_needs_a_whole_warp(run):
  with pytest.raises(EmulationError, match="movmatrix in a warp of 16 lanes"):
    run("short_warp", y=np.zeros(4, np.float32))


SUMS = {
  # (products, accumulator) -> the result; every product is exact
  "halves of the last place add up": (
    ((1, 1), (2**-12, 2**-12), (2**-12, 2**-12)),
    0,
    1 + 2**-23,
  ),
  "the sum is cut, not rounded": (((1, 1),), 3 * 2.0**-25, 1.0),
  "towards zero": (((-1, 1),), -3 * 2.0**-25, -1.0),
  "a term below the last kept bit is nothing": (((1, 1),), -(2.0**-26), 1.0),
  "the last kept bit counts": (((1, 1),), -(2.0**-25), 1 - 2.0**-24),
  "what cancels decides how much is kept": (((2**12, 2**12), (-(2**12), 2**12)), 0.5, 0.5),
  "and what is cut": (((2**12, 2**12), (-(2**12), 2**12)), 0.25, 0.0),
  "a factor's exponents add, not normalised": (((1.5, 1.5), (-1.5, 1.5)), 2.0**-25, 2.0**-25),
}


@pytest.mark.parametrize("name", list(SUMS))
def test_mma_adds_like_the_tensor_core(name):
  products, start, want = SUMS[name]
  a, b = np.zeros((1, 16, 16), np.float16), np.zeros((1, 16, 8), np.float16)
  c, d = np.zeros((1, 16, 8), np.float32), np.zeros((1, 16, 8), np.float32)
  for k, (left, right) in enumerate(products):
    a[0, 3, 15 - k], b[0, 15 - k, 5] = left, right
  c[0, 3, 5] = start
  assert tensor_core.multiply_add(a, b, c)[0, 3, 5] == np.float32(want)
  one = replace(CASES["mma_16816_f16"].kernels[0], grid=(1, 1, 1))
  bits = {"a": a.view(np.uint16), "b": b.view(np.uint16)}
  emulator.run_kernel(one, {**bits, "c": c, "d": d})
  assert d[0, 3, 5] == np.float32(want)
  d[0, 3, 5] = 0
  assert not d.any()
