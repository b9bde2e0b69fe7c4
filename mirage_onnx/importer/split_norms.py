"""In steps of a decoder: a norm of a sum that is also the next residual, as two nodes, the sum and its norm.

com.microsoft's SkipSimplifiedLayerNormalization has two results: the product behind it reads one, the
next such node the other. A region with one of them leaves the node where it is, for the other; of two
nodes the sum belongs to the product in front, and the norm to that behind. Where no kernel replaces
either they are one node again.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from onnx import ModelProto, NodeProto, helper

from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.marks import mark_of, without_marks
from mirage_onnx.importer.steps_apart import step_graphs

_MARK, _SUM, _NORM = "pkg.mirage_onnx.normed", "sum", "norm"
_WHOLE, _DOMAIN = "SkipSimplifiedLayerNormalization", "com.microsoft"
_NORMALIZED = "SimplifiedLayerNormalization"
#: From which an Add has every type that the operator has.
_OPSET = 13


def split_norms(proto: ModelProto) -> ModelProto:
  """``proto`` itself where there is none."""
  opset = next((o.version for o in proto.opset_import if not o.domain), 0)
  own = {(f.domain, f.name) for f in proto.functions}
  stored = {t.name for t in proto.graph.initializer}
  if opset < _OPSET or own & {(_DOMAIN, _WHOLE), ("", "Add"), ("", _NORMALIZED)}:
    return proto
  if not any(_can(n, stored) for g in step_graphs(proto) for n in g.node):
    return proto
  made = ModelProto()
  made.CopyFrom(proto)
  names = {n.name for n in nodes_of(proto.graph)}
  for graph in step_graphs(made):
    parts = [p for n in graph.node for p in (_parts(n, names) if _can(n, stored) else [_copy(n)])]
    del graph.node[:]
    graph.node.extend(parts)
  return made


def whole_norms(model: ModelProto) -> None:
  """Makes one node again of two that are there; others have no mark."""
  for graph in (model.graph, *step_graphs(model)):
    if not any(map(_mark, graph.node)):
      continue
    whole, gone = dict[int, NodeProto](), set[int]()
    for first, second in _complete(graph.node):
      whole[first], gone = _joined(graph.node[first], graph.node[second]), gone | {second}
    kept = [whole.get(k, _copy(n)) for k, n in enumerate(graph.node) if k not in gone]
    without_marks(kept, _MARK)
    del graph.node[:]
    graph.node.extend(kept)


def norms_of_one(proto: ModelProto, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
  """By ``names`` of the nodes: the sum and the norm of each operator that has been split."""
  return tuple((names[a], names[b]) for a, b in _complete(proto.graph.node))


def _complete(nodes: Iterable[NodeProto]) -> Iterator[tuple[int, int]]:
  """Places of two nodes that can be one: marked, and what marks say, for a given model may have marks."""
  sums = {n.output[0]: k for k, n in enumerate(nodes) if _mark(n) == _SUM and _is_sum(n)}
  norms = [(k, n) for k, n in enumerate(nodes) if _mark(n) == _NORM and _is_norm(n)]
  count = Counter(n.input[0] for _, n in norms)
  for k, n in norms:
    if n.input[0] in sums and count[n.input[0]] == 1:
      yield sums[n.input[0]], k


def _is_sum(node: NodeProto) -> bool:
  return (node.domain, node.op_type, len(node.input), len(node.output)) == ("", "Add", 2, 1)


def _is_norm(node: NodeProto) -> bool:
  values = {a.name: a.f if a.name == "epsilon" else a.i for a in node.attribute}
  plain = (node.domain, node.op_type, len(node.input), len(node.output)) == ("", _NORMALIZED, 2, 1)
  return plain and values.pop("epsilon", None) is not None and values == {"axis": -1, "stash_type": 1}


def _can(node: NodeProto, stored: set[str]) -> bool:
  """Two results are read, the scale is stored, and there is no bias."""
  if (node.domain, node.op_type) != (_DOMAIN, _WHOLE) or {a.name for a in node.attribute} - {"epsilon"}:
    return False
  inputs, outputs = list(node.input), list(node.output)
  return (
    len(inputs) >= 3 and all(inputs[:3]) and not any(inputs[3:]) and inputs[2] in stored
    and [*map(bool, outputs)] == [True, False, False, True]
  )  # fmt: skip


def _parts(node: NodeProto, names: set[str]) -> list[NodeProto]:
  x, skip, scale = node.input[:3]
  y, total = node.output[0], node.output[3]
  name = f"{node.name or y}/sum"
  while name in names:
    name += "_"
  names.add(name)
  epsilon = next((a.f for a in node.attribute), 1e-12)
  summed = helper.make_node("Add", [x, skip], [total], name=name)
  normed = helper.make_node(
    _NORMALIZED, [total, scale], [y],
    name=node.name, axis=-1, epsilon=epsilon, stash_type=1,
  )  # fmt: skip
  for part, kind in ((summed, _SUM), (normed, _NORM)):
    part.metadata_props.extend(node.metadata_props)
    part.metadata_props.add(key=_MARK, value=kind)
  return [summed, normed]


def _joined(summed: NodeProto, normed: NodeProto) -> NodeProto:
  (epsilon,) = (a.f for a in normed.attribute if a.name == "epsilon")
  node = helper.make_node(
    _WHOLE, [*summed.input, normed.input[1]], [normed.output[0], "", "", summed.output[0]],
    name=normed.name, domain=_DOMAIN, epsilon=epsilon,
  )  # fmt: skip
  node.metadata_props.extend(p for p in normed.metadata_props if p.key != _MARK)
  return node


def _mark(node: NodeProto) -> str:
  return mark_of(node, _MARK)


def _copy(node: NodeProto) -> NodeProto:
  made = NodeProto()
  made.CopyFrom(node)
  return made
