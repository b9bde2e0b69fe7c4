"""Numbers with wgmma for kernels of several products: what one leaves in registers, the next takes.

Rows of a block are those of all its products: 64 to a warpgroup. Nothing else is shared out, so a row
is held by one warp, and what is reduced over columns stays in it. A step takes what a multiprocessor's
tensor cores, special functions and lanes take, as far as its warpgroups hide them behind each other.
The constants are fitted to 74 times of ten cases on an H100 (bench/results/h100/many_queries.json):
off by a factor of 1.26 (root mean square); the first point took 1.04 times as long as the fastest
(geometric mean).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import ceil, prod

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.block_ops import LEAVES
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, KTensor, Phase
from mirage_onnx.lower.lowering import FEW_NAMED
from mirage_onnx.lower.unseen import unseen
from mirage_onnx.superopt.warpgroup_numbers import BEGIN_US, END_US, LEAST_ROWS, fastest
from mirage_onnx.target import Target

_ROWS, _LOOP_TILES, _STAGES = (64, 128, 192), (64, 128), (2, 3)
#: Fitted: of a multiprocessor, in a microsecond; what a step waits for besides; of the shorter of tensor
#: cores and the rest, the part that is not hidden; registers of a thread beside what values take.
_LANES_PER_US, _SPECIALS_PER_US = 70 * 1700.0, 10 * 1700.0
_WAIT_US, _SHARE, _MORE_REGISTERS = 0.4, 0.5, 20


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
  if not WGMMA.is_on(target) or len(products) < 2 or rows is None or not half:
    return ()
  if kernel.loop is None or rows == kernel.loop:
    return ()
  if any(prod(extents[a] for a in op.axes if a != rows) < WGMMA.columns[0] for op in products):
    return ()  # a vector of activations beside weights: memory says what that takes
  points = _points(kernel, extents, rows)
  return fastest(lambda p: _time_us(kernel, tensors, extents, rows, p, target), points, keep)


def _points(kernel: Kernel, extents: Mapping[str, int], rows: str) -> Iterator[KernelParams]:
  for own, loop_tile, stages in product(_ROWS, _LOOP_TILES, _STAGES):
    if own <= extents[rows] and loop_tile < 2 * extents[kernel.loop or ""]:
      tile = tuple(own if a == rows else 1 for a in kernel.grid)
      yield KernelParams(tile, 1, loop_tile, own // 16, stages, WGMMA.name)


def _time_us(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], rows: str, params: KernelParams,
  target: Target,
) -> float:  # fmt: skip
  tile = {**extents, **dict(zip(kernel.grid, params.tile, strict=True))}
  tile[kernel.loop or ""] = params.loop_tile
  steps: float = ceil(extents[kernel.loop or ""] / params.loop_tile)
  steps *= _seen_share(kernel, tensors, extents, tile, params) if steps > params.stages else 1
  blocks = prod(ceil(extents[a] / t) for a, t in zip(kernel.grid, params.tile, strict=True))
  groups = params.warps // WGMMA.warps

  def elements(op: BlockOp) -> int:
    return prod(tile[a] for a in {*op.axes, *op.reduced})

  inside = [op for op in kernel.ops if op.phase is Phase.LOOP and op.op not in LEAVES]
  mma = sum(2 * elements(op) for op in inside if op.op == "matmul")
  others = [op for op in inside if op.op != "matmul" and kernel.loop in {*op.axes, *op.reduced}]
  special = sum(
    elements(op) for op in others if op.op in ELEMENTWISE and ELEMENTWISE[op.op].price is not Price.LANE
  )
  rate = target.mma_tflops * WGMMA.share * 1e6 / target.multiprocessors
  mma_us = mma / rate / groups
  other_us = (special / _SPECIALS_PER_US + sum(map(elements, others)) / _LANES_PER_US) / groups
  resident = _resident(kernel, tensors, tile, params, target)

  def step_us(count: float) -> float:
    """What each of ``count`` warpgroups adds to a step of all of them."""
    return max(mma_us, other_us, (mma_us + other_us + _WAIT_US) / count) + _SHARE * min(mma_us, other_us)

  own = ceil(blocks / target.multiprocessors)
  full, rest = divmod(own, resident)
  counts = [resident * groups] * full + [rest * groups] * (rest > 0)
  ends_us = BEGIN_US + END_US / 4 * ceil(own / resident)
  return target.launch_us + steps * sum(n * step_us(n) for n in counts) + ends_us


def _seen_share(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], tile: Mapping[str, int],
  params: KernelParams,
) -> float:  # fmt: skip
  """The part of the steps that a block does on average, where a constant hides the others."""
  found = unseen(kernel, tensors)
  if found is None:
    return 1.0
  rows, columns = found.band.rows, found.band.columns
  return found.share(extents[rows], extents[columns], tile[rows], params.loop_tile)


def _resident(
  kernel: Kernel,
  tensors: Mapping[str, KTensor],
  tile: Mapping[str, int],
  params: KernelParams,
  target: Target,
) -> int:
  """Blocks of a multiprocessor, by registers that values take at once and by the ring."""
  ops, threads = kernel.ops, 32 * params.warps

  def size(axes: Iterable[str]) -> int:
    return prod(tile[a] for a in axes)

  products = [op for op in ops if op.op == "matmul"]
  operands = {a for op in products for a in op.args}
  held, packed, smem = sum(size(op.axes) for op in products), 0, 0
  for i in operands:
    own = size(ops[i].axes) // 2
    if ops[i].op == "load" and kernel.loop not in ops[i].axes and own >= FEW_NAMED * threads:
      smem += 4 * own
    elif ops[i].op != "load" or kernel.loop not in ops[i].axes:
      packed += own
  ring = [op for op in kernel.loads if op.fmap == kernel.loop and sum(tile[a] > 1 for a in op.axes) > 1]
  beside = sum(size(op.axes) for op in ring if op.dtype.is_half and not _is_operand(ops, op, operands))
  registers = (held + packed + beside) / threads + _MORE_REGISTERS
  smem += params.stages * sum(size(op.axes) * op.dtype.size_bytes for op in ring)
  return max(1, target.resident(threads, smem, registers))


def _is_operand(ops: tuple[BlockOp, ...], op: BlockOp, operands: Iterable[int]) -> bool:
  return any(ops[i] is op for i in operands)
