"""What a kernel takes, from what its threads do: one formula for every thread graph.

    time    = start + (body^4 + begun^4)^1/4
    body    = (memory^p + l2^p + units^p + waiting^p)^1/p
    units   = of the fullest multiprocessor: instructions, shared memory, tensor cores, or parts of sectors
              that are stored, what is longest
    waiting = of a block, as often as blocks come one behind the other: its instructions, products by wgmma
              that it waits for, trips to memory that nothing hides, reductions, barriers, iterations, what it
              reads of the other blocks of its cluster
    begun   = what all blocks take to be started

The counts (``counts.py``) are of the steps that the text is written from; the rates are the target's. The
weights say what generated code makes of them: ``bench/fit_costs.py`` finds them to a record of
``bench/kernel_times.py``, where kernels of all kinds were timed in a row of a CUDA graph, cold.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from mirage_onnx.cost.chip import LOADED_LATENCY_US
from mirage_onnx.cost.counts import BlockCounts, counts_of
from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import INSTRUCTIONS
from mirage_onnx.ir.ugraph import Kernel, KernelParams, UGraph
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.tensor_view import touched_bytes
from mirage_onnx.target import Target

#: Operations of one counted instruction of the tensor cores; lanes that wait while a warp issues one.
MMA_OPERATIONS, LANES = 2 * 16 * 8 * 16, 32
#: Bytes of shared memory that a multiprocessor moves in a cycle; bytes under way at least.
SMEM_BYTES, LEAST_IN_FLIGHT = 128, 512
MOST_REGISTERS = 255
#: Registers of a thread for each of the results and operands of products by wgmma: what ptxas makes of 219
#: kernels of bench/rankings.py, at most what a block leaves them (off by 25, root mean square; 1 too many).
RESULT_REGISTERS = 2


@dataclass(frozen=True, slots=True)
class CostWeights:
  """What generated code makes of its counts.

  ``start``: of a kernel in a graph, over the target's launch. ``lane``, ``special``, ``request``,
  ``shared_request``, ``mma``: instructions of one that is counted; ``dependent``: cycles from one instruction
  of a warp to the next; ``partial``: those of a multiprocessor for a store of a part of a sector;
  ``product``: what a block waits for the tensor cores, over what they take. ``trip_us``, ``fold_us``,
  ``barrier_us``, ``cluster_us``, ``iteration_us``: what else it waits.
  ``block_us``, ``warp_us``: of the chip, to start one. ``memory``, ``l2``, ``shared``: over the rates.
  ``registers``: of a lane beside the elements that it holds. ``overlap``: p of the formula. ``remote``: how
  much longer a block waits for the shared memory of others than for its own.
  """

  start: float = 1.02
  lane: float = 0.453
  special: float = 6.48
  request: float = 20.5
  shared_request: float = 5.64
  mma: float = 19.9
  dependent: float = 1.02
  product: float = 1.38
  partial: float = 4.8
  fold_us: float = 0.0423
  trip_us: float = 0.178
  barrier_us: float = 0.0247
  cluster_us: float = 1.43
  iteration_us: float = 0.0834
  block_us: float = 0.0011
  warp_us: float = 4.99e-06
  memory: float = 1.0
  l2: float = 0.239
  shared: float = 1.11
  registers: float = 40.0
  overlap: float = 1.78
  remote: float = 20.0


def time_us(c: BlockCounts, dram_bytes: Any, mma_share: Any, target: Target, w: CostWeights) -> Any:
  """The formula: of one kernel, or of many whose counts are arrays.

  ``mma_share``: of the tensor cores' peak.
  """
  sms, cycles, threads = target.multiprocessors, target.cycles_per_us, LANES * np.asarray(c.warps)
  by_results = RESULT_REGISTERS * np.asarray(c.results)
  registers = np.where(np.asarray(c.wgmma) > 0, by_results, w.registers + c.held)
  registers = np.minimum(np.minimum(MOST_REGISTERS, target.registers_per_sm // threads), registers)
  by_registers = target.registers_per_sm // (np.ceil(registers / 8) * 8 * threads)
  by_smem = target.smem_per_sm_bytes // (np.asarray(c.smem_bytes) + target.reserved_smem_bytes)
  by_threads = np.minimum(target.sm_threads // threads, target.sm_blocks)
  resident = np.maximum(1, np.minimum(np.minimum(by_registers, by_smem), by_threads))
  share = np.asarray(c.blocks) / sms
  busy, active = np.minimum(1, share), np.minimum(np.maximum(share, 1), resident)
  rounds, waves = np.maximum(1, np.ceil(share)), np.maximum(1, np.ceil(share / resident))

  instructions = w.lane * c.lanes + w.special * c.special + LANES * w.mma * c.mma
  instructions = instructions + w.request * c.requests + w.shared_request * c.shared_requests
  issue_us = rounds * instructions / (target.lanes * cycles)
  shared_us = w.shared * rounds * c.shared_bytes / (SMEM_BYTES * cycles)
  remote_us = w.remote * c.remote_bytes / (SMEM_BYTES * cycles)
  product_us = MMA_OPERATIONS * sms / (target.mma_tflops * mma_share * 1e6)
  mma_us = rounds * (np.asarray(c.mma) + c.wgmma) * product_us
  units_us = np.maximum(np.maximum(issue_us, shared_us), mma_us)
  units_us = np.maximum(units_us, w.partial * rounds * c.partial / cycles)

  steps = np.maximum(1, c.iterations)
  waits_us = w.trip_us * c.trips + w.barrier_us * c.barriers + w.cluster_us * c.cluster_barriers
  waits_us = waits_us + w.fold_us * c.folds + remote_us
  waits_us = waits_us + w.iteration_us * (steps - 1) / np.minimum(np.maximum(1, c.stages), steps)
  waits_us = waits_us + w.dependent * instructions / (threads * cycles) + w.product * c.waited * product_us
  waiting_us = waves * waits_us

  in_flight = np.maximum(active * c.loaded_bytes / np.maximum(1, c.trips), LEAST_IN_FLIGHT)
  peak = target.stream_tbps * 1e6 * busy
  slow = peak * LOADED_LATENCY_US / (in_flight * sms * busy)
  memory_us = w.memory * dram_bytes / peak * np.cbrt(1 + slow**3)
  l2_us = w.l2 * (c.loaded_bytes + c.stored_bytes) * c.blocks / (target.l2_tbps * 1e6 * busy)

  p = w.overlap
  body_us = (memory_us**p + l2_us**p + units_us**p + waiting_us**p) ** (1 / p)
  begun_us = c.blocks * (w.block_us + w.warp_us * np.asarray(c.warps))
  return w.start * target.launch_us + (body_us**4 + begun_us**4) ** 0.25


def share_of(params: KernelParams) -> float:
  """What a kernel with these numbers reaches of the tensor cores' peak at most."""
  return INSTRUCTIONS[params.instruction].share


def lowered_us(
  graph: UGraph, kernel: Kernel, extents: Mapping[str, int], params: KernelParams, target: Target
) -> float:
  """The time of a kernel of a graph in a replayed CUDA graph, in us; infinite if its numbers do not fit."""
  try:
    counts = counts_of(lowered(graph, kernel, params, extents, target))
  except RejectionError:
    return inf
  return float(
    time_us(counts, touched_bytes(graph, kernel, extents), share_of(params), target, CostWeights())
  )
