"""Whether a mistake in a program's loads or sums would be seen in what it saves.

``min(x, 1)`` of a large x forgets x. Here every input, and every sum and contraction by itself, is
changed by a good deal: what is saved has to change, too. (Not maxima: a shift may not matter.)
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from draft import Draft, replaced
from random_kernel_oracle import interpreted

from mirage_onnx.verify.domain import Float64

SUMS = ("matmul", "sum", "acc_sum", "acc_scaled", "red_sum")
#: What a value is multiplied by, and the least change relative to the saved tensor and its error.
CHANGE, INPUT_CHANGE = Fraction(3, 2), -1.5
LEAST, ABOVE_ERROR = 0.02, 8.0


def forgets(graph, params, extents, found):
  for changed, inputs in _changes(graph, found.inputs):
    values = interpreted(Float64(), changed, params, extents, inputs)
    if not any(_differs(values[n][0], n, found) for n in found.wants):
      return True
  return False


def _changes(graph, inputs):
  for name, x in inputs.items():
    if not np.isinf(x.astype(np.float64)).any():
      yield graph, {**inputs, name: (x * INPUT_CHANGE).astype(x.dtype)}
  for at, kernel in enumerate(graph.kernels):
    for i, op in enumerate(kernel.ops):
      if op.op in SUMS:
        draft = Draft(kernel)
        factor = draft.const(CHANGE, op.phase)
        changed = draft.then(i, "mul", i, factor).done()
        yield replace(graph, kernels=replaced(graph.kernels, at, changed)), inputs


def _differs(value, name, found):
  want = found.wants[name]
  fits = np.isfinite(want.exact) & np.isfinite(value)
  exact = np.where(fits, want.exact, 0.0)
  with np.errstate(all="ignore"):
    change = np.linalg.norm(np.where(fits, value, 0.0) - exact)
    error = max(float(np.linalg.norm(e)) for e in want.errors)
    return bool(change > LEAST * np.linalg.norm(exact) and change > ABOVE_ERROR * error)
