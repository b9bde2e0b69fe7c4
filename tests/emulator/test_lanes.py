"""Shuffles and votes of the emulator where the device's result is undefined, or the call wrong.

Defined results are compared with the PTX document by ``test_primitives.py``.
"""

import numpy as np
import pytest

from mirage_onnx.emulator import EmulationError
from tests.emulator.kernels import kernel

KERNELS = [
  kernel(
    "absent_lane",
    "PTX_KERNEL(20) absent_lane(float* y) {\n"
    "  ptx::st_f32(y + ptx::lane(), ptx::shfl_down(1.0f, 4)); }",
    "y",
    block=20,
  ),
  kernel(
    "vote_of_some",
    "PTX_KERNEL(20) vote_of_some(unsigned* y) {\n"
    "  ptx::st_u32(y + ptx::lane(), ptx::ballot(true)); }",
    "y",
    block=20,
  ),
  kernel(
    "odd_width",
    "PTX_KERNEL(32) odd_width(float* y) { ptx::st_f32(y, ptx::shfl(1.0f, 2, 12)); }",
    "y",
  ),
  kernel(
    "vote_in_a_branch",
    "PTX_KERNEL(32) vote_in_a_branch(float* y) {\n"
    "  if (ptx::lane() < 16) ptx::any(true); else ptx::all(true); }",
    "y",
  ),
]  # fmt: skip


def test_a_lane_that_is_not_there_gives_poison(run):
  y = np.zeros(20, np.float32)
  run("absent_lane", y=y)
  np.testing.assert_array_equal(np.isnan(y), np.arange(20) >= 16)


def test_only_present_lanes_vote(run):
  y = np.zeros(20, np.uint32)
  run("vote_of_some", y=y)
  assert set(y) == {(1 << 20) - 1}


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("odd_width", "shfl: a width of 12 lanes is no power of two"),
    ("vote_in_a_branch", "diverged warp: this lane is at (all|any)"),
  ],
)
def test_misuse_is_an_error(run, name, message):
  with pytest.raises(EmulationError, match=message):
    run(name, y=np.zeros(4, np.float32))
