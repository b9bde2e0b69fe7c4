"""GroupQueryAttention as two nodes: what writes the cache, and what attends to it.

A region yields what is over equal axes, and the new row of a cache is no part of what is attended once
it is in the cache. So the node stands twice in the graph that is searched: one makes ``present``, and
another, which has that for its ``past``, the result. (The new row is written again where it is, with the
same numbers.) What is not replaced by kernels becomes one node again (``whole_again``).
"""

from collections.abc import Sequence

from onnx import ModelProto, NodeProto

from mirage_onnx.importer.graph import nodes_of

_MARK, _ATTENDED, _WRITTEN = "pkg.mirage_onnx.part", "attended", "written"
#: The operator whose cache is one buffer.
CACHED = "GroupQueryAttention"


def split_caches(proto: ModelProto) -> ModelProto:
  """``proto`` itself where there is none; nodes within subgraphs stay as they are."""
  graph = proto.graph
  if not any(_is_whole(n) for n in graph.node):
    return proto
  made = ModelProto()
  made.CopyFrom(proto)
  del made.graph.node[:]
  taken = {x for n in nodes_of(graph) for x in (*n.input, *n.output)} | {n.name for n in nodes_of(graph)}

  def fresh(name: str) -> str:
    while name in taken:
      name += "_"
    taken.add(name)
    return name

  known = {v.name: v for v in (*graph.value_info, *graph.output)}
  for node in graph.node:
    if not _is_whole(node):
      made.graph.node.add().CopyFrom(node)
      continue
    y, *presents = node.output
    written, attended = made.graph.node.add(), made.graph.node.add()
    for part, kind in ((written, _WRITTEN), (attended, _ATTENDED)):
      part.CopyFrom(node)
      part.metadata_props.add(key=_MARK, value=kind)
    written.output[0] = fresh(f"{y}/written")
    attended.name = fresh(f"{node.name or y}/attended")
    attended.input[3], attended.input[4] = presents
    del attended.output[1:]
    attended.output.extend([fresh(f"{p}/attended") for p in presents])
    new = zip([y, *presents], [written.output[0], *attended.output[1:]], strict=True)
    for name, copy in ((n, c) for n, c in new if n in known):
      made.graph.value_info.add().CopyFrom(known[name])
      made.graph.value_info[-1].name = copy
  return made


def whole_again(model: ModelProto) -> None:
  """Makes one node again of two parts, where neither has been replaced; parts that are left have no mark."""
  graph = model.graph
  written = {n.output[1]: n for n in graph.node if _part(n) == _WRITTEN}
  gone = set[str]()
  for node in [n for n in graph.node if is_attended(n)]:
    if (own := written.get(node.input[3])) is not None:
      gone |= {own.output[0], *node.output[1:]}
      own.output[0] = node.output[0]
      graph.node.remove(node)
  for node in graph.node:
    if _part(node):
      kept = [p for p in node.metadata_props if p.key != _MARK]
      del node.metadata_props[:]
      node.metadata_props.extend(kept)
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
  return next((p.value for p in node.metadata_props if p.key == _MARK), "")


def _is_whole(node: NodeProto) -> bool:
  named = (node.domain, node.op_type) == ("com.microsoft", CACHED) and len(node.input) > 6
  outputs = node.output[:3]
  return named and all(node.input[3:7]) and len(outputs) == 3 == len(node.output) and all(outputs)
