"""What differs between a model and its optimized version that no replaced region explains."""

import onnx

from mirage_onnx.importer.graph import nodes_of, reads, subgraphs
from mirage_onnx.importer.old_inputs import without_old_inputs
from mirage_onnx.rewrite.model import BUNDLE_NAME, DOMAIN_PREFIX, MIN_IR_VERSION

#: Lists that may shrink or grow; everything else of a model must be equal as it is.
_MODEL_LISTS = ("functions", "opset_import", "metadata_props")
_GRAPH_LISTS = (
  "node", "initializer", "sparse_initializer", "value_info", "quantization_annotation",
)  # fmt: skip


def unexplained(original, result):
  return list(_differences(original, result))


def custom_nodes(model):
  """Of subgraphs, too."""
  return [n for n in nodes_of(model.graph) if n.domain.startswith(DOMAIN_PREFIX)]


def _differences(original, result):
  custom = custom_nodes(result)
  # Initializers that an old model lists as inputs, too, are no inputs of a version with functions.
  header = _rest(without_old_inputs(original) if custom else original)
  if _bytes(header) != _bytes(_rest(result)):
    yield f"header: {header} became {_rest(result)}"
  raised = max(original.ir_version, MIN_IR_VERSION) if custom else original.ir_version
  if result.ir_version != raised:
    yield f"IR version {original.ir_version} became {result.ir_version}"
  yield from _graphs(original.graph, result.graph, custom)
  for name, ours in (
    ("functions", lambda f: f.domain.startswith(DOMAIN_PREFIX)),
    ("opset_import", lambda o: o.domain.startswith(DOMAIN_PREFIX)),
    ("metadata_props", lambda p: p.key.startswith("mirage_onnx.")),
  ):
    yield from _grown(name, getattr(original, name), getattr(result, name), ours, bool(custom))


def _graphs(original, result, custom):
  """``custom``: of all graphs; each kept node has the same subgraphs, but for custom nodes in them."""
  outer, inner = onnx.ModelProto(graph=original), onnx.ModelProto(graph=result)
  own = [n for n in inner.graph.node if n.domain.startswith(DOMAIN_PREFIX)]
  yield from _nodes(outer, inner, own)
  yield from _weights(outer, inner, custom)
  yield from _values(outer, inner, own)
  held = {tuple(n.output): subgraphs(n) for n in result.node}
  for node in original.node:
    for a, b in zip(subgraphs(node), held.get(tuple(node.output), ()), strict=False):
      yield from (f"{a.name}: {line}" for line in _graphs(a, b, custom))


def _nodes(original, result, custom):
  """Kept nodes are byte for byte the same and in order; others are in a region, or dead."""
  given = [_bytes(_without_nodes(n)) for n in original.graph.node]
  ours = {_bytes(n) for n in custom}
  kept = [_bytes(_without_nodes(n)) for n in result.graph.node if _bytes(n) not in ours]
  places = iter(given)
  for data in kept:
    if data not in places:  # consumes the iterator: the order counts
      node = onnx.NodeProto.FromString(data)
      yield f"node {node.name!r} ({node.op_type}) is new, changed or moved"
  replaced = {n for c in custom for p in c.metadata_props for n in p.value.split(",")}
  left = set(kept)
  read = {name for n in result.graph.node for name in reads(n)}
  read |= {o.name for o in result.graph.output}
  made = {o for n in custom for o in n.output}
  for node, data in zip(original.graph.node, given, strict=True):
    if data in left or node.name in replaced:
      continue
    if any(o in read and o not in made for o in node.output):
      yield f"node {node.name!r} ({node.op_type}) is gone, and read"
    elif not custom:
      yield f"node {node.name!r} ({node.op_type}) is gone"


def _weights(original, result, custom):
  """Initializers go with their last reader; new ones are the bundle and reordered copies."""
  still = {name for n in result.graph.node for name in reads(n)}
  still |= {v.name for v in (*result.graph.input, *result.graph.output)}
  before = {name for n in original.graph.node for name in reads(n)}
  inputs = {i for n in custom for i in n.input}
  for field, name in (("initializer", _name), ("sparse_initializer", lambda t: t.values.name)):
    copies = tuple(f"{name(t)}." for t in getattr(original.graph, field))
    yield from _kept(
      field, original, result, name,
      lambda n: n in still or n not in before,
      lambda n: n in inputs and (n == BUNDLE_NAME or n.startswith(copies)),  # noqa: B023
    )  # fmt: skip


def _values(original, result, custom):
  """Notes on values that are no more go; a custom node's outputs get a type."""
  there = {o for n in result.graph.node for o in n.output}
  there |= {v.name for v in (*result.graph.input, *result.graph.initializer)}
  known = {o for n in original.graph.node for o in n.output}
  known |= {t.name for t in original.graph.initializer}
  outputs = {o for n in custom for o in n.output}
  for field, name in (
    ("value_info", _name), ("quantization_annotation", lambda a: a.tensor_name)
  ):  # fmt: skip
    yield from _kept(
      field, original, result, name,
      lambda n: n in there or n not in known, outputs.__contains__,
    )  # fmt: skip


def _kept(field, original, result, name, keep, ours):
  given, found = getattr(original.graph, field), getattr(result.graph, field)
  wanted = [x for x in given if keep(name(x))]
  if [_bytes(x) for x in found[: len(wanted)]] != [_bytes(x) for x in wanted]:
    yield f"{field}: {[name(x) for x in wanted]} became {[name(x) for x in found]}"
  for x in found[len(wanted) :]:
    if not ours(name(x)):
      yield f"{field}: {name(x)!r} is new"


def _grown(name, given, found, ours, may):
  if [_bytes(m) for m in found[: len(given)]] != [_bytes(m) for m in given]:
    yield f"{name}: {_lines(given)} became {_lines(found)}"
  for message in found[len(given) :]:
    if not may or not ours(message):
      yield f"{name}: {message} is new"


def _rest(model):
  rest = onnx.ModelProto()
  rest.CopyFrom(model)
  rest.ClearField("ir_version")
  for field in _MODEL_LISTS:
    rest.ClearField(field)
  for field in _GRAPH_LISTS:
    rest.graph.ClearField(field)
  return rest


def _without_nodes(node):
  """A node whose subgraphs have lost what ``_graphs`` compares."""
  bare = onnx.NodeProto()
  bare.CopyFrom(node)
  for graph in subgraphs(bare):
    for field in _GRAPH_LISTS:
      graph.ClearField(field)
  return bare


def _bytes(message):
  return bytes(message.SerializeToString(deterministic=True))


def _name(message):
  return str(message.name)


def _lines(messages):
  return "; ".join(" ".join(str(m).split()) for m in messages)
