"""Tensor-core instructions: one row each (``rows.py``)."""

from mirage_onnx.instructions.rows import (
  INSTRUCTIONS,
  MMA,
  WGMMA,
  Instruction,
  fastest_of_warps,
  instruction_of,
)

__all__ = ["INSTRUCTIONS", "MMA", "WGMMA", "Instruction", "fastest_of_warps", "instruction_of"]
