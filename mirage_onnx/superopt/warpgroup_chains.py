"""Numbers with wgmma for kernels of several products: what one leaves in registers, the next takes.

Rows of a block are those of all its products: 64 to a warpgroup. Nothing else is shared out, so a row
is held by one warp, and what is reduced over columns stays in it. The time counts tensor cores, special
functions and lane operations of a multiprocessor, one after the other; it is an estimate (no such kernel
has been timed), and there to say which are worth a try.
"""

from collections.abc import Iterator, Mapping
from itertools import product
from math import ceil, prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.block_ops import LEAVES
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, KTensor, Phase
from mirage_onnx.superopt.cost import BARRIER_US
from mirage_onnx.superopt.warpgroup_numbers import BEGIN_US, END_US, LEAST_ROWS
from mirage_onnx.target import Target

_ROWS, _LOOP_TILES, _STAGES = (64, 128), (64, 128), (2, 3)
#: Of a multiprocessor, in a microsecond.
_LANES_PER_US, _SPECIALS_PER_US = 128 * 1700.0, 16 * 1700.0
#: What a dependent product waits for, beside what it takes.
_WAIT_US = 0.25


def rows_of(kernel: Kernel, extents: Mapping[str, int]) -> str | None:
  """The axis of the grid that is in one operand and the result of every product; None if there is none."""
  found: set[str] = set(kernel.grid)
  for op in kernel.ops:
    if op.op == "matmul":
      first, second = (set(kernel.ops[a].axes) for a in op.args)
      found &= (first ^ second) & set(op.axes)
  long = [a for a in kernel.grid if a in found and extents[a] >= LEAST_ROWS]
  return long[0] if len(long) == 1 else None


def chained_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first; () for a single product."""
  products = [op for op in kernel.ops if op.op == "matmul"]
  rows = rows_of(kernel, extents)
  half = all(kernel.ops[a].dtype in WGMMA.operands for op in products for a in op.args)
  if WGMMA.name not in target.instructions or len(products) < 2 or rows is None or not half:
    return ()
  if kernel.loop is None or rows == kernel.loop:
    return ()
  found = [(_time_us(kernel, extents, rows, p, target), p) for p in _points(kernel, extents, rows)]
  return tuple(sorted(found, key=lambda f: (f[0], f[1].to_text()))[:keep])


def _points(kernel: Kernel, extents: Mapping[str, int], rows: str) -> Iterator[KernelParams]:
  for own, loop_tile, stages in product(_ROWS, _LOOP_TILES, _STAGES):
    if own <= extents[rows] and loop_tile < 2 * extents[kernel.loop or ""]:
      tile = tuple(own if a == rows else 1 for a in kernel.grid)
      yield KernelParams(tile, 1, loop_tile, own // 16, stages, WGMMA.name)


def _time_us(
  kernel: Kernel, extents: Mapping[str, int], rows: str, params: KernelParams, target: Target
) -> float:
  tile = {**extents, **dict(zip(kernel.grid, params.tile, strict=True))}
  tile[kernel.loop or ""] = params.loop_tile
  steps = ceil(extents[kernel.loop or ""] / params.loop_tile)
  blocks = prod(ceil(extents[a] / t) for a, t in zip(kernel.grid, params.tile, strict=True))

  def elements(op: BlockOp) -> int:
    return prod(tile[a] for a in {*op.axes, *op.reduced})

  inside = [op for op in kernel.ops if op.phase is Phase.LOOP and op.op not in LEAVES]
  mma = sum(2 * elements(op) for op in inside if op.op == "matmul")
  others = [op for op in inside if op.op != "matmul"]
  special = sum(
    elements(op) for op in others if op.op in ELEMENTWISE and ELEMENTWISE[op.op].price is not Price.LANE
  )
  lanes = sum(elements(op) for op in others)
  rate = target.mma_tflops * WGMMA.share * 1e6 / target.multiprocessors
  busy_us = mma / rate + special / _SPECIALS_PER_US + 2 * lanes / _LANES_PER_US
  waits_us = BARRIER_US + _WAIT_US * sum(op.op == "matmul" for op in inside)
  resident = min(2 if tile[rows] > LEAST_ROWS else 4, max(1, ceil(blocks / target.multiprocessors)))
  rounds = ceil(blocks / target.multiprocessors)
  step_us = max(busy_us, (busy_us + waits_us) / resident)
  return target.launch_us + rounds * steps * step_us + ceil(rounds / resident) * (BEGIN_US + END_US / 4)
