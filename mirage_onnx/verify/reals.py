"""Is what the field takes for equal equal on the reals?

Random functions and roots of squares exist everywhere, logarithms and roots of reals do not:
sqrt(x) sqrt(y) is sqrt(x y) but for negative x and y, and y + log(x) - log(x) is y but for negative
x. Nor are all squares of Z_p positive: a constant with a prime factor above 61 may count as
negative. And two constants that differ by a multiple of p are one residue. So every µGraph that a
tier accepts also runs in float64, once, on inputs of both signs.
"""

import numpy as np

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.dtype import as_input
from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import UGraph
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named
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
        inputs[i.name] = Named(as_input(cases, i.dtype), i.axes)
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
