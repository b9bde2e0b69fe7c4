"""Registers and shared memory of one block of a tiled kernel, at many parameter points."""

import numpy as np

from mirage_onnx.cost.tiled_sizes import ONE, Array, Points, TileSizes, WarpCounts
from mirage_onnx.cost.tiled_work import BlockValue, CutLevels, ProductWork, TiledWork
from mirage_onnx.ir.block_ops import ACCUMULATORS
from mirage_onnx.ir.ugraph import Layout

#: Registers of a thread for addresses, loop counters and fragments on their way.
BASE_REGISTERS = 40


def _spilled(work: TiledWork, product: ProductWork) -> list[BlockValue]:
  """The computed operands of an fp32 contraction: lanes read all of it from shared memory."""
  if not product.wide:
    return []
  operands = (work.values[a] for a in work.kernel.ops[product.index].args)
  return [v for v in operands if v.op.layout is not Layout.SHARED]


def _combined_bytes(work: TiledWork, sizes: TileSizes) -> Array:
  """Bytes of one copy of all accumulators."""
  total = ONE * 0.0
  for v in work.values:
    if v.op.op in ACCUMULATORS:
      total = total + 4 * sizes.of(v.extent.axes)
  return total


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
      size = sizes.of(v.extent.axes) * v.op.dtype.size_bytes
      if v.op.op == "load" and v.op.fmap is not None:
        ring = ring + size
      else:
        kept = kept + size
  for move in work.moves:
    if move.kind == "shared":
      v = work.values[move.value]
      moved = moved + sizes.of(v.extent.axes) * v.op.dtype.size_bytes
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


def loop_piece(work: TiledWork, sizes: TileSizes) -> Array:
  """Elements of the loop's axis that one block walks."""
  loop = work.kernel.loop
  assert loop is not None
  return _piece(work, sizes, loop, CutLevels.LOOP)


def cluster_piece(work: TiledWork, sizes: TileSizes) -> Array:
  """Elements of the cluster's axis that its ranks share out."""
  cluster = work.kernel.cluster
  assert cluster is not None
  return _piece(work, sizes, cluster, CutLevels.CLUSTER)


def _piece(work: TiledWork, sizes: TileSizes, axis: str, level: int) -> Array:
  """Elements of an axis before that level cuts it."""
  for v in work.values:
    cut = dict(v.extent.axes).get(axis, CutLevels.NONE)
    if level & cut:
      before = CutLevels.GRID if level == CutLevels.CLUSTER else CutLevels.GRID | CutLevels.CLUSTER
      return sizes.axis(axis, cut & before)
  raise AssertionError("no value is cut by a level that the kernel has")
