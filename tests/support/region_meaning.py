"""What the region that the importer found in a model means, in float64: the other side of a comparison."""

import numpy as np
from small_models import matches

from mirage_onnx.importer import load_model
from mirage_onnx.verify.interpret_steps import interpret_steps
from mirage_onnx.verify.weights import sample_weights


def largest_region(model):
  """Of all regions: the one of most nodes."""
  return max({c.region.key: c.region for c in matches(model).candidates}.values(), key=lambda r: len(r.nodes))


def meant(model, values):
  """The largest region's first output in float64, as its steps say it; ``values``: name -> input."""
  region = largest_region(model)
  weights = sample_weights(load_model(model), region)
  inputs = {
    i.tensor.name: np.asarray(weights[i.tensor.name] if i.is_weight else values[i.tensor.name], np.float64)
    for i in region.inputs
  }
  return interpret_steps(region, inputs, rounded=False)[region.outputs[0].tensor.name]
