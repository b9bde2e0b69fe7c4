"""Boxes of tensors by the copy engine: where elements lie, what is beyond, what is forgotten."""

import numpy as np
import pytest

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.ir.tensor_map import TensorMap

#: Each block copies a box of 16 rows and writes its 2048 bytes as they lie.
TEXT = """#include "ptx.cuh"
PTX_CLUSTER_KERNEL(32, 2) box(const unsigned short* __restrict__ x, unsigned* __restrict__ y,
                              PTX_TENSOR_MAP map) {
  unsigned* s = ptx::smem<unsigned>();
  ptx::U64* full = ptx::smem<ptx::U64>() + 512;
  const int rank = static_cast<int>(ptx::cluster_rank());
  if (ptx::thread() == 0) {
    ptx::tensor_prefetch(map);
    ptx::mbarrier_init(full, 1);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();
  if (ptx::thread() == 0) {
    ptx::mbarrier_arrive_expect_tx(full, 2048);
    COPY
  }
  ptx::wait(full, 0);
  for (int i = ptx::lane(); i < 512; i += 32) {
    y[rank * 512 + i] = s[i];
  }
  ptx::cluster_sync();
}
"""
OWN = "ptx::tensor_load(s, map, COLUMN, ROW + 16 * rank, full);"
#: Each block copies half of the box for both.
SHARED = "ptx::tensor_load_multicast(s + 256 * rank, map, COLUMN, ROW + 8 * rank, full, 3);"


def run(copy=OWN, row=0, column=0, box=16, order="ascending", **changed):
  text = TEXT.replace("COPY", copy).replace("COLUMN", str(column)).replace("ROW", str(row))
  for old, new in changed.get("mutate", ()):
    assert text.count(old) == 1, old
    text = text.replace(old, new)
  x = np.arange(1, 40 * 104 + 1, dtype=np.uint16).reshape(40, 104)
  y = np.zeros((2, 16, 8, 8), np.uint16)  # rank, row, chunk, element
  maps = (TensorMap("x", 38, 88, 104, box, first=8),)
  source = KernelSource("box", text, (2, 1, 1), 32, 2, 4104, ("x", "y"), pdl=False, maps=maps)
  compile_kernels([source]).run({"x": x, "y": y.view(np.uint32)}, order=order)
  placed = np.empty_like(y)
  for r in range(16):
    placed[:, r] = y[:, r, np.arange(8) ^ r % 8]
  return x[:38, 8:96], placed.reshape(2, 16, 64)


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (3, 24), (20, 64), (38, 0), (0, 88)])
def test_rows_and_zeros_beyond(row, column, order):
  tensor, got = run(row=row, column=column, order=order)
  whole = np.zeros((80, 192), np.uint16)
  whole[: tensor.shape[0], : tensor.shape[1]] = tensor
  want = whole[row : row + 32, column : column + 64]
  np.testing.assert_array_equal(got.reshape(32, 64), want)


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_halves_for_both(order):
  tensor, got = run(SHARED, row=4, column=8, box=8, order=order)
  for block in got:
    np.testing.assert_array_equal(block, tensor[4:20, 8:72])


@pytest.mark.parametrize(
  ("changed", "why"),
  [
    ({"mutate": [("  ptx::wait(full, 0);\n", "  ptx::sync_block();\n")]}, "not been waited for"),
    ({"mutate": [("    ptx::fence_mbarrier_init();\n", "")]}, "may not see the mbarrier"),
    ({"mutate": [("full, 2048)", "full, 2032)")]}, "deadlock|waits"),
    ({"mutate": [("(s, map", "(s + 4, map")]}, "multiple of 1024"),
    ({"row": "-1"}, "a box at column 0 of row -1"),
    ({"copy": SHARED, "box": 8, "mutate": [("full, 3)", "full, 1)")]}, "deadlock|waits"),
  ],
)
def test_what_is_forgotten(changed, why):
  with pytest.raises(EmulationError, match=why):
    run(**changed)
