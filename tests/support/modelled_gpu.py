"""A GPU whose times follow from what is captured, for what measures rates."""

from contextlib import contextmanager

import numpy as np

from mirage_onnx.target import H100
from mirage_onnx.tune.device import AHEAD, CALLS, flush_bytes


class ModelledGpu:
  """``launch_us`` a launch, and the bytes, products or barriers of the kernels of ``tune``.

  ``mma``: TFLOP/s of tensor cores by the operands' type. ``seconds``: that it was busy, with what empties L2.
  """

  def __init__(
    self, launch_us=0.8, ramp_us=2.0, tbps=3.0, l2_tbps=5.0, mma=None, barrier_us=0.03, target=H100
  ):
    self.launch_us, self.ramp_us, self.rate, self.target = launch_us, ramp_us, tbps * 1e6, target
    self.l2_rate, self.mma, self.barrier_us = l2_tbps * 1e6, mma or {"f16": 500.0, "bf16": 510.0}, barrier_us
    self.rng, self.work, self.left, self.seconds = np.random.default_rng(1), [], 0, 0.0

  @contextmanager
  def scope(self):
    self.left += 1
    yield
    self.left -= 1

  def put(self, x):
    assert x.any()  # random data, never zeros
    return 0

  def empty(self, size):
    return 0

  def load(self, cubin, name, smem_bytes=0):
    """``cubin``: the text, which tests leave as it is."""
    return (
      name if name != "products" else "products of " + next(t for t in self.mma if f"_16816_{t}(" in cubin)
    )

  def launch(self, function, grid, block, arguments):
    warps = grid[0] * block // 32
    if function == "read_all":
      # One shape is the best: the others have too little in flight.
      best = grid[0] == 4 * self.target.multiprocessors and block == 512
      us = 16 * arguments[1] / self.rate * (1 if best else 1.5) + self.ramp_us
    elif function == "read_again":
      assert arguments[1] % (grid[0] * block) == 0 and 16 * arguments[1] <= self.target.l2_bytes / 2
      us = 16 * arguments[1] * arguments[2] / self.l2_rate
    elif function.startswith("products of "):
      flops = arguments[0] * warps * 4 * 2 * 16 * 8 * 16
      us = flops / self.mma[function.removeprefix("products of ")] / 1e6
    elif function == "barriers":
      us = arguments[0] * self.barrier_us
    else:
      assert function == "nop" and not arguments
      us = 0.0
    self.work.append(self.launch_us + us)

  def capture(self, work):
    self.work = []
    work()
    took = sum(self.work)
    return lambda: took

  def time_us(self, arms, samples):
    calls = len(arms) * (samples + 1) * CALLS
    flushes = (calls + (samples + 1) * CALLS) * (1 + AHEAD / CALLS)
    self.seconds += 1e-6 * (
      flushes * 2 * flush_bytes(self.target) / self.rate + calls * np.mean([arm() for arm in arms])
    )
    return np.array([[arm() * self.rng.normal(1, 0.002) for _ in range(samples)] for arm in arms])
