"""A GPU for ``tune.measure`` that is the emulator: kernels run at once, and nothing is timed."""

from contextlib import contextmanager

import numpy as np

from mirage_onnx.emulator import compile_kernels
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.weights import sample_weights


class EmulatedGpu:
  def __init__(self):
    self.arrays = []

  @contextmanager
  def scope(self):
    yield

  def empty(self, size):
    self.arrays.append(np.zeros(size, np.uint8))
    return len(self.arrays) - 1

  def put(self, x):
    at = self.empty(x.nbytes)
    self.write(at, x)
    return at

  def write(self, at, x):
    self.arrays[at][:] = np.frombuffer(x.tobytes(), np.uint8)

  def poison(self, at, size):
    assert size == len(self.arrays[at])
    self.arrays[at][:] = 0xFF

  def get(self, at, shape, dtype):
    return self.arrays[at].view(dtype).reshape(shape)

  def load(self, cubin, name, smem_bytes):
    return name

  def launch_source(self, function, source, at):
    assert function == source.name
    sizes = {a: at[a] for a in source.sizes}
    compile_kernels([source]).run({a: self.arrays[at[a]] for a in source.args}, sizes=sizes)

  def capture(self, work):
    return work

  def wait(self):
    pass


def drawn(loaded, region):
  return draw(region, sample_weights(loaded, region), np.random.default_rng(0))
