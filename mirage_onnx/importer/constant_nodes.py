"""The values of Constant nodes."""

from collections.abc import Iterable

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from mirage_onnx.importer.graph import domain_of


def constant_nodes(nodes: Iterable[NodeProto]) -> dict[str, TensorProto]:
  """Output -> value, of the Constants among ``nodes``."""
  made = ((n, constant_node(n)) for n in nodes if n.op_type == "Constant" and n.output)
  return {n.output[0]: value for n, value in made if value is not None}


def constant_node(node: NodeProto) -> TensorProto | None:
  """The tensor of a Constant node, or None for sparse and string values."""
  if domain_of(node) != "" or len(node.attribute) != 1:
    return None
  a = node.attribute[0]
  match a.name:
    case "value":
      return a.t
    case "value_float":
      return numpy_helper.from_array(np.array(a.f, np.float32))
    case "value_floats":
      return numpy_helper.from_array(np.array(a.floats, np.float32))
    case "value_int":
      return numpy_helper.from_array(np.array(a.i, np.int64))
    case "value_ints":
      return numpy_helper.from_array(np.array(a.ints, np.int64))
  return None
