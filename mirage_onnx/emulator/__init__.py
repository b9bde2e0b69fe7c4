"""Runs generated CUDA text on the CPU, checked, so that it can be tested without a GPU."""

from mirage_onnx.emulator.failure import KINDS, EmulationError
from mirage_onnx.emulator.run import Module, compile_kernels, run_kernel, run_kernels

__all__ = ["KINDS", "EmulationError", "Module", "compile_kernels", "run_kernel", "run_kernels"]
