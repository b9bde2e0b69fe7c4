"""Numbers with which products of packed weights go by wgmma: for many rows.

Weights are operand A, widened to registers on their way (``lower/widened.py``): 64 of the
result's columns to a warpgroup. Activations are operand B, as many rows as one instruction has columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir.block_ops import LEAVES
from mirage_onnx.ir.ugraph import Kernel, KernelParams, KTensor, Phase
from mirage_onnx.lower.dataflow import made_of
from mirage_onnx.superopt.warpgroup_numbers import COLUMNS, lowered_fastest
from mirage_onnx.target import Target

#: Rows below which kernels that stream widen no weight twice.
LEAST_ROWS = WGMMA.columns[0]
_WEIGHTS, _STEPS, _STAGES, _CLUSTERS = (64, 128, 256), (64, 128, 256), (2, 3, 4, 6), (1, 2, 4)
#: Accumulators of a lane, and all registers beside them: fragments of a step, scales, addresses.
_MOST_ACCUMULATORS, _OTHER_REGISTERS = 128, 72


@dataclass(frozen=True, slots=True)
class PackedShape:
  """``weights``: the axis of operand A, ``rows``: of operand B; ``bytes_of``: both, of one depth element."""

  weights: str
  rows: str
  products: int
  bytes_of: tuple[float, float]

  @classmethod
  def of(
    cls, kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int]
  ) -> "PackedShape | None":
    """None where not all contractions are such products over the loop's axis."""
    ops, sides = kernel.ops, set[tuple[str, str]]()
    found = [op for op in ops if op.op == "matmul"]
    for op in found:
      packed = [_packed_weights(kernel, tensors, a) for a in op.args]
      if op.phase is not Phase.LOOP or op.reduced != (kernel.loop,) or packed.count(True) != 1:
        return None
      weight, other = (ops[op.args[packed.index(p)]] for p in (True, False))
      own = [[a for a in x.axes if a != kernel.loop] for x in (weight, other)]
      if other.op != "load" or tensors[other.tensor].axes[-1] != kernel.loop or any(len(a) != 1 for a in own):
        return None
      sides.add((own[0][0], own[1][0]))
    if len(sides) != 1 or kernel.loop is None:
      return None
    ((weights, rows),) = sides
    if not {weights, rows} <= set(kernel.grid) or extents[rows] < LEAST_ROWS:
      return None
    moved = [(o, tensors[o.tensor]) for o in kernel.loads if o.fmap == kernel.loop]
    sizes = [
      sum(t.dtype.bits for o, t in moved if t.repeat == 1 and x in o.axes) / 8 for x in (weights, rows)
    ]
    return cls(weights, rows, len(found), (sizes[0], sizes[1]))


def _packed_weights(kernel: Kernel, tensors: Mapping[str, KTensor], index: int) -> bool:
  """Whether an operand is made of packed weights and their scales, of nothing else."""
  found = [kernel.ops[i] for i in made_of(kernel.ops, (index,))]
  loads = [tensors[op.tensor] for op in found if op.op == "load"]
  plain = all(op.op in LEAVES or op.op in ("cast", "mul", "sub", "add", "neg") for op in found)
  return plain and bool(loads) and all(t.few_bits for t in loads)


def widened_points(
  kernel: Kernel, tensors: Mapping[str, KTensor], extents: Mapping[str, int], target: Target, keep: int
) -> tuple[tuple[float, KernelParams], ...]:
  """The ``keep`` points that are predicted to be fastest, in us, best first."""
  shape = PackedShape.of(kernel, tensors, extents) if WGMMA.is_on(target) else None
  if shape is None:
    return ()
  return lowered_fastest(kernel, tensors, extents, target, _points(kernel, extents, shape, target), keep)


def _points(
  kernel: Kernel, extents: Mapping[str, int], shape: PackedShape, target: Target
) -> Iterator[KernelParams]:
  depth = extents[kernel.loop or ""]
  clusters = _CLUSTERS if kernel.cluster == kernel.loop and target.has_clusters else (1,)
  for weights, rows, step, stages, cluster in product(_WEIGHTS, COLUMNS, _STEPS, _STAGES, clusters):
    warps = weights // 16
    fits = shape.products * rows // 2 <= _MOST_ACCUMULATORS and depth % (step * cluster) == 0
    fits &= weights <= extents[shape.weights] and rows <= extents[shape.rows]
    fits &= stages <= max(2, depth // (step * cluster))
    fits &= 32 * warps * _registers(shape, rows, step) <= target.registers_per_sm
    if fits and _smem_bytes(shape, weights, rows, step, stages) <= target.smem_bytes:
      tile = {shape.weights: weights, shape.rows: rows}
      yield KernelParams(tuple(tile.get(a, 1) for a in kernel.grid), cluster, step, warps, stages, WGMMA.name)


def _registers(shape: PackedShape, rows: int, step: int) -> int:
  """Of a thread: accumulators, the fragments of one product, and others."""
  return shape.products * rows // 2 + step // 4 + _OTHER_REGISTERS


def _smem_bytes(shape: PackedShape, weights: int, rows: int, step: int, stages: int) -> int:
  """Rows of packed weights are padded to an odd number of 16 bytes; tiles begin at 1024."""
  own = weights * (shape.bytes_of[0] * step + 32 * shape.products) + 1024 * shape.products
  return int(own + rows * shape.bytes_of[1] * step + 1024) * stages
