"""Global, shared and local memory of the emulator."""

import numpy as np
import pytest

from mirage_onnx import emulator
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError
from tests.emulator.kernels import FIRST_OF_TWO, HEADER, POISONED, TEXTS, kernel, normal

KERNELS = [
  # 16-byte accesses to a thread's own array need an aligned stack
  kernel("own_array", TEXTS["own_array"], "x y"),
  kernel(
    "second_of_two",
    """
    PTX_DEVICE float change(float v) { return v + 1; }
    PTX_KERNEL(32) second_of_two(const float* t, float* y) {
      ptx::st_f32(y + ptx::lane(), change(ptx::ld_f32(t + ptx::lane())));
    }""",
    "t y",
  ),
  FIRST_OF_TWO,
]


def test_arrays_of_a_thread(run):
  x, y = np.arange(16, dtype=np.uint32).reshape(4, 4), np.zeros((32, 4, 4), np.uint32)
  run("own_array", x=x, y=y)
  np.testing.assert_array_equal(y, np.tile(np.roll(x, -1, axis=0), (32, 1, 1)))


def test_shared_memory_starts_as_nan_in_every_block():
  y = np.zeros((2, 32), np.float32)
  emulator.run_kernel(POISONED, {"y": y}, checks=False)  # with checks, reading it is an error
  assert np.isnan(y).all()


def test_read_only_arrays_cannot_be_written(module):
  x, t = normal(32), np.zeros(32, np.float32)
  t.flags.writeable = False
  with pytest.raises(EmulationError, match="read-only tensor 't'") as caught:
    module.run({"x": x, "t": t}, [KERNELS.index(FIRST_OF_TWO)])
  assert caught.value.kind == "read_only"


def test_kernels_of_a_sequence_see_each_others_results(run):
  x = normal(32)
  t, y = np.full(32, np.nan, np.float32), np.full(32, np.nan, np.float32)
  run("first_of_two", "second_of_two", x=x, t=t, y=y)
  np.testing.assert_array_equal(y, x * 2 + 1)


def test_arrays_under_two_names_are_one():
  both = KernelSource(
    "copy", HEADER + "PTX_KERNEL(1) copy(const float* x, float* y) { *y = *x + 1; }",
    (1, 1, 1), 1, 1, 0, ("x", "y"), pdl=False,
  )  # fmt: skip
  same = np.ones(1, np.float32)
  emulator.run_kernel(both, {"x": same, "y": same})
  assert same[0] == 2
