"""When a run of a decoder is a step: made of the shapes of its inputs, by few nodes.

The host runs them before everything else, so each of them is in the time of a step, and of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from mirage_onnx.importer.constant_nodes import constant_nodes
from mirage_onnx.importer.graph import dims_of

if TYPE_CHECKING:
  from mirage_onnx.importer.steps_apart import StepDecoder


def condition(d: StepDecoder, graph: GraphProto, fresh: Callable[[str], str]) -> list[NodeProto]:
  """Of shapes: one token is new, of as many sequences, and the cache has room for it.

  The host runs these nodes before each step, so there are few: the product of dimensions that are 1 in a
  step is 1, and all together no longer than the cache, which may be one of some size only.
  """
  made = []

  def add(op: str, *inputs: str, **attributes: Any) -> str:
    output = fresh(f"steps/{op}")
    made.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
    return output

  def number(value: int) -> str:
    tensor = helper.make_tensor("", TensorProto.INT64, [1], [value])
    return add("Constant", value=tensor)

  def size(value: str, axis: int) -> str:
    return add("Shape", value, start=axis, end=axis + 1)

  inputs = {v.name: dims_of(v) for v in graph.input}
  places = {
    name: next((v, dims.index(name)) for v, dims in inputs.items() if name in dims) for name in d.fixed
  }
  ones = [places[name] for name, n in sorted(d.fixed.items()) if n == 1]
  (first, _), *_ = ones  # of new tokens there is one
  if {axis for v, axis in ones if v == first} == {*range(len(inputs[first]))} and {v for v, _ in ones} == {
    first
  }:
    count = add("ReduceProd", add("Shape", first), keepdims=0)  # no Size: the host would wait for a GPU's
  else:
    count = size(*ones[0])
    for place in ones[1:]:
      count = add("Mul", count, size(*place))
  room, most = size(d.past, 2), None if d.rows is None else number(d.rows)
  length = _length(d, graph, add, number)
  holds = add("And", add("LessOrEqual", length, most or room), add("Equal", count, number(1)))
  if most is not None:
    holds = add("And", holds, add("Equal", room, most))
  for name, n in sorted(d.fixed.items()):
    if n != 1:
      holds = add("And", holds, add("Equal", size(*places[name]), number(n)))
  return made


def _length(d: StepDecoder, graph: GraphProto, add: Callable[..., str], number: Callable[[int], str]) -> str:
  """How long all is together, of one element: as the model makes it, or sooner."""
  stored = constant_nodes(graph.node)
  if _is_of_one_shape(d) and not d.total[0].attribute:
    shape, taken, _ = d.total
    index = stored.get(taken.input[1])
    if index is not None and taken.input[0] == shape.output[0] and index.data_type == TensorProto.INT64:
      values = numpy_helper.to_array(index).reshape(-1)
      if len(values) == 1 and values[0] >= 0:
        return add("Shape", shape.input[0], start=int(values[0]), end=int(values[0]) + 1)
  own = {}
  for i in dict.fromkeys(i for n in d.total for i in n.input if i in stored):
    own[i] = add("Constant", value=stored[i])
  for n in d.total:
    own[n.output[0]] = add(n.op_type, *(own.get(i, i) for i in n.input), **{
      a.name: helper.get_attribute_value(a) for a in n.attribute
    })  # fmt: skip
  return add("Reshape", add("Cast", own[d.length], to=TensorProto.INT64), number(1))


def _is_of_one_shape(d: StepDecoder) -> bool:
  """Whether the total length is a dimension that is taken from a shape."""
  return [n.op_type for n in d.total] == ["Shape", "Gather", "Cast"]
