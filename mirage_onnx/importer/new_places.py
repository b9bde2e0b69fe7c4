"""Where several new tokens of GroupQueryAttention go: nodes that make rows of cosines and sines of lengths.

The operator turns them by their places, which no tensor names: of n tokens the last is in row ``lengths[b]``,
or the first in row 0 where there are not as many. A region reads rows that a tensor names. So the two nodes
of such an operator (``split_caches.py``) get these places as its ``position_ids``, which mean the same to
it; what kernels do not replace loses them again. What writes a cache takes those of each token by themselves.
"""

from collections.abc import Callable, Iterable

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from mirage_onnx.importer.causal import MOST_NEW
from mirage_onnx.importer.marks import mark_of, without_marks

_MARK = "pkg.mirage_onnx.places"
_QUERY, _LENGTHS, _POSITIONS = 0, 5, 9


class NewPlaces:
  """Adds such nodes to ``made``, once for the same lengths; ``source``: the graph with types of values."""

  def __init__(self, made: GraphProto, source: GraphProto, fresh: Callable[[str], str]) -> None:
    self._made, self._fresh = made, fresh
    self._known = {v.name: v for v in (*source.input, *source.value_info, *source.output)}
    self._found: dict[tuple[str, int], str] = {}

  def of(self, node: NodeProto) -> str:
    """The tensor of the places of a node's new tokens, whose nodes are added; "" where it needs none."""
    turns = any(a.name == "do_rotary" and a.i for a in node.attribute)
    has_own = len(node.input) > _POSITIONS and node.input[_POSITIONS]
    new = self._new(node)
    if not turns or has_own or not 1 < new <= MOST_NEW:
      return ""
    key = node.input[_LENGTHS], new
    if key not in self._found:
      self._found[key] = self._add(*key)
    return self._found[key]

  def _new(self, node: NodeProto) -> int:
    value = self._known.get(node.input[_QUERY])
    dims = [] if value is None else [*value.type.tensor_type.shape.dim]
    return dims[1].dim_value if len(dims) == 3 else 0

  def _add(self, lengths: str, new: int) -> str:
    """max(lengths - (new - 1), 0) + 0, 1, 2, .. by (batch, new), and those of each token by (batch, 1)."""
    made = self._fresh(f"{lengths}/places")

    def add(op: str, *inputs: str, named: str = "", **attributes: int) -> str:
      name = named or self._fresh(f"{made}/{op}")
      node = self._made.node.add(op_type=op, input=inputs, output=[name], name=name)
      node.metadata_props.add(key=_MARK, value="made")
      for key, value in attributes.items():
        node.attribute.add(name=key, type=2, i=value)
      return name

    def constant(values: object) -> str:
      name = add("Constant")
      tensor = numpy_helper.from_array(np.array(values, np.int64), "")
      self._made.node[-1].attribute.add(name="value", type=4, t=tensor)
      return name

    column = add("Reshape", add("Cast", lengths, to=TensorProto.INT64), constant([-1, 1]))
    first = add("Max", add("Sub", column, constant([new - 1])), constant([0]))
    own = [add("Add", first, constant([i]), named=self._fresh(place_of(made, i))) for i in range(new)]
    return add("Concat", *own, named=made, axis=1)


def place_of(places: str, token: int) -> str:
  """The tensor of the places of one token of each sequence."""
  return f"{places}/{token}"


def given_places(part: NodeProto, places: str) -> None:
  """Lets a part of a node read its places."""
  part.input.extend([""] * (_POSITIONS + 1 - len(part.input)))
  part.input[_POSITIONS] = places
  part.metadata_props.add(key=_MARK, value="given")


def are_given(node: NodeProto) -> bool:
  """Whether the positions of a node are such places."""
  return mark_of(node, _MARK) == "given"


def read_of(node: NodeProto) -> list[str]:
  """The inputs of a node but these places, without which it is the same."""
  found = ["" if i == _POSITIONS and are_given(node) else x for i, x in enumerate(node.input)]
  while found and not found[-1]:
    found.pop()
  return found


def without_places(graph: GraphProto) -> None:
  """Takes the places from nodes that have them still, and what makes those that nothing reads then."""
  for node in filter(are_given, graph.node):
    own = read_of(node)
    del node.input[:]
    node.input.extend(own)
  for at in reversed(range(len(graph.node))):
    node = graph.node[at]
    if _is_made(node) and node.output[0] not in _read(graph.node):
      del graph.node[at]
  without_marks(graph.node, _MARK)


def _is_made(node: NodeProto) -> bool:
  return mark_of(node, _MARK) == "made"


def _read(nodes: Iterable[NodeProto]) -> set[str]:
  return {i for n in nodes for i in n.input}
