"""com.microsoft's Attention as its parts: a product with its weights, and what attends to the result.

A region yields what is over equal axes, and queries and keys of one sequence are two axes of it: no region
holds a projection and the scores behind it. So the node stands as three in the graph that is searched: a
MatMul, the Split of its result, and a MultiHeadAttention, which adds the bias. Where no kernel replaces any
of them they are one node again. Predictions say nothing of these parts (``Node.part_of``): what they take
is measured.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, helper

from mirage_onnx.importer.graph import dims_of, nodes_of
from mirage_onnx.importer.marks import mark_of, without_marks

_MARK, _PRODUCT, _SPLIT, _ATTENDING = "pkg.mirage_onnx.projecting", "product", "split", "attending"
#: Inputs of Attention: x, weights, bias, mask, past, what is added to scores, how long the past is.
_X, _WEIGHTS, _BIAS, _MASK, _PAST, _ADDED, _LENGTH = range(7)
#: Attributes that both operators have.
_SHARED = frozenset({"num_heads", "unidirectional", "mask_filter_value", "scale"})
_DOMAIN = "com.microsoft"
#: Opsets in which Split has its sizes as an input, and needs to be told how many they are.
_SIZES, _COUNTED = 13, 18
#: Operators that leave what a mask is as it is.
_SAME = frozenset({"Cast", "Identity"})


def split_projections(proto: ModelProto) -> ModelProto:
  """``proto`` itself where there is none."""
  opset = next((o.version for o in proto.opset_import if not o.domain), 0)
  own = {(f.domain, f.name) for f in proto.functions}
  known = _Known(proto.graph)
  if opset < _SIZES or own & {(_DOMAIN, "Attention"), (_DOMAIN, "MultiHeadAttention")}:
    return proto
  if not any(_can(n, known) for n in proto.graph.node):
    return proto
  made = ModelProto()
  made.CopyFrom(proto)
  nodes = list(nodes_of(proto.graph))
  taken = {x for n in nodes for x in (*n.input, *n.output)} | {n.name for n in nodes}
  del made.graph.node[:]
  for node in proto.graph.node:
    made.graph.node.extend(_parts(node, opset, taken) if _can(node, known) else [node])
  return made


def whole_projections(model: ModelProto) -> None:
  """Makes one node again of three that are all there; others have no mark."""
  nodes = list(model.graph.node)
  if not any(map(_mark, nodes)):
    return
  gone, whole = set[int](), dict[int, NodeProto]()
  for product, split, k in _complete(model.graph):
    gone |= {split, product}
    whole[k] = _joined(nodes[product], nodes[k])
  kept = [
    NodeProto.FromString(whole.get(k, n).SerializeToString()) for k, n in enumerate(nodes) if k not in gone
  ]
  without_marks(kept, _MARK)
  del model.graph.node[:]
  model.graph.node.extend(kept)


def parts_of_one(proto: ModelProto, names: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
  """By ``names`` of the nodes: the three of each operator that has been split."""
  return tuple((names[a], names[b], names[c]) for a, b, c in _complete(proto.graph))


def _complete(graph: GraphProto) -> list[tuple[int, int, int]]:
  """Places of three nodes that can be one again: product, split, and what attends."""
  nodes, found = list(graph.node), list[tuple[int, int, int]]()
  makers = {o: k for k, n in enumerate(nodes) for o in n.output}
  readers = Counter(i for n in nodes_of(graph) for i in n.input)
  for k, node in enumerate(nodes):
    if _mark(node) != _ATTENDING:
      continue
    split = makers.get(node.input[0])
    product = None if split is None or _mark(nodes[split]) != _SPLIT else makers.get(nodes[split].input[0])
    if split is None or product is None or _mark(nodes[product]) != _PRODUCT:
      continue
    inner = [*nodes[split].output, *nodes[product].output]
    if list(node.input[:3]) == list(nodes[split].output) and all(readers[o] == 1 for o in inner):
      found.append((product, split, k))
  return found


def part_of(node: NodeProto) -> str:
  """The operator that a node is a part of, if it is one."""
  return "Attention" if _mark(node) else ""


class _Known:
  """What is said of values: dimensions, what makes them, and which are sizes of a mask."""

  def __init__(self, graph: GraphProto) -> None:
    self.dims = {
      v.name: dims_of(v)
      for v in (*graph.value_info, *graph.input, *graph.output)
      if v.type.tensor_type.HasField("shape")
    }
    stored = {t.name for t in graph.initializer}
    self.inputs = {v.name: self.dims.get(v.name, ()) for v in graph.input if v.name not in stored}
    self.dims |= {t.name: tuple(t.dims) for t in graph.initializer}
    self.makers = {o: n for n in graph.node for o in n.output}

  def is_plain_mask(self, name: str, x: str) -> bool:
    """Whether a mask is of (batch, keys), or says where keys end: both operators read these alike."""
    while name not in self.dims and (maker := self.makers.get(name)) is not None and maker.op_type in _SAME:
      name = maker.input[0]
    maker = self.makers.get(name)
    if maker is not None and maker.op_type == "EmbedLayerNormalization" and maker.domain == _DOMAIN:
      return len(maker.output) > 1 and name == maker.output[1]
    dims, rows = self.dims.get(name, ()), self.dims.get(x, ())[:2]
    if dims == () or not all(dims):
      return False
    # An inner x has its dimensions from the inputs of the model: a mask like them is none of twice as many,
    # if the batch has a name; a number may be the size of anything, and 1 says that there is no mask.
    if not rows and (not isinstance(dims[0], str) or dims[-1] == 1):
      return False
    others = [rows] if rows else [d[:2] for n, d in self.inputs.items() if n != name]
    return any(dims in (d[:1], d) for d in others if len(d) == 2 and all(d))


def _can(node: NodeProto, known: _Known) -> bool:
  if (node.domain, node.op_type) != (_DOMAIN, "Attention") or [*map(bool, node.output)] != [True]:
    return False
  inputs = [*node.input, *[""] * 8][:8]
  sizes = [tuple(a.ints) for a in node.attribute if a.name == "qkv_hidden_sizes"]
  odd = {a.name for a in node.attribute} - _SHARED - {"qkv_hidden_sizes"}
  weights = known.dims.get(inputs[_WEIGHTS], ())
  whole = len(weights) == 2 and isinstance(weights[1], int) and weights[1] and weights[1] % 3 == 0
  if odd or not whole or not inputs[_BIAS] or inputs[_PAST] or inputs[_LENGTH]:
    return False
  if any(len({*s}) != 1 for s in sizes):
    return False
  return not inputs[_MASK] or known.is_plain_mask(inputs[_MASK], inputs[_X])


def _parts(node: NodeProto, opset: int, taken: set[str]) -> list[NodeProto]:
  def fresh(name: str) -> str:
    while name in taken:
      name += "_"
    taken.add(name)
    return name

  inputs, y = [*node.input, *[""] * 8], node.output[0]
  whole = fresh(f"{y}/projected")
  q, k, v = (fresh(f"{y}/{part}") for part in ("queries", "keys", "values"))
  base = node.name or y
  count: dict[str, Any] = {"num_outputs": 3} if opset >= _COUNTED else {}
  product = helper.make_node(
    "MatMul", [inputs[_X], inputs[_WEIGHTS]], [whole], name=fresh(f"{base}/projected")
  )
  split = helper.make_node("Split", [whole], [q, k, v], name=fresh(f"{base}/split"), axis=-1, **count)
  attending = helper.make_node(
    "MultiHeadAttention", _without_end([q, k, v, inputs[_BIAS], inputs[_MASK], inputs[_ADDED]]), [y],
    name=node.name, domain=_DOMAIN,
  )  # fmt: skip
  attending.attribute.extend(a for a in node.attribute if a.name in _SHARED)
  original = b64encode(node.SerializeToString()).decode()
  marked = ((product, _PRODUCT), (split, _SPLIT), (attending, f"{_ATTENDING} {original}"))
  for part, value in marked:
    part.metadata_props.add(key=_MARK, value=value)
  return [product, split, attending]


def _joined(product: NodeProto, attending: NodeProto) -> NodeProto:
  node = NodeProto.FromString(b64decode(mark_of(attending, _MARK).partition(" ")[2]))
  later = [*attending.input, *[""] * 6]
  node.input[:] = [*product.input, later[3], later[4], "", later[5], ""][: len(node.input)]
  node.output[:] = attending.output
  return node


def _without_end(names: Sequence[str]) -> list[str]:
  """Without empty names at the end."""
  found = list(names)
  while not found[-1]:
    found.pop()
  return found


def _mark(node: NodeProto) -> str:
  return mark_of(node, _MARK).partition(" ")[0]
