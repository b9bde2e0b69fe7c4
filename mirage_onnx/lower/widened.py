"""Packed weights as operand A of contractions by wgmma: their bytes in shared memory, widened to registers.

What a kernel computes of integers, zero points and scales to have an operand of 16 bits becomes one
load of the operand's type: a tile of the integers as memory has them, which the ring brings. Each warp
widens what it contracts, its own 16 rows of a step, when the tile is there (``device/packed_tile.cuh``).
Scales and zero points, one for a block of the depth, a lane loads itself, for its two rows, an iteration
before they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import WGMMA
from mirage_onnx.ir import DType, Kernel, KTensor, UGraph
from mirage_onnx.lower.assign import ProductForms
from mirage_onnx.lower.dataflow import needed_values
from mirage_onnx.lower.forms import Warps
from mirage_onnx.lower.pieces import STEP, Pieces
from mirage_onnx.lower.scaled_integers import Scaled, scaled_integers

#: More than any depth, and a multiple of every step.
_ALL = 1 << 24


@dataclass(frozen=True, slots=True)
class Widened:
  """An operand: its integers, scales and zero points as tensors of the kernel."""

  integers: KTensor
  half: DType
  scales: KTensor | None
  zeros: KTensor | None

  @property
  def repeat(self) -> int:
    """Neighbours along the depth that share a scale or a zero point."""
    shared = self.scales or self.zeros
    return shared.repeat if shared else _ALL


def with_widened(graph: UGraph, kernel: Kernel) -> tuple[Kernel, Mapping[int, Widened]]:
  """The kernel with loads in place of what it makes of packed weights, and these loads by index.

  Raises:
      RejectionError: LAYOUT, packed weights are something else than such operands.
  """
  found: dict[int, Widened] = {}
  ops = list(kernel.ops)
  for index, scaled in scaled_integers(graph, kernel.ops).items():
    load = ops[scaled.integers]
    ops[index] = replace(load, dtype=ops[index].dtype, axes=ops[index].axes)
    found[index] = _widened(graph, kernel, scaled)
  made = replace(kernel, ops=tuple(ops))
  needed = needed_values(made)
  for index in sorted(needed - {*found}):
    op = ops[index]
    if op.op == "load" and graph.tensor(op.tensor).few_bits:
      raise RejectionError("LAYOUT", f"{op.tensor}, weights of few bits, is no operand for warpgroups")
    if op.op != "matmul" and any(a in found for a in op.args):
      raise RejectionError("LAYOUT", f"weights of few bits are taken by {op.op!r}, not by contractions only")
  return made, {i: w for i, w in found.items() if i in needed}


def _widened(graph: UGraph, kernel: Kernel, scaled: Scaled) -> Widened:
  def tensor(index: int | None) -> KTensor | None:
    return None if index is None else graph.tensor(kernel.ops[index].tensor)

  integers = graph.tensor(kernel.ops[scaled.integers].tensor)
  if integers.dtype.is_float8:
    raise RejectionError("LAYOUT", f"{integers.name} has no integers, which warpgroups widen")
  scales, zeros = tensor(scaled.scales), tensor(scaled.zeros)
  if scales and zeros and zeros.repeat != scales.repeat:
    why = f"blocks of {zeros.name} are {zeros.repeat}, of {scales.name} {scales.repeat}"
    raise RejectionError("LAYOUT", why)
  if any(x.axes[-1:] != (kernel.loop,) for x in (integers, scales, zeros) if x):
    raise RejectionError("LAYOUT", f"the depth is not the last dimension of {integers.name}")
  return Widened(integers, scaled.half, scales, zeros)


def widened_first(kernel: Kernel, widened: Mapping[int, Widened]) -> Kernel:
  """The kernel with packed weights as operand A, whose registers are made of them."""
  ops = list(kernel.ops)
  for i, op in enumerate(ops):
    if op.op == "matmul" and op.args[1] in widened:
      ops[i] = replace(op, args=op.args[::-1])
  return replace(kernel, ops=tuple(ops))


def check_widened(
  kernel: Kernel, pieces: Pieces, products: Mapping[int, ProductForms], widened: Mapping[int, Widened],
  fitting: frozenset[int], warps: Warps,
) -> None:  # fmt: skip
  """Refuses a way to lay the kernel out in which its packed weights are not such operands.

  Raises:
      RejectionError: LAYOUT.
  """
  for index, op in enumerate(kernel.ops):
    for number, a in enumerate(op.args):
      if a not in widened:
        continue
      own, repeat = pieces.of_value[a], widened[a].repeat
      deep = own[kernel.loop or ""]
      rows = [p for p in own.values() if p != deep and p.length > 1]
      if number or index not in fitting or len(rows) != 1:
        raise RejectionError("LAYOUT", f"{widened[a].integers.name} is no operand A of wgmma")
      each = deep.length // warps.count((products[index].depth,))
      if not deep.levels.endswith(STEP) or not deep.exact or deep.aligned % deep.length:
        raise RejectionError("LAYOUT", f"steps of {deep.length} leave a part of the depth over")
      if repeat % WGMMA.depth or (each % repeat and repeat % each):
        raise RejectionError("LAYOUT", f"a step of {each} and blocks of {repeat}")
