"""Whether the terms of a region are what its steps say."""

import numpy as np

from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray


def check_means_its_steps(region, rng):
  data = {i.name: rng.uniform(0.5, 1, [region.extents[a] for a in i.axes]) for i in region.inputs}
  feed = {i.tensor.name: positional(i, data[i.name]) for i in region.inputs}
  steps = interpret_steps(region, feed, rounded=False, extents=region.extents)
  inputs = {i.name: NamedArray(data[i.name][None], i.axes) for i in region.inputs}
  terms = interpret_terms(Float64(), region.terms, inputs, region.extents)
  for o, value in zip(region.outputs, terms, strict=True):
    want = by_axes(o, steps[o.tensor.name], region.extents)
    got = value.aligned(o.axes)[0]
    np.testing.assert_allclose(np.broadcast_to(got, want.shape), want, rtol=1e-9, atol=1e-12)
