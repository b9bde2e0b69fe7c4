"""Is what the field takes for equal equal on the reals? Once, in float64, on inputs of both signs.

Why it may not be: docs/verification.md, "The field and the reals".
"""

import numpy as np

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Region, UGraph, as_input
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.random_test import whole
from mirage_onnx.verify.reduced import Instantiation

#: Relative to the largest element: signs are told apart, not roundings.
TOLERANCE = 1e-6


def check_reals(
  region: Region, graph: UGraph, sizes: Instantiation, rng: np.random.Generator
) -> Rejection | None:
  """None if every element that the region defines is the same in the µGraph, in float64."""
  domain, inputs = Float64(3), {}
  for i in region.inputs:
    data = rng.standard_normal([sizes.extents[a] for a in i.axes])
    cases = np.stack([data, -data, np.abs(data) + 0.5])
    inputs[i.name] = NamedArray(as_input(cases, i.dtype), i.axes)
  want = interpret_terms(domain, region.terms, inputs, sizes.extents)
  got = interpret_ugraph(domain, graph, sizes.params, sizes.extents, inputs)
  for output, reference in zip(region.outputs, want, strict=True):
    x, y = whole(reference, output, sizes.extents), got[output.name].aligned(output.axes)
    defined = np.isfinite(x)
    largest = np.abs(x[defined]).max(initial=1.0)
    with np.errstate(all="ignore"):
      same = np.abs(x - y) <= TOLERANCE * largest
    if (defined & ~same).any():
      reason = f"{output.name} is equal in the field, but not in float64"
      return Rejection("NOT_EQUIVALENT", f"{reason}: it has another value or none there")
  return None
