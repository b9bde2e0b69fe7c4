"""Numbers with which kernels contract by wgmma: for many rows, where both operands lie along the depth.

The points are few: rows of a block by 64 to a warpgroup, columns as one instruction has them, a ring
of rows of 128 bytes. They are ranked by what a multiprocessor has to do: tensor cores, shared
memory, all loads from L2, and what begins and ends every block. The constants are fitted to 522 times of
13 products on an H100 (bench/results/h100/wgmma.json): off by a factor of 1.16 (root mean square), by 5 %
where a product is fastest (mean); the first point took 1.004 times as long as the fastest (geometric mean).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from mirage_onnx.cost.model import CLUSTER_US, element_bytes
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Phase
from mirage_onnx.target import Target

#: Rows of a tile below which no other instruction wastes as little.
LEAST_ROWS = WGMMA.rows
_ROWS, _PARTS, _STAGES, _CLUSTERS = (64, 128, 192, 256), (1, 2, 4), (3, 4, 5, 6), (1, 2, 4)
#: Accumulators of a lane, and warps of a block, that leave registers for the rest.
_MOST_ACCUMULATORS, _MOST_WARPS = 128, 16
#: Elements of a tile times the warpgroups that share out its columns or depth: beyond, one is enough.
_MOST_SHARED = 128 * 256 * 2
#: Registers of a thread beside its accumulators, with fewer of which kernels spill that do more than
#: multiply; the most that one has.
OTHER_REGISTERS, _MOST_REGISTERS = 64, 255
#: Fitted: a multiprocessor's shared memory, what a rank reads of the others', all reads from L2.
SMEM_BYTES_PER_US, DSMEM_BYTES_PER_US, L2_TBPS = 2.0e5, 3.45e4, 10.5
#: Fitted: a trip to L2 under load, what a step takes besides, until the first products of a block, and
#: from its last ones to its end (of 32768 elements).
TRIP_US, STEP_US, BEGIN_US, END_US = 0.82, 0.005, 3.35, 4.0


@dataclass(frozen=True, slots=True)
class Shape:
  """A kernel's contractions: the axes of their rows and columns, their number, bytes of an iteration.

  ``step``: by rows and by columns, of one depth element.
  """

  rows: str
  columns: str
  products: int
  row_bytes: int
  column_bytes: int

  @classmethod
  def of(cls, kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int]) -> "Shape | None":
    """None where wgmma is not for the kernel.

    All contractions are in its loop and over its axis, and share rows and columns: those are the last
    axis of what is saved. What is contracted is loaded, lies along the depth, by 16 bytes.
    """
    ops = kernel.ops
    found = [op for op in ops if op.op == "matmul"]
    inner = {tensors[s.tensor].axes[-1:] for s in kernel.saves}
    if kernel.loop is None or not found or len(inner) != 1 or extents[kernel.loop] % 8:
      return None
    (columns,) = next(iter(inner)) or ("",)
    rows = ""
    for op in found:
      own = [a for a in op.axes if a != columns and extents[a] > 1]
      half = all(ops[a].dtype in WGMMA.operands for a in op.args)
      plain = op.phase is Phase.LOOP and op.reduced == (kernel.loop,) and columns in op.axes
      if not (half and plain and len(own) == 1 and rows in ("", own[0])):
        return None
      rows = own[0]
      weight = next(ops[a] for a in op.args if columns in ops[a].axes)
      if weight.op != "load" or tensors[weight.tensor].axes[-1] != kernel.loop:
        return None
    loads = [o for o in kernel.loads if o.fmap == kernel.loop and o.dtype.size_bytes == 2]
    if any(tensors[o.tensor].axes[-1] != kernel.loop for o in loads if len(o.axes) > 1):
      return None
    if not {rows, columns} <= set(kernel.grid) or extents[rows] < LEAST_ROWS:
      return None
    sizes = [sum(axis in o.axes for o in loads) * 2 for axis in (rows, columns)]
    return cls(rows, columns, len(found), *sizes)


def warpgroup_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = Shape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  points = _points(kernel, extents, shape, target)
  return fastest(lambda p: _time_us(kernel, tensors, extents, shape, p, target), points, keep)


def _points(
  kernel: Kernel, extents: Mapping[str, int], shape: Shape, target: Target
) -> Iterator[KernelParams]:
  depth = extents[kernel.loop or ""]
  clusters = _CLUSTERS if kernel.cluster == kernel.loop and target.has_clusters else (1,)
  for rows, columns, parts, stages, cluster in product(_ROWS, WGMMA.columns, _PARTS, _STAGES, clusters):
    warps = rows // 16 * parts
    # Warpgroups of the same rows share out columns, or depth where those are too few.
    loop_tile = WGMMA.step * (1 if columns // parts in WGMMA.columns else parts)
    steps = ceil(ceil(depth / cluster) / loop_tile)
    accumulators = shape.products * rows * columns // (32 * warps)
    fits = accumulators <= _MOST_ACCUMULATORS and warps <= _MOST_WARPS
    fits &= accumulators + OTHER_REGISTERS <= min(_MOST_REGISTERS, target.registers_per_sm // (32 * warps))
    fits &= rows <= extents[shape.rows] and rows * columns * parts <= _MOST_SHARED
    fits &= columns <= extents[shape.columns] and stages <= max(3, steps) and steps > 1
    if fits and _smem_bytes(shape, rows, columns, loop_tile, stages) <= target.smem_bytes:
      tile = {shape.rows: rows, shape.columns: columns}
      tiles = tuple(tile.get(a, 1) for a in kernel.grid)
      yield KernelParams(tiles, cluster, loop_tile, warps, stages, WGMMA.name)


def _smem_bytes(shape: Shape, rows: int, columns: int, loop_tile: int, stages: int) -> int:
  return (rows * shape.row_bytes + columns * shape.column_bytes) * loop_tile * stages


def _time_us(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], shape: Shape,
  params: KernelParams, target: Target,
) -> float:  # fmt: skip
  tile = dict(zip(kernel.grid, params.tile, strict=True))
  rows, columns = tile[shape.rows], tile[shape.columns]
  blocks = prod(ceil(extents[a] / t) for a, t in tile.items()) * params.cluster
  depth = ceil(extents[kernel.loop or ""] / params.cluster)
  steps, groups = ceil(depth / WGMMA.step), params.warps // WGMMA.warps
  threads, smem = 32 * params.warps, _smem_bytes(shape, rows, columns, params.loop_tile, params.stages)
  accumulators = shape.products * rows * columns // threads
  rounds = ceil(blocks / target.multiprocessors)
  resident = max(1, min(target.resident(threads, smem, accumulators + OTHER_REGISTERS), rounds))
  # A step: what the tensor cores do, what they and the copies move, and what of a trip to L2 is left
  # when the others of the ring, and the other blocks, have been multiplied.
  rate = target.mma_tflops * WGMMA.share * 1e6 / target.multiprocessors
  mma_us = 2 * rows * columns * WGMMA.step * shape.products / rate
  parts = max(1, params.warps * 16 // rows)
  deep = min(parts, params.loop_tile // WGMMA.step)
  read = (WGMMA.rows + columns * deep // parts) * (groups // deep) * shape.products
  copied = rows * shape.row_bytes // 2 + columns * shape.column_bytes // 2
  moved_us = (read + copied) * WGMMA.swizzle_bytes / SMEM_BYTES_PER_US
  loaded_us = copied * WGMMA.swizzle_bytes * target.multiprocessors / (L2_TBPS * 1e6)
  ahead = max(1, params.stages - 2) * resident * (params.loop_tile // WGMMA.step)
  trip_us = 0.0 if params.stages * params.loop_tile >= depth else TRIP_US / ahead
  step_us = max(mma_us, moved_us, loaded_us, trip_us) + STEP_US / resident
  # Blocks that stand begin once.
  begins = 1 if params.cluster == 1 else ceil(rounds / resident)
  ends_us = begins * BEGIN_US + rounds * END_US * rows * columns / 2**15
  compute_us = rounds * steps * step_us + ends_us
  return whole_us(kernel, tensors, extents, compute_us, rows * columns, rounds, params, target)


def whole_us(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], compute_us: float,
  tile: int, rounds: float, params: KernelParams, target: Target,
) -> float:  # fmt: skip
  """A launch whose blocks compute for so long, beside its memory; ranks exchange their ``tile`` elements."""
  dram = sum(prod(extents[a] for a in t.axes) * element_bytes(t)
             for n, t in tensors.items() if n in kernel.touched)  # fmt: skip
  memory_us = dram / (target.stream_tbps * 1e6) + BEGIN_US
  shared = tile * 4 * params.cluster
  exchange_us = CLUSTER_US + shared / DSMEM_BYTES_PER_US * rounds if params.cluster > 1 else 0.0
  body_us: float = (compute_us**4 + memory_us**4) ** 0.25
  return target.launch_us + body_us + exchange_us


def fastest(
  time_us: Callable[[KernelParams], float], points: Iterable[KernelParams], keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  return tuple(sorted(((time_us(p), p) for p in points), key=lambda f: (f[0], f[1].to_text()))[:keep])
