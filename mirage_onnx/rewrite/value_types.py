"""Element types and shapes of a model's values, inferred without touching its weights."""

from collections.abc import Iterable, Mapping

import onnx

from mirage_onnx.importer.graph import domain_of
from mirage_onnx.importer.stand_ins import stand_ins
from mirage_onnx.ir.program import Tensor
from mirage_onnx.onnx_process import Onnx
from mirage_onnx.rewrite.replacement import internal


def types_of(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, onnx.TypeProto]:
  """The types of ``names``: as the model states them, else by ONNX shape inference.

  Raises:
      MirageError: INTERNAL where an element type cannot be found: ONNX Runtime refuses a custom
          node whose outputs have none. MODEL_INVALID, MODEL_LIMIT of ``Onnx``.
  """
  wanted = dict.fromkeys(names)
  known = _stated(model.graph)
  for declared in (True, False):  # inference ends at a size that is none, ONNX Runtime passes over it
    if all(name in known for name in wanted):
      break
    inferred, _ = Onnx().inferred(_weightless(model, declared=declared), strict=False, followed=False)
    if inferred is not None:
      known = _stated(inferred.graph) | known
  missing = [name for name in wanted if name not in known]
  if missing:
    raise internal(f"the element type of {missing[0]!r} is unknown")
  return {name: known[name] for name in wanted}


def forget_contradicted(graph: onnx.GraphProto, tensors: Mapping[str, Tensor]) -> None:
  """Declare no size of a value that is none of its sizes.

  ONNX Runtime takes such a size, of an output that was exported at another batch, as not said. Of a custom
  node it knows no other, and our library refuses a node that is declared as its plan is not.
  """
  for value in (*graph.value_info, *graph.output):
    known, declared = tensors.get(value.name), value.type.tensor_type
    if known is None or known.shape is None or not declared.HasField("shape"):
      continue
    if len(declared.shape.dim) != len(known.shape):  # without a shape, onnx lets nothing be an output
      del declared.shape.dim[:]
      declared.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in known.shape)
    for dim, size in zip(declared.shape.dim, known.shape, strict=True):
      if isinstance(size, int) and dim.HasField("dim_value") and dim.dim_value != size:
        dim.Clear()


def _stated(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
  values = (*graph.input, *graph.value_info, *graph.output)
  return {v.name: v.type for v in values if v.type.tensor_type.elem_type}


def _weightless(model: onnx.ModelProto, *, declared: bool) -> onnx.ModelProto:
  """The model with the data of its larger initializers declared as external; ``declared``: and its sizes.

  What onnx does not know has nodes in its place that it does.

  Shape inference reads only small integer tensors (shapes, axes); a proto with the weights in it
  may be too large to be handed over at all (2 GB).
  """
  bare = onnx.ModelProto(ir_version=model.ir_version)
  bare.opset_import.extend(model.opset_import)
  bare.functions.extend(model.functions)
  for field in ("input", "output"):
    getattr(bare.graph, field).extend(getattr(model.graph, field))
  stored = {t.name: t for t in model.graph.initializer}
  own = {(f.domain, f.name) for f in model.functions}
  for node in model.graph.node:
    known = None if (node.domain, node.op_type) in own else stand_ins(domain_of(node), node, stored)
    bare.graph.node.extend([node] if known is None else known)
  # One that says of a tensor that it is none would stand in the way.
  bare.graph.value_info.extend(v for v in model.graph.value_info if v.type.tensor_type.elem_type)
  if not declared:
    for value in (*bare.graph.value_info, *bare.graph.output):
      value.type.tensor_type.ClearField("shape")
  bare.graph.name = model.graph.name
  for tensor in model.graph.initializer:
    small = tensor.ByteSize() <= 4096
    if small and tensor.data_location != onnx.TensorProto.EXTERNAL:
      bare.graph.initializer.add().CopyFrom(tensor)
    else:
      bare.graph.initializer.add(
        name=tensor.name,
        dims=tensor.dims,
        data_type=tensor.data_type,
        data_location=onnx.TensorProto.EXTERNAL,
      )
  return bare
