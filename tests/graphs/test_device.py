"""Running on GPU arrays, without a GPU: real kernels in the emulator, arrays of a stand-in library.

``tests/gpu/test_graphs.py`` has the real libraries.
"""

from contextlib import contextmanager

import numpy as np
import pytest
from golden_texts import PROGRAMS
from readme_graphs import ONE_KERNEL, attention

import mirage_onnx as mi
from mirage_onnx.emulator import run_kernel
from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs import optimized as module
from mirage_onnx.graphs.arrays import ALIGNMENT, Library
from mirage_onnx.target import H200

#: Row kernels: the statistics into workspace, then the scaling.
TWO_ROW_KERNELS = PROGRAMS["two_row_kernels"]
NUMBERS = ["tile=1 cluster=1 loop_tile=0 warps=2 stages=1"] * 2


class Memory:
  def __init__(self):
    self.arrays = {}
    self.loaded = []
    self.launched = []
    self.streams = []


class StandIn(Library):
  def __init__(self, memory):
    self.memory = memory
    self.made = []

  def device(self, x):
    return 3

  def dense(self, x):
    aligned = x.ctypes.data % ALIGNMENT == 0
    return x if x.flags.c_contiguous and aligned else x.copy(order="C")

  def address(self, x):
    assert x.flags.c_contiguous
    self.memory.arrays[x.ctypes.data] = x
    return int(x.ctypes.data)

  def empty(self, shape, dtype, device):
    assert device == 3
    self.made.append(tuple(shape))
    return np.zeros(tuple(shape), dtype.numpy)

  def stream(self, device):
    assert device == 3
    return 77


@pytest.fixture
def gpu(monkeypatch):
  memory = Memory()

  class Emulated:
    def __init__(self, device, stream, target):
      memory.streams.append((device, stream))
      self.target = target

    @contextmanager
    def current(self):
      yield

    def load(self, cubin, name, smem_bytes):
      assert cubin.image[:4] == b"\x7fELF"
      memory.loaded.append(name)
      return name

    def launch_source(self, function, source, at):
      assert function == source.name
      memory.launched.append(function)
      run_kernel(source, {a: memory.arrays[at[a]].reshape(-1) for a in source.args})

  library = StandIn(memory)
  monkeypatch.setattr(module, "ArrayGpu", Emulated)
  monkeypatch.setattr(module, "library_of", lambda arrays: library)
  return library


@pytest.fixture(scope="module")
def rows():
  graph = mi.new_kernel_graph()
  graph.rms_norm(graph.new_input((6, 256), mi.float16))
  return graph.read_ugraph(TWO_ROW_KERNELS, NUMBERS, target="h200")


def check(optimized, x):
  (y,) = optimized([x])
  wide = x.astype(float)
  want = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True))
  assert y.dtype == np.float16 and y.shape == x.shape
  np.testing.assert_allclose(y.astype(float), want, rtol=2e-3, atol=1e-3)


def test_kernels_run_on_the_callers_arrays(rows, gpu, rng):
  rows._loaded.clear()
  x = rng.standard_normal((6, 256)).astype(np.float16)
  check(rows, x)
  memory = gpu.memory
  assert memory.streams == [(3, 77)]
  assert memory.launched == memory.loaded and len(memory.loaded) == 2
  assert sorted(gpu.made) == [(6,), (6, 256)]  # workspace, output
  check(rows, -x)
  assert len(memory.loaded) == 2, "compiled once"
  assert len(memory.launched) == 4


def test_other_sizes_are_compiled_for_themselves(rows, gpu, rng):
  rows._loaded.clear()
  for shape in ((6, 256), (3, 512), (6, 256)):
    check(rows, rng.standard_normal(shape).astype(np.float16))
  assert len(gpu.memory.loaded) == 4


def test_strided_and_unaligned_arrays_are_copied(rows, gpu, rng):
  x = rng.standard_normal((256, 6)).astype(np.float16)
  check(rows, x.T)
  flat = rng.standard_normal(6 * 256 + 1).astype(np.float16)
  check(rows, flat[1:].reshape(6, 256))


def test_what_does_not_fit_is_refused_in_one_line(gpu):
  large = ["tile=256,1 cluster=1 loop_tile=2048 warps=1 stages=1"]
  optimized = attention().read_ugraph(ONE_KERNEL, large)
  shapes = ((2, 256, 64), (2, 64, 4096), (2, 4096, 64))
  with pytest.raises(RejectionError) as e:
    optimized([np.zeros(s, np.float16) for s in shapes])
  assert e.value.rejection.code in ("SMEM", "LAYOUT")
  assert "\n" not in str(e.value.rejection)
  assert not gpu.memory.launched and not gpu.made


def test_the_target_is_the_one_it_was_optimized_for(rows):
  assert rows.target is H200
