"""The smallest model that a command still fails on, for a bug report."""

from mirage_onnx.reduction.reduce import Reduced, Step, reduce_model

__all__ = ["Reduced", "Step", "reduce_model"]
