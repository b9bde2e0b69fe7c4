"""Integers and truth values that constants and known shapes make, computed when loading.

Exporters that infer no shapes (TorchScript) write down how a shape comes about, from Shape to
ConstantOfShape, Equal and Where, which ONNX's inference does not follow. ONNX Runtime folds it too.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from mirage_onnx.importer.shapes import DTYPES, SMALL, ends_otherwise, has_schema
from mirage_onnx.ir import DType, Tensor

#: Bytes of a result: what every reader can take along as a constant (``rewrite.body``).
LARGEST = 1024
#: Elements of all values that are held together: no shape of a real model takes a thousandth.
MOST_ELEMENTS = 1 << 20
_TYPES = frozenset({DType.I64, DType.I32, DType.BOOL})


def fold(
  model: ModelProto,
  order: Sequence[int],
  opset: int,
  tensors: Mapping[str, Tensor],
  read: Callable[[TensorProto], np.ndarray],
) -> dict[str, TensorProto]:
  """The results of nodes that are the same in every run, of at most ``LARGEST`` bytes.

  ``tensors``: the shapes known so far. A node that would fail is left to the run, and so is one of
  a large result: its size is known before it is computed.
  """
  found: dict[str, TensorProto] = {}
  values: dict[str, Any] = {"": None}
  left = MOST_ELEMENTS
  inputs = {i.name for i in model.graph.input}
  for t in model.graph.initializer:
    if DTYPES.get(t.data_type) in _TYPES and prod(t.dims) <= SMALL and t.name not in inputs:
      values[t.name] = read(t)
  local = {f.name for f in model.functions}
  for node in (model.graph.node[i] for i in order):
    rule = RULES.get(node.op_type)
    if rule is None or node.op_type in local or not has_schema(node, opset):
      continue
    if node.op_type == "Constant" and any(prod(a.t.dims) > SMALL for a in node.attribute):
      continue  # before its elements are read
    try:
      given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
      if rule is _shape:
        result = _shape(given, tensors[node.input[0]])
      else:
        operands = [values[i] for i in node.input]
        if (grown := GROWING.get(node.op_type)) is not None and grown(given, operands) > SMALL:
          continue
        result = rule(given, *operands)
      if np.size(result) > min(SMALL, left):
        continue
      left -= np.size(result)
      tensor = numpy_helper.from_array(np.array(result), node.output[0])
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
      continue  # RuntimeError: an attribute of another type than its operator's, too many dimensions
    if tensor.name and DTYPES.get(tensor.data_type) in _TYPES:
      values[tensor.name] = numpy_helper.to_array(tensor)
      if node.op_type != "Constant" and len(tensor.raw_data) <= LARGEST:
        found[tensor.name] = tensor
  return found


def _shape(given: Mapping[str, Any], x: Tensor) -> np.ndarray:
  if not x.is_static:
    raise ValueError(x.name)
  return np.array(x.shape, np.int64)[given.get("start") : given.get("end")]


def _slice(given: Mapping[str, Any], x: Any, *bounds: Any) -> Any:
  if "starts" in given:  # before opset 10
    bounds = given["starts"], given["ends"], given.get("axes")
  starts, ends, axes, steps = (*bounds, None, None)[:4]
  parts = [slice(None)] * x.ndim
  axes = np.arange(len(starts)) if axes is None else axes
  steps = np.ones_like(starts) if steps is None else steps
  for axis, *part in zip(axes, starts, ends, steps, strict=True):
    if ends_otherwise(part[1], part[2]):
      raise ValueError("an end that readers understand in two ways")
    parts[axis] = slice(*part)
  return x[tuple(parts)]


def _axes(given: Mapping[str, Any], axes: Any) -> Any:
  """Of an input, before opset 13 of an attribute."""
  axes = given.get("axes", axes)
  return None if axes is None else tuple(axes)


def _reshape(given: Mapping[str, Any], x: Any, shape: Any) -> Any:
  if not given.get("allowzero"):
    shape = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
  return x.reshape(shape)


def _range(_: Any, start: Any, limit: Any, delta: Any) -> Any:
  values = range(int(start), int(limit), int(delta))
  if len(values) > SMALL:
    raise ValueError("a long range")
  return np.array(values, start.dtype)


def _filled(given: Mapping[str, Any], shape: Any) -> Any:
  if "value" not in given:
    raise ValueError("of floats")
  return np.broadcast_to(numpy_helper.to_array(given["value"]).reshape(()), shape)


def _divide(_: Any, a: Any, b: Any) -> Any:
  if (a < 0).any() or (b <= 0).any():
    raise ValueError("rounded in another direction, or none")
  return a // b


def _stored(given: Mapping[str, Any]) -> Any:
  ((name, value),) = given.items()
  return numpy_helper.to_array(value) if name == "value" else np.array(value)


_PLAIN: dict[str, Callable[..., Any]] = {
  "Identity": np.array, "Where": np.where, "Not": np.logical_not,
  "Add": np.add, "Sub": np.subtract, "Mul": np.multiply,
  "And": np.logical_and, "Or": np.logical_or, "Equal": np.equal,
  "Less": np.less, "LessOrEqual": np.less_equal,
  "Greater": np.greater, "GreaterOrEqual": np.greater_equal,
}  # fmt: skip
RULES: dict[str, Callable[..., Any]] = {
  "Shape": _shape, "Slice": _slice, "Reshape": _reshape, "Range": _range, "Div": _divide,
  "Constant": _stored, "ConstantOfShape": _filled,
  "Cast": lambda a, x: x.astype(helper.tensor_dtype_to_np_dtype(a["to"])),
  "Concat": lambda a, *x: np.concatenate(x, a["axis"]),
  "Expand": lambda _, x, s: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(s))),
  "Gather": lambda a, x, i: np.take(x, i, a.get("axis", 0)),
  "Squeeze": lambda a, x, axes=None: np.squeeze(x, _axes(a, axes)),
  "Unsqueeze": lambda a, x, axes=None: np.expand_dims(x, _axes(a, axes)),
  "Transpose": lambda a, x: np.transpose(x, a.get("perm")),
  **{name: lambda _, *x, f=f: f(*x) for name, f in _PLAIN.items()},
}  # fmt: skip


def _broadcast(_: Mapping[str, Any], operands: Sequence[Any]) -> int:
  return prod(np.broadcast_shapes(*(x.shape for x in operands)))


def _rows(given: Mapping[str, Any], operands: Sequence[Any]) -> int:
  x, rows = operands
  return int(x.size // max(1, x.shape[given.get("axis", 0)]) * rows.size)


#: Elements of a result, of rules that make more of their operands than those have; ``_range`` looks
#: itself, and ConstantOfShape and Expand repeat what they have in no memory.
GROWING: dict[str, Callable[[Mapping[str, Any], Sequence[Any]], int]] = {
  **dict.fromkeys((*_PLAIN, "Div"), _broadcast),
  "Concat": lambda _, parts: sum(map(np.size, parts)),
  "Gather": _rows,
}
