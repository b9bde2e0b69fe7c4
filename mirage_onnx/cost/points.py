"""The cost model of ``model.py`` for a streaming kernel at many parameter points in one pass.

It ranks points; ``kernel_cost`` of the best is what counts. Both are the same formulas in the same
order, so they differ by rounding at most: powers of arrays and of numbers are not the same bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_onnx.cost.model import (
  BARRIER_US,
  BLOCK_US,
  CLUSTER_FILL,
  CLUSTER_US,
  COMBINE_US,
  ELEMENT_US,
  FREE_BLOCKS,
  L2_SHARE,
  LARGE_CLUSTER_FILL,
  LATENCY_US,
  LOADED_LATENCY_US,
  MMA_SHARE,
  WAVE_US,
  Features,
  alu_operations_per_us,
  imbalance,
  ring_registers,
)
from mirage_onnx.target import Target

Array = NDArray[Any]

#: Relative difference of times beyond which two points are in order for certain.
ROUNDING = 1e-9
#: By the size of a cluster.
FILL = np.array([CLUSTER_FILL.get(size, LARGE_CLUSTER_FILL) for size in range(17)])


@dataclass(frozen=True, slots=True)
class PointTimes:
  """Per point: predicted microseconds, registers per thread, bytes of shared memory."""

  time_us: Array
  registers: Array
  smem_bytes: Array


def point_times(
  f: Features,
  tile: tuple[Array, ...],
  cluster: Array,
  warps: Array,
  stages: Array,
  target: Target,
) -> PointTimes:
  """Times of a kernel with a loop; all arrays have one dimension, ``tile`` one per grid axis."""
  kernel, extents = f.kernel, f.extents
  assert kernel.loop is not None
  zero = np.zeros(cluster.shape)
  local: dict[str, Any] = dict(extents)
  blocks: Any = 1
  for axis, t in zip(kernel.grid, tile, strict=True):
    local[axis] = np.minimum(t, extents[axis])
    blocks = blocks * np.ceil(extents[axis] / t)

  def size(axes: tuple[str, ...]) -> Any:
    n: Any = 1
    for a in axes:
      n = n * local[a]
    return n

  l2 = np.floor(blocks * sum((size(axes) * width for axes, width in f.loads), zero))
  flops = blocks * sum((2 * size(axes) * depth for axes, depth, _ in f.matmuls), zero)
  alu = blocks * sum((size(axes) * count for axes, count in f.work), zero)
  columns = sum((np.ceil(local[a] / 16) for a in f.a_loads if a), zero)
  rows = sum((np.ceil(local[a] / 8) if a else 1 for a in f.b_loads), zero)
  fragments = _fragments(f, local, zero)
  registers = 26 + ring_registers(f, stages, columns, rows) + 4 * fragments
  smem = warps * 512 * fragments
  threads = 32 * warps
  rounded = np.maximum(np.ceil(registers / 8) * 8, 24)
  resident = np.minimum(
    np.floor(target.registers_per_sm / (threads * rounded)),
    np.floor(target.smem_per_sm_bytes / (smem + target.reserved_smem_bytes)),
  )
  resident = np.maximum(1, np.minimum(resident, np.minimum(target.sm_threads // threads, target.sm_blocks)))
  ctas = blocks * cluster
  sms = target.multiprocessors
  capacity = sms * resident * FILL[cluster]
  waves = np.maximum(1, np.ceil(ctas / capacity - 0.05))
  fixed = f.barriers * BARRIER_US + np.where(cluster > 1, CLUSTER_US, 0.0)
  fixed = fixed + COMBINE_US * fragments
  after = sum((count * np.ceil(size(axes) / threads) for axes, count in f.after), zero)
  fixed = fixed + ELEMENT_US * after
  many = np.maximum(0.0, np.minimum(ctas / sms, 8.0) - FREE_BLOCKS)
  fixed = fixed + (BLOCK_US * many + WAVE_US * (waves - 1))
  busy = np.minimum(1.0, ctas / sms)
  steps = np.ceil(extents[kernel.loop] / (f.step * warps * cluster))
  in_flight = np.minimum(ctas / sms, resident) * warps * np.minimum(stages, steps) * columns * 1024
  # Without an operand that streams nothing limits the rate, and nothing is infinite.
  limit = np.where(in_flight > 0, in_flight, 1e30) * sms / LOADED_LATENCY_US
  rate = ((target.stream_tbps * 1e6 * busy) ** -3 + limit**-3) ** (-1 / 3)
  dram_us = f.dram_bytes / rate * imbalance(f, ctas / sms)
  l2_rate = target.l2_tbps * 1e6 * busy
  l2_us = np.maximum(0.0, L2_SHARE * (l2 - f.dram_bytes)) / l2_rate
  memory_us = np.maximum(dram_us + l2_us, l2 / l2_rate)
  work = np.maximum(memory_us, flops / (target.mma_tflops * MMA_SHARE * 1e6 * busy))
  serial_us = LATENCY_US * (1 + 0.25 * np.ceil(steps / stages))
  ramp = np.minimum(target.ramp_us, 0.25 * work)
  time_us = (
    target.launch_us + np.maximum(work + ramp, serial_us) + fixed + alu / alu_operations_per_us(target)
  )
  return PointTimes(time_us, registers, smem)


def _fragments(f: Features, local: dict[str, Any], zero: Array) -> Array:
  """Accumulator fragments of a warp."""
  row_axes = set(f.b_loads)
  total = zero
  for axes, _, in_loop in f.matmuls:
    if in_loop:
      tiles = zero + 1
      for a in axes:
        tiles = tiles * np.ceil(local[a] / (8 if a in row_axes else 16))
      total = total + tiles
  return total
