"""Tiled kernels: any well-formed block graph, from layouts by value to text."""

from mirage_onnx.codegen.tiled.kernel import emit_tiled

__all__ = ["emit_tiled"]
