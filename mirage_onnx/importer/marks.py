"""Marks: what nodes say of themselves while a model is searched, a property each; no written model has one.

Parts of an operator that was taken apart say which part they are, so that those of which nothing was replaced
are one node again.
"""

from collections.abc import Iterable

from onnx import NodeProto


def mark_of(node: NodeProto, key: str) -> str:
  """What a node says under ``key``; "" where it says nothing."""
  return next((p.value for p in node.metadata_props if p.key == key), "")


def without_marks(nodes: Iterable[NodeProto], *keys: str) -> None:
  """Takes the properties of these keys from nodes; others stay in their order."""
  for node in nodes:
    others = [p for p in node.metadata_props if p.key not in keys]
    if len(others) < len(node.metadata_props):
      del node.metadata_props[:]
      node.metadata_props.extend(others)
