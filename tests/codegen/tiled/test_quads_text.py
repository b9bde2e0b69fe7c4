"""Rows of 16 bytes of what is behind products: the lanes of a quad exchange tiles of columns."""

import pytest
from tiled_kernels import near

from tests.codegen.tiled.test_warpgroup import RESIDUAL, by_wgmma, emit

BF16 = RESIDUAL.replace("f16", "bf16")
CASES = {
  "whole": by_wgmma(RESIDUAL, 128, 64, warps=4, a2=256),
  "cut off": by_wgmma(BF16, 128, 64, warps=4, a0=77, a1=136, a2=200),
  "columns shared out": by_wgmma(RESIDUAL, 256, 64, stages=3, a0=130, a1=136, a2=264),
}


@pytest.mark.parametrize("name", CASES)
def test_loads_and_saves(name):
  text = emit(CASES[name]).text
  assert "ptx::ld_v4(g_i2 " in text and "ptx::st_v4(g_o0 " in text and "ptx::ld_u32(g_i2 " not in text
  assert text.count("quad_turned") == 2


def test_right():
  near(CASES.values(), bound=2e-2)


def test_rows_that_begin_anywhere():
  """196 columns are no multiple of 16 bytes."""
  case = by_wgmma(RESIDUAL, 64, 64, warps=4, a0=77, a1=136, a2=196)
  text = emit(case).text
  assert "ptx::ld_v4(g_i2 " not in text and "ptx::ld_u32(g_i2 " in text and "quad_turned" not in text
  near([case], bound=2e-2)
