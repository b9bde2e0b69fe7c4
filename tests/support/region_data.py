"""A region's tensors as plain arrays, for the interpreters and for the emulator."""

from collections.abc import Mapping

import numpy as np

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.errors import RejectionError
from mirage_onnx.target import H200
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_steps import by_axes
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray

Arrays = Mapping[str, np.ndarray]


def named(region, values):
  return {
    i.name: NamedArray(by_axes(i, values[i.tensor.name], region.extents)[None], i.axes) for i in region.inputs
  }


def exactly(region, candidate, values):
  """ONNX output -> what the candidate's block graphs compute from ``values`` in float64."""
  program = candidate.ugraph, candidate.params, region.extents
  got = interpret_ugraph(Float64(), *program, named(region, values))
  return {
    o.tensor.name: got[o.name].aligned(o.axes)[0].reshape(_shape(o.tensor.shape)) for o in region.outputs
  }


def _shape(shape):
  return tuple(int(d) for d in shape or ())


def relative_error(got, want):
  """L2, over everything; below 1e-8 (programs of values near 1) a result is what cancelled."""
  norm = float(np.linalg.norm(want))
  return float(np.linalg.norm(np.asarray(got, np.float64) - want)) / max(norm, 1e-8)


def sources_of(region, candidate, name):
  """The kernels' CUDA text, or None where the code generator refuses with a reason."""
  try:
    return list(emit_candidate(candidate, region.extents, H200, name, region.runtime))
  except RejectionError:
    return None


def device_tensors(region, candidate, values):
  """Every tensor of the µGraph, laid out as its kernels read it; unwritten ones hold NaN."""
  source = {i.name: i for i in region.inputs}
  found = {}
  for t in candidate.ugraph.tensors:
    if t.name in source:
      i = source[t.name]
      data = by_axes(i, values[i.tensor.name], region.extents)
      order = [i.axes.index(a) for a in t.axes]
      found[t.name] = np.ascontiguousarray(data.transpose(order)).astype(t.dtype.numpy)
    else:
      shape = [region.extents[a] for a in t.axes]
      found[t.name] = np.full(shape, np.nan, np.float32).astype(t.dtype.numpy)
  return found


def device_outputs(region, tensors):
  return {o.tensor.name: tensors[o.name].reshape(_shape(o.tensor.shape)) for o in region.outputs}
