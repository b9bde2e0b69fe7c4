"""Runs generated CUDA text on the CPU, so that it can be tested without a GPU."""

from __future__ import annotations

from mirage_onnx.emulator.run import (
    EmulationError,
    Module,
    compile_kernels,
    run_kernel,
    run_kernels,
)

__all__ = [
    "EmulationError",
    "Module",
    "compile_kernels",
    "run_kernel",
    "run_kernels",
]
