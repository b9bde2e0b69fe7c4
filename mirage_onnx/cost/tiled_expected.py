"""What a generated tiled kernel is expected to take, fitted to kernels that were timed.

The cost model (``tiled.py``) counts what a kernel has to do. Generated code does more: it
moves every element that it loads, unpacks operands in shared memory element by element, and its
steps wait. With the weights below, least squares over the logarithms of 1021 times on an H200
(tiled_sweep.json.xz of commit 9111d8a; the fastest numbers of a kernel count most), a time is off
by a factor of 1.53 (root mean square; 1.57 for kernels left out of the fit, and up to 3), where the
cost model is off by 3.3. The fit to isolated kernels has 2.4 us more: a graph hides them.
"""

from collections.abc import Mapping

import numpy as np

from mirage_onnx.cost.model import LATENCY_US, WAVE_US
from mirage_onnx.cost.tiled import (
  QUARTERS,
  SMEM_BYTES,
  SPECIALS,
  Traffic,
  cluster_time_us,
  fitting,
)
from mirage_onnx.cost.tiled_block import block_work, times_read
from mirage_onnx.cost.tiled_sizes import ONE, Points
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, KTensor
from mirage_onnx.target import Target

#: Times the model's memory time and lane operations.
MEMORY, LANE_OPERATIONS = 1.46, 3.26
#: Lane operations per loaded element; and of a block alone, per element of an operand that lies
#: contiguous along the contracted axis in memory, and per loaded element.
LOADED, OPERAND_ALONE, LOADED_ALONE = 5.7, 12.7, 5.7
#: Microseconds of a step of the loop, and how often all waiting of a block shows per wave.
STEP_US, SHOWN = 0.1, 2.9
#: Share of the shorter of memory and arithmetic that one step does not hide.
SERIAL = 0.86
#: Warps that keep a multiprocessor busy.
BUSY_WARPS = 2


def expected_tiled_us(
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  extents: Mapping[str, int],
  params: KernelParams,
  target: Target,
) -> float:
  """The time of a tiled kernel in a replayed graph, in us; infinite if its numbers do not fit."""
  work, points = TiledWork.of(kernel, tensors), Points.one(params)
  t = Traffic.of(work, extents, points, target)
  sizes, fill, warps, iterations = t.sizes, t.fill, t.warps, t.iterations
  memory_us = MEMORY * t.memory_us

  block = block_work(work, sizes, warps, iterations)
  cycles = target.cycles_per_us
  per_us = target.lanes * cycles
  lanes_us, special_us = block.lanes / per_us, block.special / (SPECIALS * cycles)
  operands, elements = ONE * 0.0, ONE * 0.0
  for v in work.values:
    size = sizes.of(v.extent.axes) * (iterations if v.repeats else ONE)
    if v.op.op == "load":
      elements = elements + size
    for user in kernel.ops:
      if user.op == "matmul" and v.index in user.args and _streams(kernel, tensors, v.op, user):
        operands = operands + size * times_read(user, v, warps)
  mma_us = block.mma * target.multiprocessors / (target.mma_tflops * work.instruction(target).share * 1e6)
  units_us = mma_us + LANE_OPERATIONS * lanes_us + special_us + LOADED * elements / per_us
  share = np.minimum(1.0, points.warps * np.maximum(1.0, fill.active) / BUSY_WARPS)
  smem_us = block.smem_bytes / (SMEM_BYTES * cycles)
  unit_us = np.maximum(units_us / share, smem_us) * fill.rounds
  moved_us = (OPERAND_ALONE * operands + LOADED_ALONE * elements) / per_us
  waits_us = block.latency_us + STEP_US * iterations
  own_us = (moved_us + lanes_us + special_us) * QUARTERS / points.warps
  alone_us = LATENCY_US + (waits_us + own_us) * fill.waves
  compute_us = np.maximum(unit_us + SHOWN * waits_us * fill.waves, alone_us)

  body = (memory_us**4 + compute_us**4) ** 0.25
  one_stage = np.where(points.stages == 1, 1 / np.maximum(1.0, fill.active), 0.0)
  serial = np.where(iterations == 1, SERIAL, one_stage)
  body = body + serial * np.minimum(memory_us, compute_us)
  waves_us = WAVE_US * (fill.waves - 1) if kernel.loop is not None else 0.0
  fixed = target.launch_us + cluster_time_us(work, sizes, points, target) + waves_us
  time_us = fixed + body + np.minimum(target.ramp_us, 0.25 * body)
  return float(np.min(fitting(time_us, t.refused)))  # of the better split of the warps


def _streams(kernel: Kernel, tensors: Mapping[str, KTensor], op: BlockOp, product: BlockOp) -> bool:
  """Whether an operand is made of a tensor that is contiguous along the contracted axis."""
  while op.op not in ("load", "matmul") and op.args:
    op = kernel.ops[op.args[0]]
  return op.op == "load" and tensors[op.tensor].inner in product.reduced
