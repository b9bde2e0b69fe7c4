"""What the emulator compiles, how often, and what it refuses."""

import numpy as np
import pytest
from refused import refused

from mirage_onnx import emulator
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.emulator import EmulationError, toolchain
from tests.emulator.kernels import FIRST_OF_TWO, HEADER

KERNELS = [FIRST_OF_TWO]


def test_a_text_is_compiled_once(monkeypatch, tmp_path):
  monkeypatch.setattr(toolchain, "cache_folder", lambda: tmp_path)
  for checks in (True, False):
    emulator.compile_kernels([FIRST_OF_TWO], checks=checks)
  assert sorted(path.suffix for path in tmp_path.iterdir()) == [".o", ".so", ".so"]
  monkeypatch.setattr("subprocess.run", None)  # no compiler from here on
  emulator.run_kernel(FIRST_OF_TWO, {"x": np.zeros(32, "f4"), "t": np.zeros(32, "f4")})


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("PTX_KERNEL(32) k(float* y) { oops(); }", r"does not compile:\nk.cu:2:.*oops"),
    (
      "PTX_KERNEL(64) k(float* y) {}",
      "launched with 32 threads in clusters of 1, compiled for 64",
    ),
    ("PTX_CLUSTER_KERNEL(32, 2) k(float* y) {}", "compiled for 32 in clusters of 2"),
    ("PTX_KERNEL(32) other(float* y) {}", "defines no PTX_KERNEL"),
    ("PTX_KERNEL(32) k(float* y, int n) {}", "1 arguments for 2 parameters"),
    ('#include "missing.cuh"\nPTX_KERNEL(32) k(float* y) {}', "no such device header"),
  ],
)
def test_bad_texts_are_refused(text, message):
  source = KernelSource("k", HEADER + text, (1, 1, 1), 32, 1, 0, ("y",), pdl=False)
  with pytest.raises(EmulationError, match=message):
    emulator.run_kernel(source, {"y": np.zeros(1, np.float32)})


def test_a_missing_tensor_is_named(module):
  with pytest.raises(EmulationError, match="no tensor for the kernel arguments x, t"):
    module.run({}, [KERNELS.index(FIRST_OF_TWO)])


def test_missing_compiler(monkeypatch):
  monkeypatch.setenv("CXX", "/nowhere/g++")
  toolchain.host_compiler.cache_clear()
  try:
    with refused("HOST_COMPILER_MISSING"):
      emulator.compile_kernels([FIRST_OF_TWO])
  finally:
    toolchain.host_compiler.cache_clear()
