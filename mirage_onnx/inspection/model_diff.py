"""What an optimized model has in place of its original, node by node and weight by weight.

Nodes are known by what they compute: the names of their outputs, which rewriting keeps. So any two
models can be compared, names or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.node_digest import is_custom
from mirage_onnx.importer.external import size_bytes
from mirage_onnx.importer.sections import first_output, node_names, renamed, sections_of


@dataclass(frozen=True, slots=True)
class Replaced:
  """A custom node, and the nodes of the original that it says it stands for, with their types."""

  node: str
  nodes: tuple[str, ...]
  ops: tuple[str, ...]
  inputs: tuple[str, ...]
  outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelDiff:
  """Names of nodes are those of reports and refusals, also where nodes have none. Weights: (name, bytes)."""

  replaced: tuple[Replaced, ...]
  unchanged: int
  changed: tuple[str, ...]
  gone: tuple[str, ...]
  added: tuple[str, ...]
  weights_added: tuple[tuple[str, int], ...]
  weights_gone: tuple[tuple[str, int], ...]
  interface: tuple[str, ...]


def model_diff(a: ModelFile, b: ModelFile) -> ModelDiff:
  """Compare the graphs, subgraphs too: a node that holds some is the same whatever is in them."""
  (ours, name), (theirs, their_name) = (_nodes(m.proto.graph) for m in (a, b))
  custom = {k for k, n in theirs.items() if is_custom(n.domain, n.op_type)}
  by_name = {name[k]: n for k, n in ours.items()}
  replaced, stood_for = [], set[str]()
  for key in (k for k in theirs if k in custom):
    node = theirs[key]
    names = [n for n in _region(node) if n in by_name]
    stood_for.update(names)
    ops = tuple(by_name[n].op_type for n in names)
    own = node.name or node.op_type
    replaced.append(Replaced(own, tuple(names), ops, tuple(node.input[1:]), tuple(node.output)))
  both = [k for k in ours if k in theirs and k not in custom]
  changed = [name[k] for k in both if not _same(ours[k], theirs[k])]
  gone = [name[k] for k in ours if k not in theirs and name[k] not in stood_for]
  added = [their_name[k] for k in theirs if k not in ours and k not in custom]
  weights = [_weights(m.proto.graph) for m in (a, b)]
  return ModelDiff(
    tuple(replaced), len(both) - len(changed), tuple(changed), tuple(gone), tuple(added),
    tuple((n, s) for n, s in weights[1].items() if n not in weights[0]),
    tuple((n, s) for n, s in weights[0].items() if n not in weights[1]),
    tuple(_interface(a.proto, b.proto)),
  )  # fmt: skip


def _nodes(
  graph: onnx.GraphProto,
) -> tuple[dict[tuple[str, ...], onnx.NodeProto], dict[tuple[str, ...], str]]:
  """Nodes and their names by what they yield: all in the names that the importer gives values."""
  sections = sections_of(graph)
  names = node_names(graph, sections)
  found, called = dict[tuple[str, ...], onnx.NodeProto](), dict[tuple[str, ...], str]()
  parts = [("", graph, dict[str, str]()), *((s.path, s.graph, s.flat) for s in sections)]
  opened = {s.key for s in sections}
  for path, part, flat in parts:
    for node, name in zip(part.node, names[path], strict=True):
      holds = path + first_output(node) in opened
      copy = renamed(node, flat) if holds or path else node
      found[_key(copy)], called[_key(copy)] = copy, name
  return found, called


def _weights(graph: onnx.GraphProto) -> dict[str, int]:
  """Those of subgraphs by their flat names."""
  found = {t.name: _bytes(t) for t in graph.initializer}
  for s in sections_of(graph):
    found |= {s.flat[t.name]: _bytes(t) for t in s.graph.initializer}
  return found


def _key(node: onnx.NodeProto) -> tuple[str, ...]:
  return tuple(node.output)


def _region(node: onnx.NodeProto) -> list[str]:
  found = (p.value for p in node.metadata_props if p.key == "pkg.mirage_onnx.region")
  return next(found, "").split(",")


def _same(x: onnx.NodeProto, y: onnx.NodeProto) -> bool:
  alike = (x.op_type, x.domain, list(x.input)) == (y.op_type, y.domain, list(y.input))
  return alike and _attributes(x) == _attributes(y)


def _attributes(node: onnx.NodeProto) -> dict[str, bytes]:
  return {a.name: a.SerializeToString(deterministic=True) for a in node.attribute}


def _bytes(tensor: onnx.TensorProto) -> int:
  size = size_bytes(tensor)
  return sum(map(len, tensor.string_data)) if size is None else size


def _interface(a: onnx.ModelProto, b: onnx.ModelProto) -> Iterator[str]:
  for what in ("input", "output"):
    ours, theirs = ({v.name: v.type for v in getattr(m.graph, what)} for m in (a, b))
    for name in dict.fromkeys((*ours, *theirs)):
      if name not in theirs:
        yield f"{what} {name} is gone"
      elif name not in ours:
        yield f"{what} {name} is new"
      elif ours[name] != theirs[name]:
        yield f"{what} {name} has another type"
  was, now = ({i.domain: i.version for i in m.opset_import} for m in (a, b))
  for domain in sorted({n.domain for n in a.graph.node}):
    if was.get(domain) != now.get(domain):
      yield f"operator set {domain or 'ai.onnx'} is {now.get(domain)}, was {was.get(domain)}"
