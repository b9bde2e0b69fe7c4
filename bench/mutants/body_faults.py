"""Wrong function bodies: what runs where the library is not."""

from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from mutants.harness import Fault
from mutants.hooks import changed
from mutants.survey import BODIES, survey


def faults(bench, subject):
  """Every wrong body of a subject."""
  for k, body in enumerate(survey(bench, subject).bodies):
    data = body.SerializeToString()
    for name, new in _mutants(body):
      plant = partial(changed, partial(_is, data), partial(_other, new.SerializeToString()), *BODIES)
      yield Fault("body", subject, f"{k} {name}", plant)


def _is(data, body):
  return body.function.SerializeToString() == data


def _other(data, body):
  return replace(body, function=onnx.FunctionProto.FromString(data))


def _copy(body):
  found = onnx.FunctionProto()
  found.CopyFrom(body)
  return found


_SWAPS = {
  "Relu": "Abs", "Sigmoid": "Tanh", "Tanh": "Sigmoid", "Softmax": "LogSoftmax", "Mul": "Add", "Add": "Mul",
  "Div": "Mul", "Sqrt": "Exp", "ReduceMean": "ReduceSum", "Sub": "Add",
}  # fmt: skip
#: A value that a stand-in reader reads is computed for nobody.
_READERS = ("Flatten", "Size")
#: Nor what a body gives for the workspace, in any shape.
_WORKSPACE = ("workspace", "workspace_shape")


def _mutants(body):
  read = {name for node in body.node if node.op_type not in _READERS for name in node.input}
  for i, node in enumerate(body.node):
    if node.op_type in _READERS or not ({*node.output} & (read | {*body.output}) - {*_WORKSPACE}):
      continue
    where = f"{i} {node.op_type}"
    if node.op_type in _SWAPS:
      new = _copy(body)
      new.node[i].op_type = _SWAPS[node.op_type]
      yield f"{where} is {_SWAPS[node.op_type]}", new
    if node.op_type == "Cast":
      new = _copy(body)
      new.node[i].op_type = "Identity"
      del new.node[i].attribute[:]
      yield f"{where} is dropped", new
    if len(node.input) == 2 and node.input[0] != node.input[1] and node.op_type not in ("Add", "Mul"):
      new = _copy(body)
      new.node[i].input[:] = list(node.input)[::-1]
      yield f"{where}: its inputs change places", new
    if len(node.input) == 2:
      new = _copy(body)
      new.node[i].input[1] = node.input[0]
      yield f"{where}: one input twice", new
    for j, attribute in enumerate(node.attribute):
      yield from _attributes(body, i, j, attribute, where)
  if len(body.output) > 1 and "workspace" not in body.output:
    new = _copy(body)
    new.output[:] = list(body.output)[::-1]
    yield "outputs change places", new
  if len(body.input) > 2:
    new = _copy(body)
    new.input[:] = [body.input[0], body.input[2], body.input[1], *body.input[3:]]
    yield "two formals change places", new
  for domain in range(len(body.opset_import)):
    new = _copy(body)
    new.opset_import[domain].version -= 13
    yield "an older opset", new


def _attributes(body, i, j, attribute, where):
  new = _copy(body)
  changed_ = new.node[i].attribute[j]
  if attribute.name in ("epsilon", "alpha", "beta"):
    changed_.f = attribute.f * 3 + 0.5
  elif attribute.name in ("axis", "keepdims", "transB", "transA"):
    changed_.i = {"axis": 0}.get(attribute.name, 1 - attribute.i)
  elif attribute.name == "perm":
    changed_.ints[:] = list(range(len(attribute.ints)))
  elif attribute.name == "value" and attribute.t.data_type in (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
  ):
    array = numpy_helper.to_array(attribute.t)
    changed_.t.CopyFrom(numpy_helper.from_array((array * 3 + 0.5).astype(array.dtype)))
  elif attribute.name == "value" and attribute.t.data_type == onnx.TensorProto.INT64:
    array = numpy_helper.to_array(attribute.t)
    changed_.t.CopyFrom(numpy_helper.from_array(np.where(array == 0, 1, array - 1)))
  else:
    return
  yield f"{where}: another {attribute.name}", new
