"""Tensor-core instructions: one row each (``rows.py``)."""

from mirage_onnx.instructions.rows import INSTRUCTIONS, MMA, WGMMA, Instruction, instruction_of

__all__ = ["INSTRUCTIONS", "MMA", "WGMMA", "Instruction", "instruction_of"]
