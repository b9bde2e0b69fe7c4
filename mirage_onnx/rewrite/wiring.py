"""The surgery layer: which node reads and writes what, edited with onnx-graphsurgeon.

graphsurgeon 0.6.1 rebuilds every proto on export and loses what it does not model: node and model
metadata, doc strings of nodes, ``overload``, quantization annotations, training info, type and
sparse attributes, denotations, initializers that are graph inputs, unused initializers and the
order of the others; non-UTF-8 strings and optional-typed inputs crash it, and ``toposort`` reorders
the whole graph. So it is given a *skeleton* of the model: names and edges, no types, no attributes,
no weights. It keeps the two sides of every edge consistent while we edit; afterwards each surviving
node stands for its original ``NodeProto``, which is used byte for byte.

A subgraph (If, Loop, Scan) is flattened: the outer values it captures are extra inputs of its node.
"""

import heapq
from collections.abc import Iterable, Sequence

import onnx
import onnx_graphsurgeon as gs

from mirage_onnx.importer.graph import reads, unique_names
from mirage_onnx.rewrite.replacement import internal


class Wiring:
  """The edges of a model's main graph; nodes are graphsurgeon nodes, values are names."""

  def __init__(self, model: onnx.ModelProto) -> None:
    self._protos = list(model.graph.node)
    self._added: list[onnx.NodeProto] = []
    self.graph = gs.import_onnx(_skeleton(model))
    self._replaced: list[gs.Node] = []
    self._gone: set[int] = set()  # ids of removed nodes, which graph.nodes keeps alive
    self._rank = {id(node): rank for rank, node in enumerate(self.graph.nodes)}
    self._values: dict[str, gs.Tensor] = dict(self.graph.tensors())
    self._graph_outputs = {value.name for value in model.graph.output}
    names = unique_names(model.graph)
    self._by_name = dict(zip(names, self.graph.nodes, strict=True))

  def find(self, names: Iterable[str]) -> list[gs.Node]:
    """Nodes by their names in ``LoadedModel.node_names``, in model order.

    Raises:
        MirageError: INTERNAL where a node is not there (any more).
    """
    found = []
    for name in names:
      node = self._by_name.get(name)
      if node is None:
        raise internal(f"there is no node {name!r}")
      found.append(node)
    return sorted(found, key=lambda node: self._rank[id(node)])

  def proto(self, node: gs.Node) -> onnx.NodeProto:
    """The NodeProto that a node stands for."""
    index = int(node.name)
    count = len(self._protos)
    return self._protos[index] if index < count else self._added[index - count]

  def replace(self, nodes: Sequence[gs.Node], proto: onnx.NodeProto) -> None:
    """Let ``proto`` make its outputs instead of ``nodes``; ``ordered`` drops what nobody reads.

    Regions may overlap: a node whose results others still read stays, and what a kernel
    recomputes disappears from the graph with its last reader (known only when all regions are
    replaced). Where one of several outputs of a node is replaced and another is still read, it
    stays and yields both.

    Raises:
        MirageError: INTERNAL where an output is already that of another region.
    """
    rank = max(self._rank[id(node)] for node in nodes)
    for name in proto.output:
      value = self._value(name)
      for producer in list(value.inputs):
        if int(producer.name) >= len(self._protos):
          raise internal(f"{name!r} would be the output of two regions")
        producer.outputs.remove(value)
    name = str(len(self._protos) + len(self._added))
    self._added.append(proto)
    node = gs.Node(
      op=proto.op_type,
      name=name,
      inputs=[self._value(value) for value in proto.input],
      outputs=[self._value(value) for value in proto.output],
    )
    self.graph.nodes.append(node)
    self._rank[id(node)] = rank
    self._replaced += nodes

  def _sweep(self) -> None:
    """Drop what nobody reads of what was replaced, and of what only that read."""
    todo = self._replaced
    while todo:
      dead = todo.pop()
      if id(dead) in self._gone or any(map(self._is_needed, dead.outputs)):
        continue
      todo.extend(producer for value in dead.inputs for producer in value.inputs)
      self._gone.add(id(dead))
      dead.inputs.clear()
      dead.outputs.clear()

  def _kept(self, node: gs.Node) -> onnx.NodeProto:
    """The proto of a node that stays; outputs that another node yields get other names."""
    proto, own = self.proto(node), {value.name for value in node.outputs}
    if own.issuperset(proto.output):
      return proto
    copy = onnx.NodeProto()
    copy.CopyFrom(proto)
    for i, name in enumerate(proto.output):
      if name not in own:
        while name in self._values:
          name += ".unused"
        self._values[name] = gs.Variable(name)
        copy.output[i] = name
    return copy

  def _is_needed(self, value: gs.Tensor) -> bool:
    return bool(value.name) and (bool(value.outputs) or value.name in self._graph_outputs)

  def _value(self, name: str) -> gs.Tensor:
    if not name:
      return gs.Variable.empty()
    return self._values.setdefault(name, gs.Variable(name))

  def ordered(self) -> list[onnx.NodeProto]:
    """The nodes in the original order, moved only as far as dependencies ask.

    Raises:
        MirageError: INTERNAL where the graph has a cycle: a replaced region was not convex.
    """
    self._sweep()
    nodes = [node for node in self.graph.nodes if id(node) not in self._gone]
    index = {id(node): i for i, node in enumerate(nodes)}
    waiting = [sum(1 for value in node.inputs if value.inputs) for node in nodes]
    ready = [(self._rank[id(n)], i) for i, n in enumerate(nodes) if not waiting[i]]
    heapq.heapify(ready)
    order = []
    while ready:
      node = nodes[heapq.heappop(ready)[1]]
      order.append(self._kept(node))
      for value in node.outputs:
        for reader in value.outputs:
          i = index[id(reader)]
          waiting[i] -= 1
          if not waiting[i]:
            heapq.heappush(ready, (self._rank[id(reader)], i))
    if len(order) != len(nodes):
      stuck = [self.proto(n) for i, n in enumerate(nodes) if waiting[i]]
      names = ", ".join(n.name or n.op_type for n in stuck[:4])
      raise internal(f"a region is not convex, or the graph is cyclic, near {names}")
    return order


def _skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
  """Names and edges only; a node is named by its index."""
  bare = onnx.ModelProto()
  bare.opset_import.add(domain="", version=1)
  for rank, node in enumerate(model.graph.node):
    bare.graph.node.add(
      name=str(rank),
      op_type=node.op_type,
      input=dict.fromkeys(reads(node)),
      output=node.output,
    )
  bare.graph.output.extend(onnx.ValueInfoProto(name=v.name) for v in model.graph.output)
  return bare
