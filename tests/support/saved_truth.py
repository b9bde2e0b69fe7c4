"""The float64 truth about a saved graph: how far its outputs are from the reference's."""

import numpy as np
from saved_oracle import NotExecutableError, run_saved

from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.interpret_steps import interpret_steps

#: Relative L2 error up to which two float64 results are equal.
EQUAL = 1e-6


class Truth:
  def __init__(self, reference, rng):
    self.program = reference.program()
    self.region = whole_region(self.program)
    shapes = [self.program.tensors[x].shape for x in self.program.inputs]
    # Below 1, so that no row of a softmax is decided by one element.
    self.inputs = [rng.standard_normal(s) * 0.5 for s in shapes]
    arrays = dict(zip(self.program.inputs, self.inputs, strict=True))
    values = interpret_steps(self.region, arrays, rounded=False)
    self.outputs = [values[o] for o in self.program.outputs]

  def error(self, graph):
    """The largest relative L2 error of an output; infinite where there is no such output."""
    try:
      with np.errstate(all="ignore"):
        got = run_saved(graph, self.inputs)
    except NotExecutableError:
      return np.inf
    if [x.shape for x in got] != [x.shape for x in self.outputs]:
      return np.inf
    pairs = zip(got, self.outputs, strict=True)
    error = max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in pairs)
    return error if np.isfinite(error) else np.inf

  def equal(self, graph):
    return self.error(graph) < EQUAL
