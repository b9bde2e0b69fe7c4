"""What a graph makes of the sizes of its inputs, followed as polynomials of their names.

Exporters (TorchScript, above all) write down how a shape comes about: Shape, Gather, Equal, Where, Expand,
Range. onnx's inference follows some of that and calls the rest ``unk__5``, so what is one size has several
names, and nothing is fused across them. Here the values are computed as ``folding.py`` computes them where
they are numbers, with ``SizeSum`` for what only a run knows, and the shapes that follow are told to inference
(``inferring.py``). Each is a proof for every run that ends well: what a run decides is not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from mirage_onnx.importer.folding import GROWING, MOST_ELEMENTS, RULES
from mirage_onnx.importer.graph import domain_of
from mirage_onnx.importer.shapes import DTYPES, SMALL, has_schema
from mirage_onnx.importer.sized_shapes import SHAPES, Dim, Dims
from mirage_onnx.importer.sizes import SizeSum, UnsettledError, divided, is_count
from mirage_onnx.ir import DType, Tensor

#: Elements of a value with sizes in it, which takes Python a microsecond or more each, and of all of them.
MOST_SIZES, MOST_IN_ALL = 64, 1 << 15
#: What a rule may raise at what it does not follow, or at a node that would fail in a run.
_NOT_FOLLOWED = (
  ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, UnsettledError,
)  # fmt: skip
_INTEGERS = {TensorProto.INT64, TensorProto.INT32}
_FOLLOWED = frozenset({DType.I64, DType.I32, DType.BOOL})
_ELEMENT_TYPES = {dtype: kind for kind, dtype in DTYPES.items()}


def found_shapes(
  model: ModelProto,
  order: Sequence[int],
  opset: int,
  tensors: Mapping[str, Tensor],
  folded: Mapping[str, TensorProto],
  read: Callable[[TensorProto], np.ndarray],
) -> list[ValueInfoProto]:
  """Values of which more is known than ``tensors`` say: numbers, names of inputs' dimensions, sums of these.

  A product is left out: lowering makes it of what is reshaped (``symbols.py``).
  """
  graph = model.graph
  given = frozenset(d for i in graph.input for d in tensors[i.name].shape or () if isinstance(d, str))
  if not given:
    return []
  walk = _Walk(tensors, given, sizes_left=MOST_IN_ALL)
  inputs = {i.name for i in graph.input}
  for t in (*graph.initializer, *folded.values()):
    if DTYPES.get(t.data_type) in _FOLLOWED and prod(t.dims) <= SMALL and t.name not in inputs:
      walk.values[t.name] = _kept(read(t))
  local = {(f.domain, f.name) for f in model.functions}
  for i in order:
    node = graph.node[i]
    if has_schema(node, opset) and (domain_of(node), node.op_type) not in local:
      walk.visit(node)
  said = {d.dim_param for v in (*graph.value_info, *graph.output) for d in v.type.tensor_type.shape.dim}
  return [v for o in walk.dims if (v := _stated(tensors[o], walk.dims[o], given, said)) is not None]


@dataclass(slots=True)
class _Walk:
  """``values``: arrays of sizes and truth values; ``dims``: of results, where a rule knows them."""

  tensors: Mapping[str, Tensor]
  given: frozenset[str]
  values: dict[str, Any] = field(default_factory=lambda: {"": None})
  dims: dict[str, Dims] = field(default_factory=dict)
  left: int = MOST_ELEMENTS
  sizes_left: int = 0

  def visit(self, node: NodeProto) -> None:
    try:
      attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    except _NOT_FOLLOWED:
      return
    if (shape := SHAPES.get(node.op_type)) is not None and node.output and node.output[0] in self.tensors:
      with suppress(*_NOT_FOLLOWED):
        found = shape(self, node, attributes)
        self.dims[node.output[0]] = self._merged(self.shape(node.output[0]), found)
    if len(node.output) == 1 and node.output[0] not in self.values:
      with suppress(*_NOT_FOLLOWED):
        self._value(node, attributes)

  def value(self, name: str) -> list[Any]:
    """The elements of a vector, or of a scalar."""
    found: list[Any] = self.values[name].ravel().tolist()
    return found

  def shape(self, name: str) -> Dims | None:
    """The dimensions of a value; None for one of which nothing is known."""
    if name in self.dims:
      return self.dims[name]
    shape = self.tensors[name].shape
    if shape is None:
      return None
    return tuple(d if isinstance(d, int) else SizeSum.of(d) if d in self.given else None for d in shape)

  def _merged(self, have: Dims | None, found: Dims) -> Dims:
    if have is None or len(have) != len(found):
      return found
    return tuple(f if h is None else h for h, f in zip(have, found, strict=True))

  def _value(self, node: NodeProto, attributes: Mapping[str, Any]) -> None:
    name = node.output[0]
    kind = self.tensors[name].dtype if name in self.tensors else None
    rule = _RULES.get(node.op_type)
    if rule is None or kind not in _FOLLOWED:
      return
    if node.op_type == "Shape":
      dims = self.shape(node.input[0])
      if dims is None:
        return
      result = np.empty(len(dims), object)
      result[:] = dims
      result = result[attributes.get("start") : attributes.get("end")]
    else:
      operands = [self.values[i] for i in node.input]
      most = MOST_SIZES if any(map(_has_sizes, operands)) else SMALL
      if (grown := GROWING.get(node.op_type)) is not None and grown(attributes, operands) > most:
        return
      result = rule(attributes, *operands)
    if np.size(result) > min(SMALL, self.left):
      return
    self.left -= np.size(result)
    found = _kept(result)
    if _has_sizes(found):
      if found.size > min(MOST_SIZES, self.sizes_left):
        return
      self.sizes_left -= found.size
    self.values[name] = found


def _has_sizes(x: Any) -> bool:
  return isinstance(x, np.ndarray) and x.dtype.kind == "O"


def _kept(values: Any) -> np.ndarray:
  """Truth values and numbers as numpy has them; of objects where a ``SizeSum`` is among them."""
  array = np.asarray(values)
  if _has_sizes(array) and all(isinstance(v, int) for v in array.flat):
    return array.astype(np.int64)
  return array


def _cast(attributes: Mapping[str, Any], x: Any) -> Any:
  if attributes["to"] not in _INTEGERS:
    raise UnsettledError("a cast")
  return x if _has_sizes(x) else x.astype(np.int64)


def _div(_: Mapping[str, Any], a: Any, b: Any) -> Any:
  return np.frompyfunc(divided, 2, 1)(a, b)


_RULES: Mapping[str, Callable[..., Any]] = {
  **{op: rule for op, rule in RULES.items() if op not in ("Range", "Expand")},
  "Cast": _cast, "Div": _div,
}  # fmt: skip


def _stated(have: Tensor, found: Dims, given: frozenset[str], said: set[str]) -> ValueInfoProto | None:
  """``have`` with what was ``found``; None where that is no news."""
  old = have.shape
  if have.dtype is None or (old is not None and len(old) != len(found)):
    return None
  dims: list[int | str | None] = []
  news = old is None
  for axis, size in enumerate(found):
    known = None if old is None else old[axis]
    if isinstance(known, int) or known in given:
      dims.append(known)
      continue
    dims.append(_dim(size, said))
    news = news or (dims[-1] is not None and dims[-1] != known)
  return helper.make_tensor_value_info(have.name, _ELEMENT_TYPES[have.dtype], dims) if news else None


def _dim(size: Dim, said: set[str]) -> int | str | None:
  """As inference can be told it; ``said``: names that the file gives to other values."""
  if isinstance(size, int):
    return size if size >= 0 else None
  if not isinstance(size, SizeSum) or not is_count(size):
    return None
  if size.name is not None:
    return size.name
  text = str(size)
  return text if size.is_sum and text not in said else None
