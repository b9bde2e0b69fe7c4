"""Thread graphs to CUDA C++ text."""

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.header import GENERATOR_VERSION
from mirage_onnx.codegen.source import KernelSource

__all__ = ["GENERATOR_VERSION", "KernelSource", "emit_kernel"]
