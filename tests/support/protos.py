"""ONNX protos in few words."""

from onnx import helper

typed = helper.make_tensor_value_info


def new_node(op, inputs, outputs, **attributes):
  return helper.make_node(op, inputs.split(), outputs.split(), **attributes)
