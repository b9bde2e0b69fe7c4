"""Texts of kernels to cubins: NVRTC, what is kept, and machine code held against its PTX."""

from mirage_onnx.compiler.compile import compile_cubin, compile_many
from mirage_onnx.compiler.cubin import Cubin

__all__ = ["Cubin", "compile_cubin", "compile_many"]
