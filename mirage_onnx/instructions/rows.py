"""The instructions that contract on tensor cores, and what the lowering has to know of each.

All of them leave their result as ``mma.m16n8k16`` does (PTX ISA, matrix fragments): in a warp, 16 rows
and 8 columns after 8 columns; with g = lane / 4, t = lane % 4 a lane has rows g and g + 8, columns
2t and 2t + 1. So the forms of ``lower/forms.py`` hold for all of them, and what comes behind
a contraction does not depend on how it is done.
"""

from dataclasses import dataclass

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class Instruction:
  """One instruction: adds the products of a ``depth`` to ``rows`` x one of ``columns``, in fp32.

  ``warps`` issue it together, 16 rows each. ``swizzle_bytes``: of the rows in which shared memory
  holds an operand that it reads there itself; 0: operands are registers. ``share``: of the chip's rate
  (``Target.mma_tflops``) that kernels reach with it. ``function``: of the device headers, by the tag of
  the operands' type; ``headers``: what declares it, beside those of every kernel.
  """

  name: str
  rows: int
  columns: tuple[int, ...]
  depth: int
  operands: tuple[DType, ...]
  warps: int
  swizzle_bytes: int
  share: float
  function: str
  headers: tuple[str, ...]

  @property
  def step(self) -> int:
    """Depth elements of a row of swizzled shared memory; 1 if there is none."""
    return self.swizzle_bytes // 2 or 1


_HALF = (DType.F16, DType.BF16)
_ROWS = (
  # name, rows, columns, depth, operands, warps, swizzle_bytes, share, function, headers
  Instruction("mma", 16, (8,), 16, _HALF, 1, 0, 0.5, "mma_16816", ()),
  Instruction(
    "wgmma",
    64,
    (64, 96, 128, 192, 256),
    16,
    _HALF,
    4,
    128,
    1.0,
    "wgmma",
    ("ptx_warpgroup.cuh", "warpgroup.cuh"),
  ),
)
INSTRUCTIONS = {i.name: i for i in _ROWS}
MMA, WGMMA = INSTRUCTIONS["mma"], INSTRUCTIONS["wgmma"]


def instruction_of(name: str, target: Target) -> Instruction:
  """The instruction of this name, which the GPU has.

  Raises:
      RejectionError: LAYOUT, there is none.
  """
  if name not in INSTRUCTIONS or name not in target.instructions:
    raise RejectionError("LAYOUT", f"{target.name} has no instruction {name!r}")
  return INSTRUCTIONS[name]
