"""A model of 16-bit floats as the same graph in fp32.

onnxruntime's CPU provider computes fp16 models in fp32 and rounds where it likes: at graph outputs,
and elsewhere depending on what lies in functions. In fp32 it rounds after every node and nowhere
else, so two models are bit-identical there exactly if they do the same operations in the same
order. It has no bfloat16 kernels at all.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import read_tensor, size_bytes

#: The 16-bit float types of numpy.
HALF = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
#: Attributes that hold an element type.
_TYPES = frozenset({"to", "dtype", "output_datatype"})


#: A protobuf message has less than 2 GiB; some are for what is not a weight.
MOST_BYTES = 2**31 - 2**26


def run_widened(
  model: onnx.ModelProto, folder: Path | None, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """The outputs of ``widened`` on the CPU.

  Empty where onnxruntime does not run it, or it is too large for a protobuf message.
  """
  if 2 * sum(size_bytes(t) or 0 for t in model.graph.initializer) > MOST_BYTES:
    return {}
  wide = widened(model, folder).SerializeToString()
  try:
    session = open_session(wide, How("cpu", ep="none"), str(folder) if folder else None)
    return run_session(session, widened_values(feeds))
  except MirageError as error:
    if error.code != "SESSION_FAILED":
      raise
    return {}


def widened_values(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """``values`` as inputs of a widened model."""
  return {name: x.astype(np.float32) if x.dtype in HALF else x for name, x in values.items()}


def widened(model: onnx.ModelProto, folder: Path | None = None) -> onnx.ModelProto:
  """``model`` with fp32 for every 16-bit float: values, types, casts, functions, subgraphs.

  ``folder``: of its external data; what is widened of it is read.
  """
  found = onnx.ModelProto()
  found.CopyFrom(model)
  _widen_graph(found.graph, folder)
  for function in found.functions:
    _widen_values(function.value_info)
    _widen_nodes(function.node, folder)
  return found


def _widen_graph(graph: onnx.GraphProto, folder: Path | None) -> None:
  for tensor in graph.initializer:
    _widen_tensor(tensor, folder)
  for values in (graph.input, graph.output, graph.value_info):
    _widen_values(values)
  _widen_nodes(graph.node, folder)


def _widen_values(values: Iterable[onnx.ValueInfoProto]) -> None:
  for value in values:
    if value.type.tensor_type.elem_type in _HALF:
      value.type.tensor_type.elem_type = TensorProto.FLOAT


def _widen_nodes(nodes: Iterable[onnx.NodeProto], folder: Path | None) -> None:
  for node in nodes:
    for attribute in node.attribute:
      if attribute.name in _TYPES and attribute.i in _HALF:
        attribute.i = TensorProto.FLOAT
      if attribute.HasField("t"):
        _widen_tensor(attribute.t, folder)
      for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
        _widen_graph(graph, folder)


def _widen_tensor(tensor: TensorProto, folder: Path | None) -> None:
  if tensor.data_type in _HALF:
    values = read_tensor(tensor, folder).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
