"""UGraph kernels to CUDA C++ text, and the text to cubins."""

from mirage_onnx.codegen.compile import compile_cubin, compile_many
from mirage_onnx.codegen.cubin import Cubin
from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.codegen.header import GENERATOR_VERSION
from mirage_onnx.codegen.source import KernelSource

__all__ = [
  "GENERATOR_VERSION",
  "Cubin",
  "KernelSource",
  "compile_cubin",
  "compile_many",
  "emit_kernel",
]
