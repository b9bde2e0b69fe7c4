"""The cost of a tiled kernel, for many parameter points in one pass of array operations.

    time_us = launch + about max(memory, compute) + ramp + cluster + waves + parts
    memory  = max(stream and L2 reads, all L2 reads)
    compute = max(tensor cores, lanes and special functions, shared memory, one block after another)

The structure and the constants of ``model.py`` where they exist; those were measured on an H200 for
streaming kernels. The rest (rates of a multiprocessor, and what ``tiled_block.py`` estimates) are
published rates of the chip or estimates: it counts what a kernel has to do, to rank programs. What
generated kernels take is another question (``kernel_time.py``).
"""

from collections.abc import Mapping
from math import ceil

import numpy as np

from mirage_onnx.cost.chip import NUMBERS, Fill, fill_of, memory_time_us
from mirage_onnx.cost.model import CLUSTER_US, LATENCY_US, PARTS_ASSUMED, WAVE_US, Cost
from mirage_onnx.cost.tiled_block import (
  BASE_REGISTERS,
  BlockWork,
  block_loads,
  block_registers,
  block_shared_memory,
  block_work,
  loop_piece,
)
from mirage_onnx.cost.tiled_sizes import ONE, Array, Points, TileSizes, WarpCounts, up
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.ir.ugraph import Layout
from mirage_onnx.target import Target

#: Per cycle and multiprocessor: special functions, bytes of shared memory, bytes from the shared memory
#: of the other blocks of a cluster.
SPECIALS, SMEM_BYTES, DSMEM_BYTES = 16.0, 128.0, 32.0
#: Quarters of a multiprocessor: a warp computes in one of them.
QUARTERS = 4
#: Share of a block's waiting that other blocks do not hide.
SHOWN = 0.1
MAX_REGISTERS = 255
#: Bytes: what is on its way at least.
LEAST_IN_FLIGHT = 128.0


def tiled_costs(
  work: TiledWork, extents: Mapping[str, int], points: Points, target: Target
) -> tuple[Cost, Mapping[str, Array]]:
  """The costs of a kernel at all points, and why a point cannot be: reason -> where."""
  kernel, sizes = work.kernel, TileSizes(work, extents, points)
  warps, registers, smem, refused = resources(work, sizes, points, target)
  ctas, iterations = ONE * points.cluster, ONE
  for axis, tile in zip(kernel.grid, points.tile, strict=True):
    n = extents.get(axis, PARTS_ASSUMED)
    ctas = ctas * np.ceil(n / np.minimum(tile, n))
  if kernel.loop is not None:
    piece = loop_piece(work, sizes)
    iterations = np.ceil(piece / np.minimum(points.loop_tile, piece))
  fill = fill_of(ctas, points.cluster.astype(int), points.warps, registers, smem, target)

  loaded, step, once = block_loads(work, sizes, iterations)
  dram = sum((sizes.tensor(t) for t in sorted(kernel.touched)), ONE * 0.0)
  in_flight = fill.active * (step * np.minimum(points.stages, iterations) + once / iterations)
  memory_us = memory_time_us(dram, loaded * ctas, np.maximum(in_flight, LEAST_IN_FLIGHT), fill, target)

  block = block_work(work, sizes, warps, iterations)
  compute_us = _compute_us(block, fill, points, target, work.instruction(target).share)
  # Memory and arithmetic of nearly the same time do not quite hide one another: the fourth root
  # of fourth powers adds 2 % where one is half of the other, 19 % where they are equal.
  body = np.sqrt(np.sqrt(np.square(np.square(memory_us)) + np.square(np.square(compute_us))))
  # One stage: a block waits for its tile, then computes; only other blocks fill the gap.
  waiting = np.minimum(memory_us, compute_us) / np.maximum(1.0, fill.active)
  body = body + np.where((points.stages == 1) & (iterations > 1), waiting, 0.0)
  fixed = _cluster_us(work, sizes, points, target) + _parts_us(work, sizes, target)
  if kernel.loop is not None:
    fixed = fixed + WAVE_US * (fill.waves - 1)
  ramp = np.minimum(target.ramp_us, 0.25 * body)
  return Cost(target.launch_us + body + ramp + fixed, dram, registers, smem), refused


def resources(
  work: TiledWork, sizes: TileSizes, points: Points, target: Target
) -> tuple[WarpCounts, Array, Array, dict[str, Array]]:
  """The split of the warps, registers, shared memory, and why points cannot be: reason -> where.

  With more stages nothing fits that does not with fewer.
  """
  warps, idle = WarpCounts.of(work, sizes, points)
  registers = block_registers(work, sizes, warps, points)
  smem = block_shared_memory(work, sizes, warps, points)
  too_many = up(registers, 8) * 32 * points.warps > target.registers_per_sm
  return (
    warps,
    registers,
    smem,
    {
      "registers": (registers > MAX_REGISTERS) | too_many,
      "shared memory": smem > target.smem_bytes,
      "idle warps": idle,
    },
  )


def fits_nowhere(work: TiledWork, extents: Mapping[str, int], least: Points, target: Target) -> str | None:
  """Why no numbers fit, as ``resources`` says it, by what the smallest tiles take; None if some may.

  ``least``: the smallest tiles, and the most ranks and warps, as numbers. Tiles only grow with their
  numbers, and what the warps share out is shared by the most warps at best. So this is a bound from below: of
  the kernels of a search a third fits nowhere, and arrays of their points would take ten times as long to
  say so.
  """
  sizes = TileSizes(work, extents, least, NUMBERS)
  held = [v for v in work.values if v.op.layout is Layout.SHARED]
  held += [work.values[m.value] for m in work.moves if m.kind == "shared"]
  if sum(sizes.bytes(v) for v in held) > target.smem_bytes:
    return "shared memory"
  for together in work.live:
    values = ((work.values[i], count) for i, count in together)
    words = sum(n * sizes.padded(v) * (0.5 if v.op.dtype.size_bytes == 2 else 1.0) for v, n in values)
    if BASE_REGISTERS + ceil(words / (32 * least.warps)) > MAX_REGISTERS:
      return "registers"
  return None


def _parts_us(work: TiledWork, sizes: TileSizes, target: Target) -> Array:
  """What a later kernel takes to read more parts than it is taken to read."""
  total = ONE * 0.0
  for save in work.kernel.saves:
    for axis in work.parted(save.tensor).values():
      more = np.maximum(0.0, 1 - PARTS_ASSUMED / sizes.parts(axis))
      total = total + sizes.tensor(save.tensor) * more
  return total / (target.stream_tbps * 1e6)


def _compute_us(block: BlockWork, fill: Fill, points: Points, target: Target, mma_share: float) -> Array:
  """Time of the busiest multiprocessor: of its fullest unit, or of its blocks in a row."""
  mma_rate = target.mma_tflops * mma_share * 1e6 / target.multiprocessors
  mma_us = block.mma / mma_rate
  cycles = target.cycles_per_us
  lanes_us = block.lanes / (target.lanes * cycles) + block.special / (SPECIALS * cycles)
  smem_us = block.smem_bytes / (SMEM_BYTES * cycles)
  at_once = points.warps * np.maximum(1.0, fill.active)
  share = np.minimum(1.0, at_once / QUARTERS)
  unit_us = np.maximum(np.maximum(mma_us, lanes_us) / share, smem_us) * fill.rounds
  # Inside one block the units wait for one another.
  slow = np.maximum(1.0, QUARTERS / points.warps)
  alone_us = block.latency_us + (mma_us + lanes_us) * slow
  shown_us = SHOWN * block.latency_us * fill.waves
  compute_us: Array = np.maximum(unit_us + shown_us, LATENCY_US + alone_us * fill.waves)
  return compute_us


def _cluster_us(work: TiledWork, sizes: TileSizes, points: Points, target: Target) -> Array:
  """The exchange of a cluster: every rank reads what the others have."""
  total = ONE * 0.0
  count = 0
  for move in work.moves:
    if move.kind == "dsmem":
      size = 4 * sizes.of(work.values[move.value].extent.axes)
      others = points.cluster - 1
      total = total + size * others / (DSMEM_BYTES * target.cycles_per_us)
      count += 1
  exchange = CLUSTER_US * (1 + 0.25 * max(0, count - 1))
  return total + np.where(points.cluster > 1, exchange, 0.0)
