"""A model some of whose custom nodes run their function bodies, that is the original's nodes.

For a session nothing is rewritten: a node and its function get a domain that the library never registers,
so that onnxruntime inlines the body. It folds what the body does to weights when a session is made.
"""

from collections.abc import Collection, Iterator

import onnx
from google.protobuf.message import Message

from mirage_onnx.custom_op.node_digest import is_custom
from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.graph import nodes_of, subgraphs

#: No library of ours has operators in it: it does not begin with ``DOMAIN_PREFIX``.
BODY_DOMAIN = "mirage.body"


def with_bodies(model: onnx.ModelProto, outputs: Collection[str]) -> onnx.ModelProto:
  """A copy in which the custom nodes that yield any of ``outputs`` run their bodies."""
  result, wanted = onnx.ModelProto(), set(outputs)
  result.CopyFrom(model)
  called = set[tuple[str, str]]()
  for node in _custom(result.graph):
    if wanted & set(node.output):
      called.add((node.domain, node.op_type))
      node.domain = BODY_DOMAIN
  known, bodies = {(f.domain, f.name): f for f in model.functions}, list[onnx.FunctionProto]()
  todo = [f for f in model.functions if (f.domain, f.name) in called]
  while todo:  # a body may call the same region's operator for another target
    body = onnx.FunctionProto()
    body.CopyFrom(todo.pop(0))
    body.domain = BODY_DOMAIN
    bodies.append(body)
    for node in _custom(body):
      key, node.domain = (node.domain, node.op_type), BODY_DOMAIN
      if key in known and key not in called:
        todo.append(known[key])
      called.add(key)
    if any(n.domain == BODY_DOMAIN for n in body.node):
      body.opset_import.append(onnx.helper.make_opsetid(BODY_DOMAIN, 1))
  result.functions.extend(bodies)
  if called:
    result.opset_import.append(onnx.helper.make_opsetid(BODY_DOMAIN, 1))
  return result


def inlined(model: onnx.ModelProto, outputs: Collection[str]) -> onnx.ModelProto:
  """A copy in which the nodes of the bodies stand for the custom nodes that yield any of ``outputs``.

  What only they have used (functions, operator sets, kernels where no custom node is left) goes with them.

  Raises:
      MirageError: BUNDLE_INVALID, bodies have no end.
  """
  check_calls(model)
  from onnx.inliner import inline_selected_functions

  bodied = with_bodies(model, outputs)
  called = [(f.domain, f.name) for f in bodied.functions if f.domain == BODY_DOMAIN]
  if not called:
    return bodied
  return pruned(inline_selected_functions(bodied, called), model)


def pruned(result: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
  """``result``, made of ``model``, without functions, operator sets and kernels that nothing in it uses."""
  used, known = set[tuple[str, str]](), {(f.domain, f.name): f for f in result.functions}
  todo = [(n.domain, n.op_type) for n in _custom(result.graph)]
  while todo:
    if (key := todo.pop()) not in used:
      used.add(key)
      todo += [(n.domain, n.op_type) for n in _custom(known[key])] if key in known else []
  kept = [f for f in result.functions if f.domain != BODY_DOMAIN and _is_called(f, used)]
  bundles = {n.input[0] for n in _custom(result.graph)}
  gone = {n.input[0] for n in _custom(model.graph)} - bundles
  graph = result.graph
  weights = [t for t in graph.initializer if t.name not in gone]
  domains = {n.domain for n in _every(graph)} | {f.domain for f in kept} | {""}
  domains |= {n.domain for f in kept for n in f.node}
  imports = [i for i in result.opset_import if i.domain in domains]
  for field, values in (
    (result.functions, kept),
    (graph.initializer, weights),
    (result.opset_import, imports),
  ):
    copies = [_copied(v) for v in values]
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]
  return result


def check_calls(model: onnx.ModelProto) -> None:
  """That a body has one custom operator at most, of a new target: what takes its place has an end.

  Raises:
      MirageError: BUNDLE_INVALID.
  """
  calls: dict[tuple[str, str], tuple[str, str]] = {}
  for f in model.functions:
    if is_custom(f.domain, f.name):
      inner = [(n.domain, n.op_type) for n in nodes_of(f) if is_custom(n.domain, n.op_type)]
      if len(inner) > 1 or (f.domain, f.name) in calls:
        raise MirageError("BUNDLE_INVALID", f"the body of {f.name[:40]!r} has several custom operators")
      if inner:
        calls[f.domain, f.name] = inner[0]
  for start in calls:
    seen, at = set[str](), start
    while at in calls:
      seen.add(at[0])
      at = calls[at]
      if at[0] in seen:
        raise MirageError(
          "BUNDLE_INVALID", f"the body of {start[1][:40]!r} calls what is for {at[0][:40]} again"
        )


def _is_called(function: onnx.FunctionProto, used: Collection[tuple[str, str]]) -> bool:
  """A function of another's domain is the model's own, and stays."""
  return not function.domain.startswith(DOMAIN_PREFIX) or (function.domain, function.name) in used


def _copied(value: Message) -> Message:
  made = type(value)()
  made.CopyFrom(value)
  return made


def _every(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
  for node in graph.node:
    yield node
    for inner in subgraphs(node):
      yield from _every(inner)


def _custom(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
  for node in graph.node:
    if is_custom(node.domain, node.op_type):
      yield node
    for inner in subgraphs(node):
      yield from _custom(inner)
