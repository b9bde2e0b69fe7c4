"""GroupQueryAttention as two nodes: what writes the cache, and what attends to it.

A region yields what is over equal axes, and the new row of a cache is no part of what is attended once
it is in the cache. So the node stands twice in the graph that is searched: one makes ``present``, and
another, which has that for its ``past``, the result. (The new row is written again where it is, with the
same numbers.) What is not replaced by kernels becomes one node again (``whole_again``).
"""

from collections.abc import Sequence

from onnx import GraphProto, ModelProto, NodeProto

from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.marks import mark_of, without_marks
from mirage_onnx.importer.new_places import NewPlaces, given_places, without_places
from mirage_onnx.importer.steps_apart import CACHED, STEP_MARKS, step_graphs

_MARK, _ATTENDED, _WRITTEN = "pkg.mirage_onnx.part", "attended", "written"


def split_caches(proto: ModelProto) -> ModelProto:
  """``proto`` itself where there is none; in subgraphs only those of steps are split (``steps_apart.py``)."""
  if not any(_is_whole(n) for g in _graphs(proto) for n in g.node):
    return proto
  made = ModelProto()
  made.CopyFrom(proto)
  nodes = list(nodes_of(proto.graph))
  taken = {x for n in nodes for x in (*n.input, *n.output)} | {n.name for n in nodes}
  for graph, source in zip(_graphs(made), _graphs(proto), strict=True):
    if any(map(_is_whole, source.node)):
      _split(graph, source, taken)
  return made


def _graphs(proto: ModelProto) -> list[GraphProto]:
  return [proto.graph, *step_graphs(proto)]


def _split(made: GraphProto, graph: GraphProto, taken: set[str]) -> None:
  """Make ``made``, a copy of ``graph``, one with two nodes for each; ``taken``: names."""
  del made.node[:]

  def fresh(name: str) -> str:
    while name in taken:
      name += "_"
    taken.add(name)
    return name

  known = {v.name: v for v in (*graph.value_info, *graph.output)}
  new_places = NewPlaces(made, graph, fresh)
  for node in graph.node:
    if not _is_whole(node):
      made.node.add().CopyFrom(node)
      continue
    y, *presents = node.output
    places = new_places.of(node)
    written, attended = made.node.add(), made.node.add()
    for part, kind in ((written, _WRITTEN), (attended, _ATTENDED)):
      part.CopyFrom(node)
      part.metadata_props.add(key=_MARK, value=kind)
      if places:
        given_places(part, places)
    written.output[0] = fresh(f"{y}/written")
    attended.name = fresh(f"{node.name or y}/attended")
    attended.input[3], attended.input[4] = presents
    del attended.output[1:]
    attended.output.extend([fresh(f"{p}/attended") for p in presents])
    new = zip([y, *presents], [written.output[0], *attended.output[1:]], strict=True)
    for name, copy in ((n, c) for n, c in new if n in known):
      made.value_info.add().CopyFrom(known[name])
      made.value_info[-1].name = copy


def whole_again(model: ModelProto) -> None:
  """Makes one node again of two parts, where neither has been replaced; parts that are left have no mark."""
  for graph in _graphs(model):
    _join(graph)
    without_places(graph)
    without_marks(graph.node, _MARK, *STEP_MARKS)


def _join(graph: GraphProto) -> None:
  written = {n.output[1]: n for n in graph.node if _part(n) == _WRITTEN}
  gone = set[str]()
  for node in [n for n in graph.node if is_attended(n)]:
    if (own := written.get(node.input[3])) is not None:
      gone |= {own.output[0], *node.output[1:]}
      own.output[0] = node.output[0]
      graph.node.remove(node)
  values = [v for v in graph.value_info if v.name not in gone]
  if len(values) < len(graph.value_info):
    del graph.value_info[:]
    graph.value_info.extend(values)


def partners(proto: ModelProto, names: Sequence[str]) -> dict[str, str]:
  """Of two parts of one node, by ``names`` of the nodes: each and the other one."""
  made = {n.output[1]: name for n, name in zip(proto.graph.node, names, strict=True) if _part(n) == _WRITTEN}
  both = {
    name: made[n.input[3]]
    for n, name in zip(proto.graph.node, names, strict=True)
    if is_attended(n) and n.input[3] in made
  }
  return both | {b: a for a, b in both.items()}


def is_attended(node: NodeProto) -> bool:
  """Whether the cache that a node reads has the new row in its place."""
  return _part(node) == _ATTENDED


def _part(node: NodeProto) -> str:
  return mark_of(node, _MARK)


def _is_whole(node: NodeProto) -> bool:
  named = (node.domain, node.op_type) == ("com.microsoft", CACHED) and len(node.input) > 6
  outputs = node.output[:3]
  return named and all(node.input[3:7]) and len(outputs) == 3 == len(node.output) and all(outputs)
