"""Thread graphs to CUDA C++ text."""

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.codegen.whole_text import GENERATOR_VERSION

__all__ = ["GENERATOR_VERSION", "KernelSource", "emit_kernel"]
