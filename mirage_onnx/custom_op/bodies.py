"""A model some of whose custom nodes run their function bodies, that is the original's nodes.

Nothing is rewritten: a node and its function get a domain that the library never registers, so that
onnxruntime inlines the body. It folds what the body does to weights when a session is made.
"""

from collections.abc import Collection, Iterator

import onnx

from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX, OP_PREFIX
from mirage_onnx.importer.graph import subgraphs

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
  for function in [f for f in result.functions if (f.domain, f.name) in called]:
    body = result.functions.add()
    body.CopyFrom(function)
    body.domain = BODY_DOMAIN
  if called:
    result.opset_import.append(onnx.helper.make_opsetid(BODY_DOMAIN, 1))
  return result


def _custom(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
  for node in graph.node:
    if node.domain.startswith(DOMAIN_PREFIX) and node.op_type.startswith(OP_PREFIX):
      yield node
    for inner in subgraphs(node):
      yield from _custom(inner)
