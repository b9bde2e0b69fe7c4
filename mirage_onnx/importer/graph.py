"""Names and edges of an ONNX graph: who defines what, and a stable topological order."""

import heapq
from collections.abc import Iterable, Iterator

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, ValueInfoProto

from mirage_onnx.errors import MirageError

#: Names shown in a message before it says how many more there are.
SHOWN = 6


def domain_of(node: NodeProto) -> str:
  """The node's domain, with the default one always spelled as the empty string."""
  return "" if node.domain == "ai.onnx" else node.domain


def subgraphs(node: NodeProto) -> tuple[GraphProto, ...]:
  """The graphs that a node holds in its attributes (If, Loop, Scan)."""
  found: list[GraphProto] = []
  for a in node.attribute:
    if a.type == AttributeProto.GRAPH:
      found.append(a.g)
    elif a.type == AttributeProto.GRAPHS:
      found.extend(a.graphs)
  return tuple(found)


def dims_of(value: ValueInfoProto) -> tuple[int | str, ...]:
  """Names and numbers of its dimensions."""
  return tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)


def nodes_of(*holders: GraphProto | FunctionProto) -> Iterator[NodeProto]:
  """All nodes of graphs and functions, and of the graphs that these nodes hold."""
  for holder in holders:
    for node in holder.node:
      yield node
      yield from nodes_of(*subgraphs(node))


def defined_names(graph: GraphProto) -> Iterator[tuple[str, str]]:
  """``(name, what defines it)`` for every value; an initializer of an input defines nothing."""
  inputs = {i.name for i in graph.input}
  yield from ((i.name, "a graph input") for i in graph.input)
  yield from ((t.name, "an initializer") for t in graph.initializer if t.name not in inputs)
  for sparse in graph.sparse_initializer:
    if sparse.values.name not in inputs:
      yield sparse.values.name, "an initializer"
  for index, node in enumerate(graph.node):
    yield from ((o, f"node {label(node, index)}") for o in node.output if o)


def label(node: NodeProto, index: int) -> str:
  """How messages call a node: its name, or its type and place."""
  return f"{node.name!r}" if node.name else f"{node.op_type} #{index}"


def captured_names(node: NodeProto) -> tuple[str, ...]:
  """Outer values that the subgraphs of a node read without listing them as inputs."""
  names = (n for g in subgraphs(node) for n in free_names(g))
  return tuple(dict.fromkeys(n for n in names if n not in node.input))


def free_names(graph: GraphProto) -> Iterator[str]:
  defined = {name for name, _ in defined_names(graph)}
  reads = [i for n in graph.node for i in (*n.input, *captured_names(n))]
  reads += [o.name for o in graph.output]
  yield from (r for r in dict.fromkeys(reads) if r and r not in defined)


def reads(node: NodeProto) -> tuple[str, ...]:
  """Every value a node needs: its inputs and what its subgraphs capture."""
  return (*(i for i in node.input if i), *captured_names(node))


def check_text(graph: GraphProto) -> None:
  """Every name is text: protobuf hands out bytes where a field is not UTF-8.

  And no attribute is that of a function around the graph, for there is none.

  Raises:
      MirageError: MODEL_INVALID.
  """
  names: list[object] = [graph.name]
  values = (*graph.input, *graph.output, *graph.value_info)
  names += [v.name for v in values]
  names += [d.dim_param for v in values for d in v.type.tensor_type.shape.dim]
  names += [t.name for t in graph.initializer]
  for n in graph.node:
    names += [n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute)]
    if (a := next((a for a in n.attribute if a.ref_attr_name), None)) is not None:
      what = f"its attribute {a.name!r} is the attribute {a.ref_attr_name!r} of a function, and it is in none"
      raise MirageError("MODEL_INVALID", f"node {n.name or n.op_type!r}: {what}")
    for inner in subgraphs(n):
      check_text(inner)
  broken = next((n for n in names if not isinstance(n, str)), None)
  if broken is not None:
    raise MirageError("MODEL_INVALID", f"the name {broken!r} is not UTF-8 text")


def check_names(graph: GraphProto) -> None:
  """Every value is defined exactly once, and every value that is read is defined.

  Raises:
      MirageError: MODEL_INVALID.
  """
  first: dict[str, str] = {}
  for name, what in defined_names(graph):
    if name in first:
      raise MirageError("MODEL_INVALID", f"the value {name!r} is defined twice: {first[name]} and {what}")
    first[name] = what
  twice = _repeated(t.name for t in graph.initializer)
  if twice:
    raise MirageError("MODEL_INVALID", f"two initializers are called {twice!r}")
  for index, node in enumerate(graph.node):
    for name in reads(node):
      if name not in first:
        raise MirageError(
          "MODEL_INVALID",
          f"node {label(node, index)} reads {name!r}, which nothing defines",
        )
  for output in graph.output:
    if output.name not in first:
      raise MirageError("MODEL_INVALID", f"the graph output {output.name!r} is defined by nothing")


def _repeated(names: Iterable[str]) -> str | None:
  seen: set[str] = set()
  for name in names:
    if name in seen:
      return name
    seen.add(name)
  return None


def topological_order(graph: GraphProto) -> tuple[int, ...]:
  """Indices of ``graph.node``, producers first; as near to the order of the file as can be.

  Raises:
      MirageError: MODEL_INVALID, naming the nodes of a cycle.
  """
  producer = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
  needs = [{producer[r] for r in reads(n) if r in producer} for n in graph.node]
  users: dict[int, list[int]] = {}
  for i, producers in enumerate(needs):
    for p in producers:
      users.setdefault(p, []).append(i)
  waiting = [len(n) for n in needs]
  ready = [i for i, n in enumerate(waiting) if n == 0]  # ascending, so already a heap
  order: list[int] = []
  while ready:
    i = heapq.heappop(ready)
    order.append(i)
    for user in users.get(i, ()):
      waiting[user] -= 1
      if waiting[user] == 0:
        heapq.heappush(ready, user)
  if len(order) < len(needs):
    names = [label(graph.node[i], i) for i in _cycle(needs, set(order))]
    shown = " -> ".join([*names[:SHOWN], *(["..."] if len(names) > SHOWN else []), names[0]])
    raise MirageError("MODEL_INVALID", f"the graph has a cycle: {shown}")
  return tuple(order)


def _cycle(needs: list[set[int]], done: set[int]) -> list[int]:
  """One cycle among the nodes not done, in the direction of the data, lowest node first."""
  at = min(i for i in range(len(needs)) if i not in done)
  path: list[int] = []
  while at not in path:
    path.append(at)
    at = min(p for p in needs[at] if p not in done)
  cycle = path[path.index(at) :][::-1]
  first = cycle.index(min(cycle))
  return cycle[first:] + cycle[:first]


def unique_names(graph: GraphProto) -> tuple[str, ...]:
  """A name for every node: its own, or ``<op_type>_<index>`` where that is empty or taken."""
  own = {n.name for n in graph.node}
  used: set[str] = set()
  names = []
  for index, node in enumerate(graph.node):
    name = node.name
    if not name or name in used:
      name = f"{node.op_type}_{index}"
      while name in own or name in used:
        name += "_"
    used.add(name)
    names.append(name)
  return tuple(names)
