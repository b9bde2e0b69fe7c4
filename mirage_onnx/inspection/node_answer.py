"""What can be said of any node of a model, in a region or not: for ``explain``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import onnx

from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.graph import nodes_of, subgraphs
from mirage_onnx.inspection.survey import Survey
from mirage_onnx.ir import Tensor
from mirage_onnx.ir.program import Node

_FOLDED = "its value is known before a run: it is a constant of the nodes that read it"


class NodePlace(StrEnum):
  """Where a node is: in regions that are offered, in none, known before a run, or in a subgraph."""

  REGION = "region"
  ALONE = "alone"
  CONSTANT = "constant"
  NESTED = "nested"


@dataclass(frozen=True, slots=True)
class NodeAnswer:
  """A node with its tensors and its time in ONNX Runtime (None: unknown); ``rejection``: why it is alone.

  ``says``: the sentence where there is no refusal.
  """

  name: str
  op: str
  place: NodePlace
  ort_us: float | None = None
  inputs: tuple[Tensor, ...] = ()
  outputs: tuple[Tensor, ...] = ()
  rejection: Rejection | None = None
  says: str = ""


def answer_node(loaded: LoadedModel, survey: Survey, name: str) -> NodeAnswer | None:
  """Of the node called ``name``, or of the one that makes the tensor of that name; None: there is none."""
  by_name = {n.name: n for n in survey.program.nodes}
  makers = {o: n for n in survey.program.nodes for o in n.outputs if o}
  node = by_name.get(name) or makers.get(name)
  if node is not None and not (node.outputs and all(o in loaded.folded for o in node.outputs)):
    return _of_program(survey, node)
  for label, proto in zip(loaded.node_names, loaded.proto.graph.node, strict=True):
    if proto.output and (name == label or name in proto.output):
      return NodeAnswer(label, proto.op_type, NodePlace.CONSTANT, says=_FOLDED)
  for outer, proto in _nested(loaded.given):
    if proto.name and name == proto.name:
      why = f"it is inside of {outer}"
      return NodeAnswer(name, proto.op_type, NodePlace.NESTED, rejection=Rejection("SUBGRAPH", why, (name,)))
  return None


def _of_program(survey: Survey, node: Node) -> NodeAnswer:
  tensors = survey.program.tensors
  inputs, outputs = (
    tuple(tensors[t] for t in names if t in tensors) for names in (node.inputs, node.outputs)
  )
  us = survey.node_us.get(node.name)
  if any(node.name in c.nodes for c in survey.matches.candidates):
    return NodeAnswer(node.name, node.op_type, NodePlace.REGION, us, inputs, outputs)
  given = next((r for r in survey.matches.rejections if node.name in r.nodes), None)
  # What no rule refuses by itself was left out where better cones were kept.
  why = given or Rejection("CUT_PRUNED", "no cone of nodes with this one was worth keeping", (node.name,))
  return NodeAnswer(node.name, node.op_type, NodePlace.ALONE, us, inputs, outputs, why)


def _nested(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.NodeProto]]:
  """Nodes of subgraphs and functions, and what holds them."""
  for node in model.graph.node:
    for graph in subgraphs(node):
      yield from ((f"node {node.name or node.op_type}", inner) for inner in nodes_of(graph))
  for function in model.functions:
    yield from ((f"function {function.name}", inner) for inner in nodes_of(function))
