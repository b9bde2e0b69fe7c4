"""The instructions that contract on tensor cores, and what the lowering has to know of each.

All of them leave their result as ``mma.m16n8k16`` does (PTX ISA, matrix fragments): in a warp, 16 rows
and 8 columns after 8 columns; with g = lane / 4, t = lane % 4 a lane has rows g and g + 8, columns
2t and 2t + 1. So the forms of ``lower/forms.py`` hold for all of them, and what comes behind
a contraction does not depend on how it is done.
"""

from collections.abc import Collection
from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class Instruction:
  """One instruction: adds the products of a ``depth`` to ``rows`` x one of ``columns``, in fp32.

  ``warps`` issue it together, 16 rows each. ``swizzle_bytes``: of the rows in which shared memory
  holds an operand that it reads there itself; 0: operands are registers, two of the first for a depth of 8
  (rows g and g + 8, depth 2t and 2t + 1) and one of the second. ``share``: of the chip's rate
  (``Target.mma_tflops``) that kernels reach with it. ``since``: the compute capability from which every GPU
  has it; None: those whose row names it. ``function``: of the device headers, by the tag of the operands'
  type, its result one array; ``in_rows``: the same with two, one a row, if there is such a function;
  ``headers``: what declares them, beside those of every kernel.
  """

  name: str
  rows: int
  columns: tuple[int, ...]
  depth: int
  operands: tuple[DType, ...]
  warps: int
  swizzle_bytes: int
  share: float
  since: tuple[int, int] | None
  function: str
  in_rows: str = ""
  headers: tuple[str, ...] = ()

  def is_on(self, target: Target) -> bool:
    """Whether a GPU has it."""
    return self.name in target.instructions or (self.since is not None and self.since <= target.capability)

  @property
  def step(self) -> int:
    """Depth elements of a row of swizzled shared memory; 1 if there is none."""
    return self.swizzle_bytes // 2 or 1


_HALF = (DType.F16, DType.BF16)
_ROWS = (
  # name, rows, columns, depth, operands, warps, swizzle_bytes, share, since, functions, headers
  Instruction("mma", 16, (8,), 16, _HALF, 1, 0, 0.5, (8, 0), "mma_16816", "mma_rows"),
  Instruction("wgmma", 64, (64, 96, 128, 160, 192, 224, 256), 16, _HALF, 4, 128, 1.0, None, "wgmma",
              headers=("ptx_warpgroup.cuh", "warpgroup.cuh")),
)  # fmt: skip
INSTRUCTIONS = {i.name: i for i in _ROWS}
MMA, WGMMA = INSTRUCTIONS["mma"], INSTRUCTIONS["wgmma"]


def instruction_of(name: str, target: Target) -> Instruction:
  """The instruction of this name, which the GPU has.

  Raises:
      RejectionError: LAYOUT, there is none.
  """
  if name not in INSTRUCTIONS or not INSTRUCTIONS[name].is_on(target):
    raise RejectionError("LAYOUT", f"{target.name} has no instruction {name!r}")
  return INSTRUCTIONS[name]


def fastest_of_warps(operands: Collection[DType], target: Target) -> Instruction:
  """By which a warp contracts operands of these types the fastest on a GPU; of equals the first row."""
  own = (i for i in _ROWS if i.warps == 1 and i.is_on(target) and set(operands) <= set(i.operands))
  return max(own, key=lambda i: i.share, default=MMA)
