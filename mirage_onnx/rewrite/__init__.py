"""Rewriting: chosen regions -> an ONNX model with custom nodes and model-local functions."""
