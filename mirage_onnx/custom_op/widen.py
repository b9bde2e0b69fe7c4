"""A model of 16-bit floats as the same graph in fp32.

onnxruntime's CPU provider computes fp16 models in fp32 and rounds where it likes: at graph outputs,
and elsewhere depending on what lies in functions. In fp32 it rounds after every node and nowhere
else, so two models are bit-identical there exactly if they do the same operations in the same
order. It has no bfloat16 kernels at all. ``rounded`` rounds after every node as the types say: what
the model is by its definition, to the overflow.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.custom_op.model_run import How, open_session, run_session
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import read_tensor, weight_bytes

#: Element type -> the one that takes its place.
Kinds = Mapping[int, int]

#: The 16-bit float types of numpy.
HALF = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})
_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_TO_FLOAT: Kinds = dict.fromkeys(_HALF, TensorProto.FLOAT)
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
  if is_too_wide(model):
    return {}
  return _run(widened(model, folder), folder, feeds)


def run_rounded(
  model: onnx.ModelProto, folder: Path | None, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """The outputs of ``rounded`` on the CPU, in fp32; empty as ``run_widened``."""
  return {} if is_too_wide(model) else _run(rounded(model, folder), folder, feeds)


def is_too_wide(model: onnx.ModelProto) -> bool:
  """Whether ``model`` in fp32 may not fit a protobuf message."""
  return 2 * weight_bytes(model) > MOST_BYTES


def has_halves(model: onnx.ModelProto) -> bool:
  """Whether a value or weight of the main graph is a 16-bit float, as far as its types are stated."""
  graph = model.graph
  kinds = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
  return not _HALF.isdisjoint(kinds | {t.data_type for t in graph.initializer})


def _run(
  wide: onnx.ModelProto, folder: Path | None, feeds: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  try:
    session = open_session(wide.SerializeToString(), How("cpu", ep="none"), str(folder) if folder else None)
    return run_session(session, widened_values(feeds))
  except MirageError as error:
    if error.code != "SESSION_FAILED":
      raise
    return {}


def widened_values(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """``values`` as inputs of a widened model."""
  return {name: x.astype(np.float32) if x.dtype in HALF else x for name, x in values.items()}


def widened(model: onnx.ModelProto, folder: Path | None = None, kinds: Kinds = _TO_FLOAT) -> onnx.ModelProto:
  """``model`` with fp32 for every 16-bit float: values, types, casts, functions, subgraphs.

  ``folder``: of its external data; what is widened of it is read. ``kinds``: other types instead.
  """
  found = onnx.ModelProto()
  found.CopyFrom(model)
  _widen_graph(found.graph, folder, kinds)
  for function in found.functions:
    _widen_values(function.value_info, kinds)
    _widen_nodes(function.node, folder, kinds)
  return found


#: Norms of a sum that is their fourth output where they have it -> the input of its bias.
_SUMMED = {
  ("com.microsoft", "SkipLayerNormalization"): 4, ("com.microsoft", "SkipSimplifiedLayerNormalization"): 3,
}  # fmt: skip


def rounded(model: onnx.ModelProto, folder: Path | None = None) -> onnx.ModelProto:
  """``widened``, with every 16-bit float that a node of the main graph makes rounded to its type.

  Beyond the type it is an infinity. A value without a type that is known is left in fp32, and so is
  what lies in functions and subgraphs. A norm that also makes the sum that it is of reads it rounded.
  """
  found = widened(model, folder)
  halves = {name: kind for name, kind in value_kinds(model).items() if kind in _HALF}
  read = halves | {v.name: kind for v in model.graph.input if (kind := v.type.tensor_type.elem_type) in _HALF}
  nodes = list(found.graph.node)
  del found.graph.node[:]
  for node in nodes:
    if (bias := _SUMMED.get((node.domain, node.op_type))) and len(node.output) > 3 and node.output[3]:
      kinds = [read[x] for x in (*node.input[:2], *node.output) if x in read]
      found.graph.node.extend(_sum_before(node, bias, kinds[0]) if kinds else ())
    found.graph.node.append(node)
    made = found.graph.node[-1]
    for k, name in enumerate(node.output):
      if name in halves:
        made.output[k] = f"{name}/wide"
        found.graph.node.extend((
          helper.make_node("Cast", [f"{name}/wide"], [f"{name}/half"], to=halves[name]),
          helper.make_node("Cast", [f"{name}/half"], [name], to=TensorProto.FLOAT),
        ))  # fmt: skip
  return found


def _sum_before(node: onnx.NodeProto, bias: int, kind: int) -> list[onnx.NodeProto]:
  """The sum of a norm, rounded; ``node`` gets it as its first input, and zero (or NaN) as its second."""
  at = f"{node.output[3]}/sum"
  terms = [x for x in (*node.input[:2], *node.input[bias : bias + 1]) if x]
  made = [helper.make_node("Add", terms[:2], [at])]
  if len(terms) > 2:
    made.append(helper.make_node("Add", [at, terms[2]], [at := f"{at}/biased"]))
    node.input[bias] = ""
  made += [
    helper.make_node("Cast", [at], [f"{at}/half"], to=kind),
    helper.make_node("Cast", [f"{at}/half"], [f"{at}/rounded"], to=TensorProto.FLOAT),
    helper.make_node("Sub", [f"{at}/rounded"] * 2, [f"{at}/zero"]),
  ]
  node.input[0], node.input[1] = f"{at}/rounded", f"{at}/zero"
  return made


def value_kinds(model: onnx.ModelProto) -> dict[str, int]:
  """The element types of the values of the main graph that nodes make, as far as onnx infers them."""
  try:
    typed = onnx.shape_inference.infer_shapes(model)
  except Exception:  # onnx has several classes for what it cannot infer, and no common base
    typed = model
  values = (*typed.graph.value_info, *typed.graph.output)
  return {v.name: v.type.tensor_type.elem_type for v in values}


def _widen_graph(graph: onnx.GraphProto, folder: Path | None, kinds: Kinds) -> None:
  for tensor in graph.initializer:
    _widen_tensor(tensor, folder, kinds)
  for values in (graph.input, graph.output, graph.value_info):
    _widen_values(values, kinds)
  _widen_nodes(graph.node, folder, kinds)


def _widen_values(values: Iterable[onnx.ValueInfoProto], kinds: Kinds) -> None:
  for value in values:
    if value.type.tensor_type.elem_type in kinds:
      value.type.tensor_type.elem_type = kinds[value.type.tensor_type.elem_type]


def _widen_nodes(nodes: Iterable[onnx.NodeProto], folder: Path | None, kinds: Kinds) -> None:
  for node in nodes:
    for attribute in node.attribute:
      if attribute.name in _TYPES and attribute.i in kinds:
        attribute.i = kinds[attribute.i]
      if attribute.HasField("t"):
        _widen_tensor(attribute.t, folder, kinds)
      for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
        _widen_graph(graph, folder, kinds)


def _widen_tensor(tensor: TensorProto, folder: Path | None, kinds: Kinds) -> None:
  if tensor.data_type in kinds:
    dtype = helper.tensor_dtype_to_np_dtype(kinds[tensor.data_type])
    values = read_tensor(tensor, folder).astype(dtype)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
