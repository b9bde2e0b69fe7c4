"""What an exported graph says twice: left out of the committed forms, put in again on loading.

``value_info`` holds the types of the initializers, then those that ONNX's shape inference finds;
most nodes are named after their first output.
"""

import re

import onnx
from onnx import helper, shape_inference


def leave_out(model):
  """Clear what ``put_in`` makes again, in place; the model has its weights.

  Raises:
      ValueError: the exporter wrote something else there.
  """
  whole, again = onnx.ModelProto(), onnx.ModelProto()
  whole.CopyFrom(model)
  del model.graph.value_info[:]
  for node in model.graph.node:
    if node.name == _name(node):
      node.ClearField("name")
  again.CopyFrom(model)
  put_in(again)
  if again != whole:
    raise ValueError("types or names of nodes are not those that the rest of the graph implies")


def put_in(model):
  """Give nodes their names and values their types, in place; the model has its weights."""
  graph = model.graph
  for node in graph.node:
    node.name = node.name or _name(node)
  inferred = shape_inference.infer_shapes(model, data_prop=True).graph.value_info
  for tensor in graph.initializer:
    info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    graph.value_info.append(info)
  graph.value_info.extend(inferred)


def _name(node):
  numbered = re.fullmatch(r"val(_\d+)", node.output[0])
  return f"node_{node.op_type}{numbered[1]}" if numbered else f"node_{node.output[0]}"
