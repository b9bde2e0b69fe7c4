"""Small models with one replaceable region each, and beside it what no kernel stands for.

Every model has ``h = relu(rms(x) W)`` in fp16, which ``optimize`` replaces for an H200. What stands
beside it is merged in from ``exotic/NAME`` of the packed texts, but for three that are made here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from golden_texts import texts_of
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from small_models import Net

ROWS, WIDTH = 8, 256
F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
TEXTS = texts_of("exotic")


@dataclass(frozen=True)
class Exotic:
  build: Callable[[], onnx.ModelProto]
  runs: bool = True


def with_region(extra=None, opset=21):
  net = Net(seed=3, opset=opset)
  hidden = net.Relu(net.MatMul(net.rms(net.input(ROWS, WIDTH)), net.weight(WIDTH, WIDTH)))
  model = net.model(hidden)
  if extra is not None:
    extra(model, hidden)
  return model


def _merged(name):
  return lambda model, _: model.MergeFrom(text_format.Parse(TEXTS[name], onnx.ModelProto()))


def _output(model, name, kind=F16):
  model.graph.output.append(typed(name, kind, None))


def _constant(model, name, value):
  model.graph.initializer.append(numpy_helper.from_array(value, name))
  return name


def _node(model, op, inputs, outputs, **kw):
  model.graph.node.append(helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **kw))


def quantized(model, h):
  """Quantize and back, a QLinearMatMul, and 4-bit weights in blocks."""
  _constant(model, "scale", np.float32(0.05))
  _constant(model, "zero", np.uint8(128))
  weight = np.random.default_rng(0).integers(0, 256, (WIDTH, 16)).astype(np.uint8)
  _constant(model, "wq", weight)
  _node(model, "Cast", [h], ["wide"], to=F32)
  _node(model, "QuantizeLinear", ["wide", "scale", "zero"], ["q"])
  quantity = ["q", "scale", "zero", "wq", "scale", "zero", "scale", "zero"]
  _node(model, "QLinearMatMul", quantity, ["qq"])
  _node(model, "DequantizeLinear", ["qq", "scale", "zero"], ["z"])
  packed = helper.make_tensor("w4", TensorProto.INT4, [16, 4], bytes(range(32)), raw=True)
  model.graph.initializer.append(packed)
  _constant(model, "scale4", np.linspace(0.5, 1, 16, dtype=np.float32).reshape(4, 4))
  _node(model, "DequantizeLinear", ["w4", "scale4"], ["w"], axis=0, block_size=4)
  _node(model, "MatMul", ["z", "w"], ["zz"])
  note = model.graph.quantization_annotation.add(tensor_name="z")
  note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
  _output(model, "zz", F32)


def old(model, h):
  """IR version 3 with initializers that are inputs: they may be fed."""
  model.ir_version = 3
  mean = next(n for n in model.graph.node if n.op_type == "ReduceMean")
  axes = next(t for t in model.graph.initializer if t.name == mean.input.pop())
  mean.attribute.append(helper.make_attribute("axes", numpy_helper.to_array(axes)))
  model.graph.initializer.remove(axes)
  for tensor in model.graph.initializer:
    model.graph.input.append(typed(tensor.name, tensor.data_type, tuple(tensor.dims)))
  assert model.graph.output[0].name == h


def decorated(model, h):
  """Everything a file may say that no node reads."""
  model.producer_name, model.producer_version = "exporter", "1.2"
  model.domain, model.model_version, model.doc_string = "org.example", 7, "model doc\nline 2"
  model.metadata_props.add(key="author", value="someone")
  graph = model.graph
  graph.doc_string = "graph doc"
  graph.metadata_props.add(key="g", value="h")
  graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
  graph.input[0].doc_string = "what comes in"
  for i, tensor in enumerate(graph.initializer):
    tensor.doc_string = f"weight {i}"
  _node(model, "Hardmax", [h], ["z"], doc_string="one hot")
  graph.node[-1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="line 12")
  for name in (graph.node[0].output[0], "z"):  # a value of the region, and one outside
    note = graph.quantization_annotation.add(tensor_name=name)
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="unused")
  _constant(model, "unused", np.arange(5))
  graph.value_info.append(typed("z", F16, (ROWS, WIDTH)))
  graph.value_info[-1].doc_string = "a value"
  graph.value_info[-1].metadata_props.add(key="v", value="i")
  model.opset_import.append(helper.make_opsetid("local", 1))
  twice = new_node("Add", "a a", "b")
  opsets = [helper.make_opsetid("", 21)]
  model.functions.append(
    helper.make_function("local", "Twice", ["a"], ["b"], [twice], opsets, overload="half")
  )
  model.functions[0].metadata_props.add(key="k", value="v")
  _node(model, "Twice", ["z"], ["zz"], domain="local", overload="half", doc_string="calls")
  graph.node[-1].metadata_props.add(key="n", value="twice")
  _output(model, "zz")


#: Name -> whether ONNX Runtime runs it.
_RUNS = {
  # An If whose branches read the region's result and a weight from outside.
  "branches": True,
  # A Loop that carries a value, scans one out and holds a weight of its own.
  "loop": True,
  "scan": True,
  # An If in an If in an If; the innermost reads the region's result.
  "nested": True,
  "sequences": True,
  "optional": True,
  # Text that is not ASCII, as weights and as attributes.
  "strings": True,
  "sparse": True,
  "quantized": True,
  # An empty weight joins the region's result, as exporters write an empty cache.
  "nothing": True,
  # Weights of types that numpy lacks, and complex numbers.
  "odd_types": False,
  # A function of the model that calls another, with an attribute given by reference.
  "function": True,
  # An operator nobody knows, with every type of attribute, bytes that are no text among them.
  "custom": False,
  # QuickGelu.
  "microsoft": True,
  # ai.onnx.ml's Normalizer.
  "classical": True,
  # Dropout that trains, an optimizer's operator, and training information.
  "training": False,
  # The region's weight is read by another node, and one lies unused.
  "shared": True,
  "old": True,
  "decorated": True,
}
_HERE = {"quantized": quantized, "old": old, "decorated": decorated}
EXOTIC = {
  n: Exotic(partial(with_region, _HERE.get(n) or _merged(n), 13 if n == "old" else 21), runs)
  for n, runs in _RUNS.items()
}
