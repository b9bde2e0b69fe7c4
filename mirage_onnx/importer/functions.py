"""What a model asks of onnx's inference, which walks into every call and makes what nodes count.

Functions that each call the one before twice are 2**n nodes in n lines, so they are counted before
anything looks at them.
"""

from collections import Counter
from collections.abc import Iterator

from onnx import GraphProto, ModelProto, NodeProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.graph import subgraphs

#: Nodes of all calls together. A layer of a large model in functions has some thousands, and
#: inference takes a second for ten thousands.
MOST_NODES = 1 << 17
#: Outputs of a node that an attribute counts; onnx makes as many, whatever the node has.
MOST_OUTPUTS = 1 << 16
#: A function, as calls name it.
Name = tuple[str, str]


def check_counts(model: ModelProto) -> None:
  """No node, inside of what it may be, is split into more than ``MOST_OUTPUTS`` parts.

  Raises:
      MirageError: MODEL_LIMIT.
  """
  inner = (n for f in model.functions for node in f.node for n in _with_inner(node))
  for node in (*_nodes(model.graph), *inner):
    for a in node.attribute:
      if a.name == "num_outputs" and a.i > MOST_OUTPUTS:
        where = f"node {node.name or node.op_type!r}"
        raise MirageError("MODEL_LIMIT", f"{where} counts {a.i} outputs, at most {MOST_OUTPUTS} are made")


def check_functions(model: ModelProto) -> None:
  """All calls of functions together stand for at most ``MOST_NODES`` nodes.

  Functions that call themselves are left to onnx, which names them.

  Raises:
      MirageError: MODEL_LIMIT.
  """
  if not model.functions:
    return
  bodies: dict[Name, Counter[Name]] = {}
  own: dict[Name, int] = {}
  known = {(f.domain, f.name) for f in model.functions}
  for f in model.functions:  # of overloads together, which is no less
    calls = bodies.setdefault((f.domain, f.name), Counter())
    nodes = [n for node in f.node for n in _with_inner(node)]
    calls.update(name for n in nodes if (name := (n.domain, n.op_type)) in known)
    own[f.domain, f.name] = own.get((f.domain, f.name), 0) + len(nodes)
  size = _sizes(bodies, own)
  called = Counter((n.domain, n.op_type) for n in _nodes(model.graph))
  total = sum(count * size[name] for name, count in called.items() if name in known)
  total = max(total, *size.values())  # onnx looks at functions that nobody calls, too
  if total > MOST_NODES:
    shown = total if total < 10**12 else "more than 10^12"
    raise MirageError(
      "MODEL_LIMIT", f"the calls of its functions stand for {shown} nodes, at most {MOST_NODES} are followed"
    )


def _sizes(bodies: dict[Name, Counter[Name]], own: dict[Name, int]) -> dict[Name, int]:
  """The nodes that a call of each function stands for; those of a call inside of itself count once."""
  size: dict[Name, int] = {}
  for start in bodies:
    path, open_ = [(start, iter(bodies[start]))], {start}
    while path:
      name, calls = path[-1]
      inner = next((c for c in calls if c not in size and c not in open_), None)
      if inner is not None:
        path.append((inner, iter(bodies[inner])))
        open_.add(inner)
        continue
      size[name] = own[name] + sum(k * size.get(c, 1) for c, k in bodies[name].items())
      open_.discard(name)
      path.pop()
  return size


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
  for node in graph.node:
    yield from _with_inner(node)


def _with_inner(node: NodeProto) -> Iterator[NodeProto]:
  """A node, and those of the graphs that it holds: protobuf bounds how deep these are."""
  yield node
  for inner in subgraphs(node):
    yield from _nodes(inner)
