"""Registers that warps share out."""

import pytest

from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.compiler.machine.pool import short_of_registers
from mirage_onnx.errors import RejectionError
from mirage_onnx.target import H100

TEXT = """#include "ptx.cuh"
#include "ptx_warpgroup.cuh"
MACRO(384) k0(float* __restrict__ to) {  // wgmma
  if (ptx::warpgroup() == 2) {
    ptx::registers_give<40>();
  } else {
    ptx::registers_take<TAKEN>();
    to[ptx::thread()] = 1.0f;
  }
}
"""


def ptx(*changes, threads=384):
  return "\n".join([f".maxntid {threads}, 1, 1", *(f"\tsetmaxnreg.{c};" for c in changes)])


def test_what_a_launch_has():
  both = ("dec.sync.aligned.u32 40", "inc.sync.aligned.u32 232")
  assert short_of_registers(ptx(*both), 168) is None
  assert short_of_registers(ptx(*both), 160) == "its warps wait for 64512 registers of 61440"
  more = short_of_registers(ptx("inc.sync.aligned.u32 176"), 168)
  assert more == "its warps wait for 66560 registers of 64512"
  assert short_of_registers(ptx(), 32) is None
  assert "nobody knows" in short_of_registers("setmaxnreg.inc.sync.aligned.u32 232;", 168)


def test_a_kernel_that_would_wait_for_good_is_refused():
  """A block to itself is compiled for all registers, any other for as few as it needs."""
  lone = TEXT.replace("MACRO", "PTX_LONE_KERNEL").replace("TAKEN", "232")
  assert compile_cubin(lone, H100, name="k0").registers == 168
  with pytest.raises(RejectionError, match="wait for") as error:
    compile_cubin(lone.replace("232", "240"), H100, name="k0")
  assert error.value.rejection.code == "MISCOMPILED"
