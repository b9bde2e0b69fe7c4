"""A model of 16-bit floats as the same graph in fp32.

onnxruntime's CPU provider computes fp16 models in fp32 and rounds where it likes: at graph outputs,
and elsewhere depending on what lies in functions. In fp32 it rounds after every node and nowhere
else, so two models are bit-identical there exactly if they do the same operations in the same
order. It has no bfloat16 kernels at all.
"""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
#: Attributes that hold an element type.
_TYPES = frozenset({"to", "dtype", "output_datatype"})


def widened(model):
    """``model`` with fp32 for every 16-bit float: values, types, casts, functions, subgraphs."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    _widen_graph(found.graph)
    for function in found.functions:
        _widen_values(function.value_info)
        _widen_nodes(function.node)
    return found


def _widen_graph(graph):
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for values in (graph.input, graph.output, graph.value_info):
        _widen_values(values)
    _widen_nodes(graph.node)


def _widen_values(values):
    for value in values:
        if value.type.tensor_type.elem_type in _HALF:
            value.type.tensor_type.elem_type = TensorProto.FLOAT


def _widen_nodes(nodes):
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i in _HALF:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t)
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                _widen_graph(graph)


def _widen_tensor(tensor):
    if tensor.data_type in _HALF:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
