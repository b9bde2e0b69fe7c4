"""The µGraph of a saved graph, and its float64 value with the saved numbers."""

import numpy as np
from saved_truth import Truth

from mirage_onnx.errors import Rejection
from mirage_onnx.formats.mirage.check import translate
from mirage_onnx.formats.mirage.graph import parse_saved
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray


def read(graph, reference):
  parsed = parse_saved(graph)
  assert not isinstance(parsed, Rejection)
  if isinstance(reference, Truth):
    return translate(parsed, reference.program, reference.region)
  program = reference.program()
  return translate(parsed, program, whole_region(program))


def values(ours, truth):
  """The only output, by the dimensions of the reference, on the inputs of ``truth``."""
  arrays = dict(zip(truth.program.inputs, truth.inputs, strict=True))
  extents = ours.region.extents
  inputs = {
    i.name: NamedArray(arrays[i.tensor.name].reshape(1, *(extents[a] for a in i.axes)), i.axes)
    for i in ours.region.inputs
  }
  (output,) = ours.region.outputs
  with np.errstate(all="ignore"):
    env = interpret_ugraph(Float64(), ours.ugraph, ours.params, extents, inputs)
  assert output.tensor.shape is not None
  return np.asarray(env[output.name].aligned(output.axes)).reshape(output.tensor.shape)
