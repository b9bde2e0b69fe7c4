"""What one block of a tiled kernel does and holds, at many parameter points.

Price counts lane operations, special functions, operations of the tensor cores, and bytes of shared
memory, over all warps and iterations; latency is what a block waits for, one after the other. The
latencies and the operations of a conversion are estimates: nothing here has been measured.
"""

from dataclasses import dataclass

import numpy as np

from mirage_onnx.cost.model import BARRIER_US
from mirage_onnx.cost.tiled_sizes import ONE, Array, Points, TileSizes, WarpCounts, up
from mirage_onnx.cost.tiled_work import BlockValue, ProductWork, TiledWork
from mirage_onnx.ir.block_ops import ACCUMULATORS, LEAVES, REDUCTIONS, Kind, of_kinds
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import BlockOp, Layout, Phase
from mirage_onnx.lower.pieces import RANK, STEP

#: Operations that go through the special function unit.
SPECIAL = frozenset({op for op, f in ELEMENTWISE.items() if f.price is not Price.LANE} | {"powr"})
_NO_WORK = LEAVES | of_kinds(Kind.CONTRACTION, Kind.PREVIOUS, Kind.CLUSTER)
#: One iteration: waiting for its tile; a dependent contraction; a reduction inside the warp.
STEP_US, MMA_US, REDUCE_US, MOVE_US = 0.05, 0.02, 0.02, 0.01
#: Lane operations of a movmatrix or shuffle, and of a reduction, per element of the value.
MOVE_OPERATIONS, REDUCE_OPERATIONS = 4, 2
#: Of fp32 contractions: operations per element of the result and depth (two loads, a multiply-add),
#: and what a lane waits per element of the depth.
MULTIPLY_OPERATIONS, MULTIPLY_US = 3, 0.004
#: Registers of a thread for addresses, loop counters and fragments on their way.
BASE_REGISTERS = 40


@dataclass(frozen=True, slots=True)
class BlockWork:
  """Of one block: ``mma`` counts padded floating-point operations."""

  mma: Array
  lanes: Array
  special: Array
  smem_bytes: Array
  latency_us: Array


def block_work(work: TiledWork, sizes: TileSizes, warps: WarpCounts, iterations: Array) -> BlockWork:
  """The work of one block."""
  zero = ONE * 0.0
  mma, latency, lanes, special, smem = zero, zero, zero, zero, zero
  if work.kernel.loop is not None:
    latency = latency + STEP_US * iterations
  for p in work.products:
    times = iterations if p.repeats else ONE
    rows, columns, depth = sizes.of(p.rows), sizes.of(p.columns), sizes.of(p.depth)
    batch = sizes.of(p.batch) * times
    if p.wide:
      result = work.values[p.index]
      each = sizes.padded(result) * depth * warps.having(result.share) * times
      lanes = lanes + MULTIPLY_OPERATIONS * each
      smem = smem + 8 * each
      latency = latency + MULTIPLY_US * depth * times
      for v in _spilled(work, p):
        smem = smem + 4 * sizes.of(v.extent.axes) * times
        latency = latency + 2 * BARRIER_US * times
    mma = mma + 2 * up(rows, 16) * up(columns, 8) * up(depth, 16) * batch
    latency = latency + MMA_US * times
    for arg in p.chained:
      # WarpCounts with other columns of the one contraction have other depth of the next.
      across = warps.columns > 1
      bytes_moved = 4 * sizes.of(work.values[arg].extent.axes) * times
      smem = smem + np.where(across, bytes_moved, 0.0)
      latency = latency + np.where(across, 2 * BARRIER_US, 0.0) * times
  for v, repeats, is_special, count in _operations(work):
    n = count * sizes.padded(v) * warps.having(v.share) * (iterations if repeats else ONE)
    if is_special:
      special = special + n
    else:
      lanes = lanes + n
  smem = smem + _operand_bytes(work, sizes, warps, iterations)
  moved_smem, moved_lanes, moved_us = _moves(work, sizes, warps, iterations)
  waits = _reduction_waits(work, warps, iterations)
  combined = _combined_bytes(work, sizes)
  across = warps.depth > 1
  smem = smem + np.where(across, 2 * combined * warps.depth, 0.0)
  latency = latency + np.where(across, 2 * BARRIER_US, 0.0) + waits + moved_us
  return BlockWork(mma, lanes + moved_lanes, special, smem + moved_smem, latency)


def _spilled(work: TiledWork, product: ProductWork) -> list[BlockValue]:
  """The computed operands of an fp32 contraction: lanes read all of it from shared memory."""
  if not product.wide:
    return []
  operands = (work.values[a] for a in work.kernel.ops[product.index].args)
  return [v for v in operands if v.op.layout is not Layout.SHARED]


def _operations(work: TiledWork) -> list[tuple[BlockValue, bool, bool, int]]:
  """Lane operations: (a value of that size, in every iteration, special functions, how often)."""
  found: dict[tuple[object, ...], tuple[BlockValue, bool, bool, int]] = {}
  for v in work.values:
    op = v.op
    if op.op in _NO_WORK:
      continue
    of, count = v, 1
    if op.op in REDUCTIONS:
      of, count = work.values[op.args[0]], REDUCE_OPERATIONS
    special = op.op in SPECIAL
    key = (of.extent, of.op.layout, of.share, v.repeats, special)
    first, _, _, before = found.get(key, (of, False, False, 0))
    found[key] = (first, v.repeats, special, before + count)
  return list(found.values())


def _operand_bytes(work: TiledWork, sizes: TileSizes, warps: WarpCounts, iterations: Array) -> Array:
  """Bytes that loads write to shared memory and that warps read from there."""
  total = ONE * 0.0
  for v in work.values:
    if v.op.layout is not Layout.SHARED or v.op.op != "load":
      continue
    users = (user for user in work.kernel.ops if v.index in user.args)
    readers = sum((times_read(user, v, warps) for user in users), ONE)
    total = total + sizes.bytes(v) * readers * (iterations if v.repeats else 1.0)
  return total


def times_read(user: BlockOp, v: BlockValue, warps: WarpCounts) -> Array:
  """How often the warps together read a shared value for one use."""
  as_a = user.args[0] == v.index if user.op == "matmul" else user.layout is Layout.A_FRAG
  as_b = user.op == "matmul" or user.layout is Layout.B_FRAG
  return warps.columns if as_a else (warps.rows if as_b else ONE)


def _moves(
  work: TiledWork, sizes: TileSizes, warps: WarpCounts, iterations: Array
) -> tuple[Array, Array, Array]:
  """Of the conversions inside a block: bytes of shared memory, lane operations, latency."""
  smem, lanes, latency = ONE * 0.0, ONE * 0.0, ONE * 0.0
  for move in work.moves:
    v = work.values[move.value]
    times = iterations if v.repeats else ONE
    if move.kind == "shared":
      smem = smem + 2 * sizes.bytes(v) * times
      latency = latency + 2 * BARRIER_US * times
    elif move.kind == "movmatrix":
      lanes = lanes + MOVE_OPERATIONS * sizes.padded(v) * warps.having(v.share) * times
      latency = latency + MOVE_US * times
  return smem, lanes, latency


def _reduction_waits(work: TiledWork, warps: WarpCounts, iterations: Array) -> Array:
  """Reductions inside a warp, and where warps have parts of one: a barrier.

  A partial sum that only accumulates is added up behind the loop, with the accumulators.
  """
  total = ONE * 0.0
  ops = work.kernel.ops
  for v in work.values:
    if v.op.op not in REDUCTIONS:
      continue
    users = [op for op in ops if v.index in op.args]
    only_accumulates = all(op.op in ACCUMULATORS for op in users)
    of = work.values[v.op.args[0]]
    gone = of.share & ~v.share
    cut = of.op.layout is Layout.VECTOR and v.op.layout is not Layout.VECTOR
    parts = warps.rows if cut else warps.dividing(gone)
    each = REDUCE_US + np.where(parts > 1, 0.0 if only_accumulates else 2 * BARRIER_US, 0.0)
    total = total + each * (iterations if v.repeats else 1.0)
  return total


def _combined_bytes(work: TiledWork, sizes: TileSizes) -> Array:
  """Bytes of one copy of all accumulators."""
  kept = (v for v in work.values if v.op.op in ACCUMULATORS)
  return sum((4 * sizes.of(v.extent.axes) for v in kept), ONE * 0.0)


def block_registers(work: TiledWork, sizes: TileSizes, warps: WarpCounts, points: Points) -> Array:
  """Registers per thread: the largest set of values that are held at once."""
  most = ONE * 0.0
  for together in work.live:
    # Those that the same warps divide are added up first: all are multiples of powers of two.
    pieces: dict[tuple[int, bool], Array] = {}
    for index, count in together:
      v = work.values[index]
      words = 0.5 if v.op.dtype.size_bytes == 2 else 1.0
      key = v.share, v.op.op == "load" and v.op.fmap is not None
      pieces[key] = pieces.get(key, 0.0) + count * words * sizes.padded(v)
    total = ONE * 0.0
    for (share, ahead), slots in pieces.items():
      total = total + (points.stages if ahead else 1.0) * (slots / (32 * warps.dividing(share)))
    most = np.maximum(most, total)
  registers: Array = BASE_REGISTERS + np.ceil(most)
  return registers


def block_shared_memory(work: TiledWork, sizes: TileSizes, warps: WarpCounts, points: Points) -> Array:
  """Bytes of shared memory."""
  ring, kept, moved = ONE * 0.0, ONE * 0.0, ONE * 0.0
  for v in work.values:
    if v.op.layout is Layout.SHARED:
      if v.op.op == "load" and v.op.fmap is not None:
        ring = ring + sizes.bytes(v)
      else:
        kept = kept + sizes.bytes(v)
  for move in work.moves:
    if move.kind == "shared":
      moved = moved + sizes.bytes(work.values[move.value])
  for p in work.products:
    moved = moved + sum((4 * sizes.of(v.extent.axes) for v in _spilled(work, p)), ONE * 0.0)
  chained = [2 * sizes.of(work.values[arg].extent.axes) for p in work.products for arg in p.chained]
  if chained:
    moved = moved + sum(chained) * (warps.columns > 1)
  combined = _combined_bytes(work, sizes)
  behind = np.where(warps.depth > 1, combined * warps.depth, 0.0)
  behind = np.maximum(behind, np.where(points.cluster > 1, combined, 0.0))
  # What is behind the loop takes the place of the tiles.
  smem: Array = np.maximum(ring * points.stages, behind) + kept + moved + 128
  return smem


def block_loads(work: TiledWork, sizes: TileSizes, iterations: Array) -> tuple[Array, Array, Array]:
  """Bytes that one block loads in all, those of one iteration, and those loaded once."""
  total, step, once = ONE * 0.0, ONE * 0.0, ONE * 0.0
  for v in work.values:
    if v.op.op == "load":
      size = sizes.bytes(v)
      if v.op.fmap is not None and v.op.phase is Phase.LOOP:
        step, total = step + size, total + size * iterations
      else:
        once, total = once + size, total + size
  return total, step, once


def loop_piece(work: TiledWork, sizes: TileSizes) -> Array:
  """Elements of the loop's axis that one block walks."""
  return _piece(work, sizes, work.kernel.loop, STEP)


def cluster_piece(work: TiledWork, sizes: TileSizes) -> Array:
  """Elements of the cluster's axis that its ranks share out."""
  return _piece(work, sizes, work.kernel.cluster, RANK)


def _piece(work: TiledWork, sizes: TileSizes, axis: str | None, level: str) -> Array:
  """Elements of an axis before that level cuts it, which it does in some value."""
  cuts = (cut for v in work.values for a, cut in v.extent.axes if a == axis and level in cut)
  piece: Array = sizes.axis(axis or "", next(cuts).partition(level)[0])
  return piece
