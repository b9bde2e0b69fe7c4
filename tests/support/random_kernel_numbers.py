"""Random layouts and numbers of a kernel, small enough for the emulator."""

from dataclasses import replace
from math import ceil, prod

import numpy as np

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams, Layout
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.lower.tiled_layouts import lay_out_tiled
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.target import H200
from mirage_onnx.verify.tiles import Tiling

TILES = (
  1,
  1,
  2,
  3,
  4,
  5,
  7,
  8,
  8,
  12,
  16,
  16,
  16,
  17,
  20,
  24,
  32,
  32,
  32,
  33,
  40,
  48,
  64,
  64,
  100,
  128,
  256,
)
LOOP_TILES = (7, 8, 16, 16, 16, 20, 32, 32, 32, 33, 48, 64, 64, 96, 128, 256)
#: Of one block: elements of a computed value per warp, bytes of loaded tiles.
MOST_PER_WARP, MOST_BYTES = 1536, 112 << 10
#: Of a launch: blocks, threads times iterations, elements computed, products added up.
MOST_BLOCKS, MOST_STEPS, MOST_WORK, MOST_PRODUCTS = 96, 1 << 15, 1 << 19, 1 << 21


def numbers(rng, kernel, tensors, extents):
  family, ops, _ = lay_out(kernel, tensors)
  if family is not Family.TILED and rng.random() < 0.4:
    family, ops = Family.TILED, lay_out_tiled(kernel, tensors)[0]
  placed = replace(kernel, ops=ops)
  if family is Family.ROW:
    params = KernelParams((1,) * len(kernel.grid), warps=rng.choice((1, 2, 4, 8)))
    if fits(placed, params, extents):
      return placed, params
    placed = replace(kernel, ops=lay_out_tiled(kernel, tensors)[0])
  if family is Family.TILED and rng.random() < 0.2:
    try:
      best = [p for _, p in solve_tiled(placed, tensors, extents, H200)]
    except RejectionError:
      best = []
    best = [p for p in best if fits(placed, p, extents)]
    if best:
      return placed, rng.choice(best)
  for _ in range(60):
    params = _drawn(rng, kernel, extents)
    if fits(placed, params, extents):
      return placed, params
  return None


def _drawn(rng, kernel, extents):
  def size(axis, sizes):
    n = extents[axis]
    return n if rng.random() < 0.2 else rng.choice([s for s in sizes if s < 2 * n] or [n])

  return KernelParams(
    tile=tuple(size(a, TILES) for a in kernel.grid),
    cluster=rng.choice((1, 2, 2, 4)) if kernel.cluster else 1,
    loop_tile=size(kernel.loop, LOOP_TILES) if kernel.loop else 0,
    warps=rng.choice((1, 1, 2, 2, 4, 4, 8)),
    stages=rng.choice((1, 2, 3)) if kernel.loop else 1,
  )


def fits(kernel, params, extents):
  """Whether a block can hold its tiles and a launch is quickly emulated."""
  tiling = Tiling(kernel, params, extents, np)

  def held(axis, cut):
    n = extents[axis]
    if cut.grid is not None:
      n = min(n, params.tile[cut.grid])
    if cut.cluster:
      n = ceil(n / params.cluster)
    return min(n, params.loop_tile) if cut.loop else n

  elements = [prod(held(a, c) for a, c in cuts.items()) for cuts in tiling.cuts]
  loaded = shared = work = products = 0
  for i, op in enumerate(kernel.ops):
    if op.op == "load":
      loaded += elements[i] * op.dtype.size_bytes * (params.stages if op.fmap else 1)
    elif elements[i] > MOST_PER_WARP * params.warps:
      return False
    elif op.layout in (Layout.SHARED, Layout.ELEMENT):
      shared += 4 * elements[i]
    if op.op == "matmul":
      cut = tiling.cuts[op.args[0]][op.reduced[0]]
      products += elements[i] * held(op.reduced[0], cut)
    work += elements[i]
  blocks = prod(tiling.blocks) * tiling.ranks
  times = blocks * tiling.iterations
  return (
    blocks <= MOST_BLOCKS
    and times * 32 * params.warps <= MOST_STEPS
    and loaded + shared <= MOST_BYTES
    and times * work <= MOST_WORK
    and times * products <= MOST_PRODUCTS
  )
