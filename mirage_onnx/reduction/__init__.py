"""The smallest model that a command still fails on, for a bug report."""

from mirage_onnx.reduction.reduce import Reduced, ReductionStep, reduce_model

__all__ = ["Reduced", "ReductionStep", "reduce_model"]
