"""wgmma in the emulator: the layouts of the PTX document, and what is forgotten around it."""

import ml_dtypes
import numpy as np
import pytest

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError, compile_kernels
from mirage_onnx.emulator.build import INCLUDE_DIRS
from tests.emulator.test_headers import functions

#: Two products, one a step of a ring of two tiles: rows of 64 depth elements, 64 of A and 8 J of B.
TEXT = """#include "ptx.cuh"
#include "ptx_warpgroup.cuh"
PTX_KERNEL(128) product(const unsigned short* __restrict__ x, const unsigned short* __restrict__ w,
                        float* __restrict__ y) {
  unsigned short* s = ptx::smem<unsigned short>();
  float d[2][J][2];
  const int g = ptx::lane() / 4;
  const int t = ptx::lane() % 4;
  for (int j = 0; j < J; ++j) {
    for (int h = 0; h < 2; ++h) {
      for (int e = 0; e < 2; ++e) {
        d[h][j][e] = y[(16 * ptx::warp() + g + 8 * h) * 8 * J + 8 * j + 2 * t + e];
      }
    }
  }
  for (int step = 0; step < 2; ++step) {
    unsigned short* to = s + step * (64 + 8 * J) * 64;
    for (int e = ptx::thread(); e < (64 + 8 * J) * 8; e += 128) {
      const int r = e / 8;
      const int c = e % 8;
      const unsigned short* from = (r < 64 ? x + r * 128 : w + (r - 64) * 128) + step * 64 + c * 8;
      ptx::cp_async_16(to + r * 64 + (c ^ r % 8) * 8, from);
    }
    ptx::cp_async_commit();
  }
  for (int step = 0; step < 2; ++step) {
    ptx::cp_async_wait_all();
    ptx::fence_proxy_async();
    ptx::sync_block();
    const unsigned short* a = s + step * (64 + 8 * J) * 64;
    const ptx::U64 b = BTILE;
REGISTERS
    ptx::wgmma_fence();
    for (int k = 0; k < 4; ++k) {
      ptx::wgmma_TYPE<TURNED>(d, FIRST, b + DEEP * k);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<WAIT>();
  }
  ptx::wgmma_wait<0>();
  ptx::wgmma_hold(d);
  for (int j = 0; j < J; ++j) {
    for (int h = 0; h < 2; ++h) {
      for (int e = 0; e < 2; ++e) {
        y[(16 * ptx::warp() + g + 8 * h) * 8 * J + 8 * j + 2 * t + e] = d[h][j][e];
      }
    }
  }
}
"""
ROWS_OF_B = {"TURNED": "false", "DEEP": "2", "BTILE": "ptx::wgmma_tile(a + 64 * 64)"}
#: B as 64 rows of 8 J columns a step, in panels of 64 columns.
TURNED = {"TURNED": "true", "DEEP": "128", "BTILE": "ptx::wgmma_turned_tile(a + 64 * 64, 64 * 128)"}
SHARED = {"REGISTERS": "", "FIRST": "ptx::wgmma_tile(a) + 2 * k", "WAIT": "1"}
FRAGMENTS = {
  "REGISTERS": """
    unsigned p[4][4];
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 4; ++i) {
        const int r = 16 * ptx::warp() + g + i % 2 * 8;
        const int c = k * 2 + i / 2;
        p[k][i] = *reinterpret_cast<const unsigned*>(a + r * 64 + (c ^ r % 8) * 8 + 2 * t);
      }
    }""",
  "FIRST": "p[k]",
  "WAIT": "0",
}
DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


COPY = """      const int r = e / 8;
      const int c = e % 8;
      const unsigned short* from = (r < 64 ? x + r * 128 : w + (r - 64) * 128) + step * 64 + c * 8;
      ptx::cp_async_16(to + r * 64 + (c ^ r % 8) * 8, from);
"""
COPY_TURNED = """      const int r = e / 8;
      const int c = e % 8;
      const int p = (r - 64) / 64;
      const int k = (r - 64) % 64;
      const unsigned short* from = r < 64 ? x + r * 128 + step * 64 + c * 8
                                          : w + (step * 64 + k) * 8 * J + p * 64 + c * 8;
      ptx::cp_async_16(to + r * 64 + (c ^ r % 8) * 8, from);
"""


def run(j=16, dtype="f16", way=None, order="ascending", turned=False, **changed):
  assert COPY in TEXT
  text = TEXT.replace(COPY, COPY_TURNED) if turned else TEXT
  for name, value in {
    **(TURNED if turned else ROWS_OF_B),
    **(way or SHARED),
    "TYPE": dtype,
    "J": str(j),
  }.items():
    text = text.replace(name, value) if name != "J" else text.replace("J", value)
  for old, new in changed.get("mutate", ()):
    assert text.count(old) >= 1, old
    text = text.replace(old, new)
  rng = np.random.default_rng(j)
  x, w = (rng.standard_normal((n, 128)).astype(DTYPES[dtype]) for n in (64, 8 * j))
  y = rng.standard_normal((64, 8 * j)).astype(np.float32)
  want = y + x.astype(np.float64) @ w.astype(np.float64).T
  smem = 2 * (64 + 8 * j) * 128
  source = KernelSource("product", text, (1, 1, 1), 128, 1, smem, ("x", "w", "y"), pdl=False)
  w = np.ascontiguousarray(w.T) if turned else w
  arrays = {"x": x.view(np.uint16), "w": w.view(np.uint16), "y": y}
  compile_kernels([source]).run(arrays, order=order)
  return np.abs(y - want).max()


@pytest.mark.parametrize("j", [4, 8, 12, 16, 20, 24, 28, 32])
def test_every_width(j):
  assert run(j) < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", [SHARED, FRAGMENTS], ids=["shared", "registers"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_types_and_operands(dtype, way, order):
  assert run(8, dtype, way, order) < 1e-4


@pytest.mark.parametrize("way", [SHARED, FRAGMENTS], ids=["shared", "registers"])
@pytest.mark.parametrize("j", [8, 16, 32])
def test_b_with_the_depth_down_its_rows(way, j):
  assert run(j, way=way, turned=True) < 1e-4
  assert (
    not run(j, way=way, turned=True, mutate=[("64 * 128)", "64 * 64)")] if j > 8 else [("128 * k", "64 * k")])
    < 1e-2
  )


FORGOTTEN = {
  "wait": ([("ptx::wgmma_wait<1>();", ""), ("ptx::wgmma_wait<0>();", "")], "not waited for"),
  "last wait": ([("ptx::wgmma_wait<0>();", "")], "not waited for"),
  "commit": ([("ptx::wgmma_commit();", "")], "not waited for"),
  "fence": ([("    ptx::wgmma_fence();\n", "")], "no wgmma_fence comes before"),
  "proxy": ([("    ptx::fence_proxy_async();\n", "")], "no fence_proxy_async follows"),
  "barrier": ([("    ptx::sync_block();\n", "")], "data race"),
  "copies": ([("    ptx::cp_async_wait_all();\n", "")], "asynchronous result before its wait"),
  "stage": ([("s + step * ", "s + (step + 1) % 2 * ")], None),
  "swizzle": ([("(c ^ r % 8)", "c")], None),
  "row": ([("+ (c ^ r % 8) * 8, from", "+ (c ^ (r + 1) % 8) * 8, from")], None),
  "depth": ([("b + 2 * k", "b + k")], None),
  "slot": (
    [("ptx::wgmma_wait<1>();",
      "ptx::cp_async_16(s + ptx::thread() * 8, x); ptx::wgmma_wait<1>();")],
    "may not have read yet",
  ),
  "accumulator": ([("ptx::wgmma_wait<1>();", "d[0][0][0] = 0.0f; ptx::wgmma_wait<1>();")],
                  "has written its accumulators"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_is_forgotten_is_noticed(name):
  mutations, reason = FORGOTTEN[name]
  if reason is None:
    if name == "stage":  # both tiles are there: their sum does not depend on the order
      mutations = [("const unsigned short* a = s + step", "const unsigned short* a = s + 0 * step")]
    assert not run(8, mutate=mutations) < 1e-2
    return
  with pytest.raises(EmulationError, match=reason):
    run(8, mutate=mutations)


def test_changed_fragments_are_noticed():
  way = dict(FRAGMENTS, WAIT="0>(); p[0][0] += 1; ptx::wgmma_wait<0")
  assert run(8, way=way) < 1e-4
  with pytest.raises(EmulationError, match="changed its registers of operand A"):
    run(8, way=dict(FRAGMENTS, WAIT="1>(); p[0][0] += 1; ptx::wgmma_wait<0"))


def test_both_sides_have_the_same_functions():
  host, device = (functions(folder / "ptx_warpgroup.cuh") for folder in INCLUDE_DIRS)
  own = {head for head in device if "wgmma" in head}
  assert len(own) == 11
  assert own == {head for head in host if "wgmma" in head}
