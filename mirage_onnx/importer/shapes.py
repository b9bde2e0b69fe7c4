"""Types and shapes of every value, from onnx's inference on a copy without weights."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import (
  IR_VERSION,
  GraphProto,
  ModelProto,
  NodeProto,
  TensorProto,
  TypeProto,
  ValueInfoProto,
  defs,
  helper,
  numpy_helper,
)

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.constant_nodes import constant_nodes
from mirage_onnx.importer.declared_names import typed, with_names, without_names
from mirage_onnx.importer.external import MAX_ELEMENTS, MAX_RANK
from mirage_onnx.importer.graph import domain_of, label, nodes_of, subgraphs
from mirage_onnx.importer.other_shapes import shaped_otherwise
from mirage_onnx.importer.stand_ins import stand_ins
from mirage_onnx.ir import Dim, DType, Tensor
from mirage_onnx.onnx_process import Onnx, sentence

DTYPES: dict[int, DType] = {
  TensorProto.FLOAT16: DType.F16, TensorProto.BFLOAT16: DType.BF16,
  TensorProto.FLOAT: DType.F32, TensorProto.DOUBLE: DType.F64,
  TensorProto.INT32: DType.I32, TensorProto.INT64: DType.I64,
  TensorProto.BOOL: DType.BOOL, TensorProto.UINT8: DType.U8,
  TensorProto.INT8: DType.I8,
  TensorProto.UINT4: DType.U4, TensorProto.INT4: DType.I4,
  TensorProto.FLOAT8E4M3FN: DType.E4M3, TensorProto.FLOAT8E5M2: DType.E5M2,
}  # fmt: skip

#: Integer tensors up to this size stay in the copy: they may be shapes or axes.
SMALL = 1024
#: Beside a vector of more elements no values of shapes are followed through the graph.
LONG_VECTOR = 1 << 18
#: Where the copy puts operators that onnx does not know, so that its checks pass over them.
_UNCHECKED = "ai.mirage.unchecked"
#: First opset whose Squeeze and Unsqueeze count axes from the end, too.
_AXES_BELOW_0 = 11
#: Ends of slices that say "to the end".
_NO_END = frozenset({(1 << 31) - 1, (1 << 63) - 1})
#: Operators whose inference may end the process (onnx 1.23): where an input's type is not known, or
#: where an attribute counts fewer than no dimensions.
_CRASHING = frozenset({"EyeLike", "RegexFullMatch", "GatherND"})


def has_schema(node: NodeProto, opset: int) -> bool:
  return domain_of(node) == "" and defs.has(node.op_type, opset, "")


def ends_otherwise(end: Any, step: Any) -> bool:
  """Whether a slice is another one to ONNX Runtime than to ONNX: backwards to the largest number there is.

  To ONNX that is the last element, to ONNX Runtime "to the end", which is the first one.
  """
  whole = isinstance(step, (int, np.integer)) and isinstance(end, (int, np.integer))
  return whole and step < 0 and int(end) in _NO_END


def _ends_process(node: NodeProto) -> bool:
  """Whether inference of a node of ``_CRASHING`` is not safe, whatever its operands are."""
  return node.op_type != "GatherND" or any(a.name == "batch_dims" and a.i < 0 for a in node.attribute)


def check_nodes(model: ModelProto, opset: int, onnx: Onnx) -> None:
  """Arity and attributes of every node that onnx knows.

  Raises:
      MirageError: MODEL_INVALID, MODEL_LIMIT.
  """
  places, nodes = [], []
  for index, node in enumerate(model.graph.node):
    if node.op_type == "Constant" or subgraphs(node) or not has_schema(node, opset):
      continue
    plain = NodeProto()
    plain.CopyFrom(node)
    plain.domain = ""
    places.append(index)
    nodes.append(plain)
  found = onnx.first_invalid(nodes, opset, min(max(model.ir_version, 3), IR_VERSION))
  if found is not None:
    index, why = places[found[0]], sentence(found[1])
    raise MirageError("MODEL_INVALID", f"node {label(model.graph.node[index], index)}: {why}")


def infer(
  model: ModelProto,
  order: Sequence[int],
  opset: int,
  read: Callable[[TensorProto], np.ndarray],
  folded: Mapping[str, TensorProto],
  onnx: Onnx,
  more: Sequence[ValueInfoProto] = (),
  hidden: frozenset[str] = frozenset(),
) -> dict[str, Tensor]:
  """A Tensor for every named value of the graph; ``folded``: results that are known.

  ``more``: types that hold for values of which inference finds out less. ``hidden``: results of which it is
  told nothing.

  Declared shapes that contradict the operators are ignored, as ONNX Runtime does; declared
  element types and operators that contradict each other are errors.

  Raises:
      MirageError: MODEL_INVALID, MODEL_LIMIT.
  """
  light = _weight_free(model, order, opset, read, folded, hidden)
  _state(light.graph, more)
  inferred, problem = _attempt(light, onnx)
  if inferred is None:
    _forget_declared(light.graph, opset)
    inferred, problem = _attempt(light, onnx)
  if inferred is None and light.functions:
    del light.functions[:]
    inferred, problem = _attempt(light, onnx)
  if inferred is None:
    inferred, _ = _attempt(_weight_free(model, order, opset, read, folded, hidden, known=False), onnx)
  if inferred is None:
    raise MirageError("MODEL_INVALID", sentence(problem))
  graph = inferred.graph
  tensors = {o: Tensor(o, None, None) for n in model.graph.node for o in n.output if o}
  for value in (*graph.value_info, *graph.output, *graph.input):
    tensors[value.name] = _tensor(value.name, value.type)
  named = frozenset(
    d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param
  )
  tensors = with_names(tensors, (*model.graph.value_info, *model.graph.output), named)
  for t in (*model.graph.initializer, *folded.values()):
    tensors[t.name] = Tensor(t.name, DTYPES.get(t.data_type), tuple(t.dims))
  for tensor in tensors.values():
    if math.prod(d for d in tensor.shape or () if isinstance(d, int)) > MAX_ELEMENTS:
      raise MirageError(
        "MODEL_INVALID",
        f"the value {tensor.name!r} of shape {_shown(tensor)} fits into no memory",
      )
  if new := shaped_otherwise(model.graph, tensors) - hidden:
    return infer(model, order, opset, read, folded, onnx, more, hidden | new)
  return tensors


def _state(graph: GraphProto, more: Sequence[ValueInfoProto]) -> None:
  names = {v.name for v in more}
  values = {v.name: v for v in (*graph.output, *graph.value_info) if v.name in names}
  for value in more:
    (values.get(value.name) or graph.value_info.add()).CopyFrom(value)


def _shown(tensor: Tensor) -> str:
  dims = [str(d) for d in tensor.shape or ()]
  return "x".join([*dims[:8], *(["..."] if len(dims) > 8 else [])])


def _attempt(light: ModelProto, onnx: Onnx) -> tuple[ModelProto | None, str]:
  """Inference, with the values of shapes followed through the graph where that is cheap."""
  inferred, problem = onnx.inferred(light, strict=True, followed=False)
  if inferred is None or _has_long_vector(inferred.graph):
    return inferred, problem
  try:
    return onnx.inferred(light, strict=True, followed=True)
  except MirageError as error:
    if error.code != "MODEL_LIMIT":
      raise
    return inferred, ""  # it was not cheap


def _has_long_vector(graph: GraphProto) -> bool:
  """onnx follows any vector as if it were a shape: 200 bytes and 300 ns for every element."""
  values = (*graph.input, *graph.output, *graph.value_info)
  shapes = (v.type.tensor_type.shape.dim for v in values if v.type.HasField("tensor_type"))
  return any(len(s) == 1 and s[0].dim_value > LONG_VECTOR for s in shapes)


def _weight_free(
  model: ModelProto,
  order: Sequence[int],
  opset: int,
  read: Callable[[TensorProto], np.ndarray],
  folded: Mapping[str, TensorProto],
  hidden: frozenset[str],
  *,
  known: bool = True,
) -> ModelProto:
  """The copy; ``known``: with nodes of ONNX for what onnx does not know. ``hidden``: as of ``infer``."""
  light = ModelProto(ir_version=min(max(model.ir_version, 4), IR_VERSION))
  domains = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
  domains |= {"": opset, _UNCHECKED: 1}
  light.opset_import.extend(helper.make_opsetid(d, v) for d, v in domains.items())
  light.functions.extend(model.functions)
  source, graph = model.graph, light.graph
  graph.name = source.name or "graph"
  graph.input.extend(source.input)
  graph.output.extend(without_names(source.output))
  graph.value_info.extend(without_names(typed(source.value_info)))
  inputs = {i.name for i in source.input}
  for sparse in source.sparse_initializer:  # dense to every reader, as ONNX Runtime has it
    if sparse.values.name not in inputs:
      graph.input.append(
        helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, list(sparse.dims))
      )
  for t in source.initializer:
    if t.name not in inputs:
      _add_value(light, t.name, t, read)
  local = {(f.domain, f.name) for f in model.functions}
  stored = {t.name: t for t in source.initializer}
  stepping = any(n.op_type == "Slice" and len(n.input) > 4 for n in source.node)
  constants = {**stored, **constant_nodes(source.node), **folded} if stepping else {}
  for i in order:
    node = source.node[i]
    value = next((a.t for a in node.attribute if a.name == "value"), None)
    own = (node.domain, node.op_type) in local
    if node.op_type == "Constant" and value is not None and math.prod(value.dims) > SMALL:
      _add_value(light, node.output[0], value, read)
    elif node.output and (result := folded.get(node.output[0])) is not None:
      _add_value(light, node.output[0], result, read)
    elif (
      known and not own and hidden.isdisjoint(node.output)
      and (nodes := stand_ins(domain_of(node), node, stored)) is not None
    ):  # fmt: skip
      graph.node.extend(nodes)
    else:
      checked = has_schema(node, opset) or own
      otherwise = _counts_back(node, opset) or _slices_otherwise(node, constants, read)
      checked = checked and not otherwise and hidden.isdisjoint(node.output)
      copy = graph.node.add()
      if checked:
        copy.CopyFrom(node)
        copy.domain = domain_of(node)
      else:  # without its attributes: nobody looks at them, and those of trees are hundreds of megabytes
        copy.op_type, copy.name, copy.domain = node.op_type, node.name, _UNCHECKED
        copy.input.extend(node.input)
        copy.output.extend(node.output)
  for node in nodes_of(light.graph, *light.functions):
    if node.op_type in _CRASHING and node.domain in ("", "ai.onnx") and _ends_process(node):
      node.domain = _UNCHECKED
  for value in (*graph.input, *graph.value_info, *graph.output):
    for dim in value.type.tensor_type.shape.dim:
      if dim.dim_value < 0:  # as some exporters say that they do not know; onnx counts back with it
        dim.Clear()
  return light


def _counts_back(node: NodeProto, opset: int) -> bool:
  """Whether axes are below 0 in an opset that has none: ONNX Runtime takes them, onnx leaves them out."""
  moves = node.op_type in ("Squeeze", "Unsqueeze") and opset < _AXES_BELOW_0
  return moves and any(i < 0 for a in node.attribute if a.name == "axes" for i in a.ints)


def _slices_otherwise(
  node: NodeProto, constants: Mapping[str, TensorProto], read: Callable[[TensorProto], np.ndarray]
) -> bool:
  """Whether a slice ``ends_otherwise``, as far as its ends and steps are known."""
  if node.op_type != "Slice" or len(node.input) < 5:
    return False
  ends, steps = (constants.get(node.input[i]) for i in (2, 4))
  if ends is None or steps is None or max(math.prod(ends.dims), math.prod(steps.dims)) > SMALL:
    return False
  return any(map(ends_otherwise, read(ends).reshape(-1), read(steps).reshape(-1)))


def _add_value(
  light: ModelProto, name: str, tensor: TensorProto, read: Callable[[TensorProto], np.ndarray]
) -> None:
  """A small integer tensor by value, any other as an input of its type."""
  if tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and math.prod(tensor.dims) <= SMALL:
    light.graph.initializer.append(numpy_helper.from_array(read(tensor), name))
  else:
    light.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))


def _forget_declared(graph: GraphProto, opset: int) -> None:
  """Drop what the file says about values that inference can find out itself."""
  known = {o for n in graph.node if has_schema(n, opset) for o in n.output}
  kept: list[ValueInfoProto] = [v for v in graph.value_info if v.name not in known]
  del graph.value_info[:]
  graph.value_info.extend(kept)
  for output in graph.output:
    if output.name in known and output.type.HasField("tensor_type"):
      output.type.tensor_type.ClearField("shape")
  for inner in (g for node in graph.node for g in subgraphs(node)):
    _forget_declared(inner, opset)


def _tensor(name: str, type_: TypeProto) -> Tensor:
  if not type_.HasField("tensor_type"):
    return Tensor(name, None, None)
  dtype = DTYPES.get(type_.tensor_type.elem_type)
  if not type_.tensor_type.HasField("shape"):
    return Tensor(name, dtype, None)
  if len(type_.tensor_type.shape.dim) > MAX_RANK:
    return Tensor(name, dtype, None)  # as a vector of so many elements says; no array has them
  dims: list[Dim] = []
  for axis, d in enumerate(type_.tensor_type.shape.dim):
    if d.HasField("dim_value") and d.dim_value >= 0:
      dims.append(d.dim_value)
    else:
      dims.append(d.dim_param or f"{name}:{axis}")
  return Tensor(name, dtype, tuple(dims))
