"""The cost model: an estimate of one kernel's time from its block graph.

    time_us = fixed + streaming / rate(bytes in flight) + waves + re-read bytes + arithmetic

Fitted to measurements on an H200: the shape to ``sweep.csv.xz`` of commit 99c53f1 (isolated
kernels, 1700 parameter points of a norm and linear layer), the level to ``chain.json`` (a kernel's
share of a replayed CUDA graph, the footing of the ORT table it is compared with; an isolated cold
kernel takes about 3 us longer). A cold kernel streams its bytes at 1 / (1/peak^3 + 1/r^3)^(1/3)
with r = bytes in flight / latency: 31 KiB a multiprocessor reach 90 % of the peak, 62 KiB all of
it.
The model ranks candidates; a measured choice replaces it wherever there is a GPU.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from mirage_onnx.cost.chip import (
  ARRAYS,
  NUMBERS,
  SECTOR_BYTES,
  UNLIMITED,
  Arithmetic,
  fill_of,
  memory_time_us,
)
from mirage_onnx.instructions import MMA
from mirage_onnx.ir import DType
from mirage_onnx.ir.block_ops import ACCUMULATORS, CLUSTER, LEAVES, REDUCTIONS
from mirage_onnx.ir.ugraph import BlockOp, Kernel, KernelParams, KTensor, Layout, Phase
from mirage_onnx.lower.in_place import UPDATING, rows_of, update_in
from mirage_onnx.target import Target

#: What one dependent step adds to a small kernel in a graph.
LATENCY_US = 0.25
#: One operation on one more element of a thread behind the loop.
ELEMENT_US = 0.011
#: A block-wide barrier with its shared-memory round trip, and a cluster's exchange.
BARRIER_US = 0.05
CLUSTER_US = 0.2
#: A further wave of blocks starts cold: its first loads wait a full trip and nothing overlaps them.
WAVE_US = 2.1
#: Blocks beyond this many per multiprocessor cost their launch and epilogue each.
FREE_BLOCKS, BLOCK_US = 4.0, 0.7
#: What the whole GPU takes to start a block, and a warp, where there are many: 131072 blocks of 1
#: to 8 warps take 158 us, of 16 warps 221 us (an H200, row kernels chained in a CUDA graph).
BLOCK_START_US, WARP_START_US = 1.21e-3, 0.105e-3
#: Extent of a part axis before its maker has numbers.
PARTS_ASSUMED = 16
#: Combining the warps' partial results, per 16x8 accumulator tile of a block.
COMBINE_US = 0.15
#: Where operands are packed (a few bits each), fitted to 45 lists of numbers that were timed
#: (bench/results/h200/packed_variants.json, h100/packed*.json): what a step of a warp takes, however many
#: bytes are under way, for its instructions wait for each other; each stage but one; a cluster's exchange;
#: a further wave of blocks.
PACKED_STEP_US, PACKED_STAGE_US, PACKED_CLUSTER_US, PACKED_WAVE_US = 0.25, 0.15, 0.9, 1.25
#: The share of what blocks read again (rows, and scales that share sectors) that comes from L2.
PACKED_AGAIN = 1 / 3
#: Rows of a tile of mma.
_ROWS = 8
#: Of scalar operations three quarters are hidden behind memory traffic.
ALU_SHOWN = 4

#: Relative difference of times beyond which two points are in order for certain.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Cost:
  """Predicted time of one kernel, its bytes from DRAM, and what a thread and a block of it take.

  Numbers, or arrays of them, one for each point.
  """

  time_us: Any
  dram_bytes: Any
  registers: Any
  smem_bytes: Any


@dataclass(frozen=True, slots=True)
class Features:
  """What the cost depends on, read off a kernel once: element counts by axes, not by tile.

  ``row``: elements of the axis that a row kernel spreads over threads; 1 if there is none.
  ``lane_depth``: of a streaming kernel (``Kernel``), ``depth_loads`` what it loads over the depth alone.
  ``wide``: products with weights of few bits are of fp32, in multiply-adds.
  ``a_loads`` are without what is one element for many of the depth: nothing of note is in flight of it.
  """

  kernel: Kernel
  extents: Mapping[str, int]
  dram_bytes: int
  loads: tuple[tuple[tuple[str, ...], float], ...]
  matmuls: tuple[tuple[tuple[str, ...], int, bool], ...]
  work: tuple[tuple[tuple[str, ...], float], ...]
  a_loads: tuple[str | None, ...]
  b_loads: tuple[str | None, ...]
  vectors: int
  barriers: int
  after: tuple[tuple[tuple[str, ...], int], ...]
  row: int
  lane_depth: int = 8
  depth_loads: int = 0
  update: bool = False
  wide: bool = False

  @property
  def step(self) -> int:
    """Depth elements of a warp in one step."""
    return 4 * self.lane_depth


def features(kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int]) -> Features:
  """The features of ``kernel``."""

  def size(axes: tuple[str, ...]) -> int:
    return prod(extents[a] for a in axes)

  def free(op: BlockOp) -> str | None:
    return next((a for a in op.axes if a != kernel.loop), None)

  ops = kernel.ops
  work = Counter(
    tuple(sorted({*o.axes, *o.reduced})) if o.op == "sum" else o.axes
    for o in ops if o.op not in LEAVES and o.op != "matmul"
  )  # fmt: skip
  behind = [o for o in ops if kernel.loop is not None and o.phase is Phase.POST and len(o.axes) > 1]
  after = Counter(o.axes for o in behind if o.op not in ACCUMULATORS | CLUSTER)
  loops = [o for o in ops if o.phase is Phase.LOOP]
  barriers = sum(1 for o in ops if o.op in REDUCTIONS and o.phase is Phase.POST)
  update = update_in(tensors, kernel)
  # Of a cache in one buffer the row that is new is moved, and no other.
  still = rows_of(tensors, kernel, update) if update else frozenset[str]()

  def part(axes: tuple[str, ...]) -> float:
    return 1 / prod(extents[a] for a in axes if a in still)

  return Features(
    kernel=kernel,
    extents=extents,
    dram_bytes=sum(
      int(size(tensors[t].axes) * moved_bytes(kernel, tensors[t]) * part(tensors[t].axes))
      for t in kernel.touched
    ),
    loads=tuple((o.axes, stored_bytes(tensors[o.tensor]) * part(o.axes)) for o in kernel.loads),
    matmuls=tuple((o.axes, size(o.reduced), o.phase is Phase.LOOP) for o in ops if o.op == "matmul"),
    work=tuple((axes, count * part(axes)) for axes, count in work.items()),
    a_loads=tuple(
      free(o) for o in loops if o.op == "load" and o.layout is Layout.A_FRAG and tensors[o.tensor].repeat == 1
    ),
    b_loads=tuple(free(o) for o in loops if o.op == "load" and o.layout is Layout.B_FRAG),
    vectors=sum(1 for o in ops if o.layout is Layout.VECTOR),
    after=tuple(after.items()),
    row=max((extents[a] for o in ops for a in o.axes if a not in kernel.grid), default=1),
    barriers=barriers + 2 * any(o.layout is Layout.SHARED for o in ops),
    lane_depth=kernel.lane_depth,
    depth_loads=sum(1 for o in loops if o.op == "load" and o.layout is Layout.DEPTH),
    update=update is not None,
    wide=kernel.lane_depth > 8 and any(o.op == "matmul" and ops[o.args[0]].dtype is DType.F32 for o in loops),
  )


def stored_bytes(tensor: KTensor) -> float:
  """What an element takes in memory: a part of a byte where it is packed, or several are one."""
  if tensor.few_bits:
    return tensor.dtype.bits / 8 / tensor.repeat
  return tensor.dtype.size_bytes


def element_bytes(tensor: KTensor) -> float:
  """What an element takes of memory traffic: alone of its row, that row, a sector at most."""
  size = stored_bytes(tensor)
  if tensor.few_bits:
    return size
  for w in reversed(tensor.windows):
    if w.axes or w.full is None:
      break
    size *= w.full
  return max(min(size, SECTOR_BYTES), tensor.dtype.size_bytes)


def moved_bytes(kernel: Kernel, tensor: KTensor) -> float:
  """What an element of a tensor costs in memory traffic, in bytes.

  A row kernel spreads one axis over its threads. Where another is the last in memory, neighbours
  belong to other blocks: each element is a sector of its own, and a store of a part of one is a
  load and a store. (With such a kernel, a normalisation of 32 x 4096 x 128 with
  a transposed result, a model took 288 us on an H200 instead of 123:
  bench/results/h200/speed.json, qknorm.)
  """
  width = element_bytes(tensor)
  spread = [a for a in tensor.axes if a not in kernel.grid]
  if kernel.loop is not None or not spread or tensor.axes[-1] in spread:
    return width
  return SECTOR_BYTES * (2 if any(s.tensor == tensor.name for s in kernel.saves) else 1)


def kernel_cost(f: Features, params: KernelParams, target: Target, runtime: Container[str] = ()) -> Cost:
  """Cost of a kernel with ``params``.

  Of a ``runtime`` axis a block computes its whole tile, however few elements there are.
  """
  return estimate(f, params.tile, params.cluster, params.warps, params.stages, target, NUMBERS, runtime)


def estimate(
  f: Features, tile: Sequence[Any], cluster: Any, warps: Any, stages: Any, target: Target,
  n: Arithmetic = ARRAYS, runtime: Container[str] = (),
) -> Cost:  # fmt: skip
  """The one formula: at numbers, or at arrays of them (``tile`` has one for each grid axis).

  Powers of arrays and of numbers are not the same bits, so times differ by rounding (``ROUNDING``).
  """
  kernel, extents = f.kernel, f.extents
  local: dict[str, Any] = dict(extents)
  blocks: Any = 1
  for axis, t in zip(kernel.grid, tile, strict=True):
    local[axis] = t if axis in runtime else n.least(t, extents[axis])
    blocks = blocks * n.ceil(extents[axis] / t)

  def size(axes: tuple[str, ...]) -> Any:
    elements: Any = 1
    for a in axes:
      elements = elements * local[a]
    return elements

  l2 = n.floor(blocks * sum(size(axes) * width for axes, width in f.loads))
  flops = blocks * sum(2 * size(axes) * depth for axes, depth, _ in f.matmuls)
  alu = blocks * sum(size(axes) * count for axes, count in f.work)
  columns = sum(n.ceil(local[a] / 16) for a in f.a_loads if a)
  rows = sum(n.ceil(local[a] / 8) if a else 1 for a in f.b_loads)
  threads = 32 * warps
  fragments: Any = 0
  if kernel.loop is None:
    per_thread = n.ceil(f.row * prod(tile) / threads)
    registers, smem = 24 + per_thread * min(f.vectors, 4), 128
  else:
    fragments = _fragments(f, local, n)
    registers = 26 + n.floor(ring_registers(f, stages, columns, rows)) + 4 * fragments
    if f.wide:  # sums of every row of a tile, and eight numbers of a row and of two columns each
      registers = registers + 8 + 16 * columns + 2 * _ROWS * fragments
    smem = warps * 512 * fragments
  ctas = blocks * cluster
  fill = fill_of(ctas, cluster, warps, registers, smem, target, n)
  packed = f.lane_depth > 8
  meet_us, wave_us = (PACKED_CLUSTER_US, PACKED_WAVE_US) if packed else (CLUSTER_US, WAVE_US)
  fixed = f.barriers * target.barrier_us + n.where(cluster > 1, meet_us, 0.0)
  fixed = fixed + COMBINE_US * fragments
  fixed = fixed + ELEMENT_US * sum(count * n.ceil(size(axes) / threads) for axes, count in f.after)
  in_flight: Any = 0.0
  steps: Any = 1
  start_us: Any = 0.0
  if kernel.loop is None:  # of others, waves say it
    if f.update:  # whose blocks look at many rows each
      ctas = n.least(ctas, UPDATING * target.multiprocessors)
    start_us = ctas * n.most(BLOCK_START_US, warps * WARP_START_US)
  else:
    many = n.most(0.0, n.least(fill.share, 8.0) - FREE_BLOCKS)
    fixed = fixed + (BLOCK_US * many + wave_us * (fill.waves - 1))
    steps = n.ceil(extents[kernel.loop] / (f.step * warps * cluster))
    if packed:
      fixed = fixed + (PACKED_STEP_US * steps + PACKED_STAGE_US * (stages - 1))
    in_flight = fill.active * warps * n.least(stages, steps) * columns * 1024
  # Rows, and scales alone, one for a block of the depth, are not streamed: the peak is what limits them.
  streamed = n.where(in_flight > 0, in_flight, UNLIMITED)
  loaded = f.dram_bytes + PACKED_AGAIN * (l2 - f.dram_bytes) if packed else l2
  memory_us = memory_time_us(f.dram_bytes, loaded, streamed, fill, target, n)
  mma_us = flops / (target.mma_tflops * MMA.share * 1e6 * fill.busy)
  if f.wide:  # a lane of every group takes a row from another
    around = blocks * sum(32 * size(tuple({*axes} & {*f.b_loads})) * depth for axes, depth, _ in f.matmuls)
    mma_us = (flops / 2 + around) / (target.multiprocessors * target.lanes * target.cycles_per_us * fill.busy)
  work = n.most(memory_us, mma_us)
  serial_us = LATENCY_US * (1 + 0.25 * n.ceil(steps / stages))
  ramp = n.least(target.ramp_us, 0.25 * work)
  body = n.most(n.most(work + ramp, serial_us), start_us)
  alu_rate = ALU_SHOWN * target.multiprocessors * target.lanes * target.cycles_per_us
  time_us = target.launch_us + body + fixed + alu / alu_rate
  return Cost(time_us, f.dram_bytes, registers, smem)


def _fragments(f: Features, local: Mapping[str, Any], n: Arithmetic) -> Any:
  """Accumulator fragments of a warp."""
  row_axes = set(f.b_loads)
  total: Any = 0
  for axes, _, in_loop in f.matmuls:
    if in_loop:
      tiles: Any = 1
      for a in axes:
        tiles = tiles * n.ceil(local[a] / (8 if a in row_axes else 16))
      total = total + tiles
  return total


def ring_registers(f: Features, stages: Any, columns: Any, rows: Any) -> Any:
  """Registers for what is in flight, of numbers or arrays of them.

  Compiled kernels (sm_90a): 8 registers per step and column tile, 10 per row tile; of packed weights 10
  with their scales, and one step of all else (``lower/stream_loop.py``).
  """
  if f.lane_depth == 8:
    return stages * (8 * columns + 10 * rows)
  return stages * 10 * columns + f.lane_depth // 2 * (rows + f.depth_loads)


def elements_per_thread(f: Features, params: KernelParams) -> int:
  """Of a row kernel with these numbers, whose tile is the rows of a block."""
  return ceil(f.row * prod(params.tile) / (32 * params.warps))
