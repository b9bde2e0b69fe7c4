"""BatchNormalization for onnx's evaluator, which before opset 14 takes every one for one that trains.

It normalizes with the mean and the variance of the batch then, not with those that the model has.
"""

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun


class BatchNormalization(OpRun):
  """(x - mean) / sqrt(var + epsilon) * scale + bias, over axis 1."""

  op_domain = ""

  def _run(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, **attributes: Any) -> tuple[Any, ...]:
    if attributes.get("training_mode") or len(self.output) > 1:
      raise NotImplementedError("one that trains")
    at = (slice(None), *[None] * (x.ndim - 2))
    factor = scale / np.sqrt(var + (attributes.get("epsilon") or 1e-5))
    return ((x - mean[at]) * factor[at] + bias[at],)
