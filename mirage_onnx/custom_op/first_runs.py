"""Subgraphs unrolled beside the main graph: each is run once, with what its first run is given.

So a custom node in a branch or a body can be checked like one of the main graph. Nodes that hold
subgraphs stay as they are; the copies have the flat names of ``importer.sections``, which are the same
in a model and in what is made of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mirage_onnx.custom_op.runtime import DOMAIN_PREFIX, OP_PREFIX
from mirage_onnx.importer.graph import defined_names
from mirage_onnx.importer.sections import Section, sections_of


def custom_paths(model: onnx.ModelProto, nodes: Collection[str]) -> frozenset[str]:
  """The sections that hold custom nodes of these names, and those around them."""
  sections = sections_of(model.graph)
  outer = {s.path: s.outer for s in sections}
  found = set[str]()
  for s in sections:
    own = (n.name or n.op_type for n in s.graph.node if n.domain.startswith(DOMAIN_PREFIX))
    path = s.path if any(n in nodes for n in own if n) else ""
    while path and path not in found:
      found.add(path)
      path = outer[path]
  return frozenset(found)


def custom_names(model: onnx.ModelProto) -> frozenset[str]:
  """The custom nodes in subgraphs that have a path."""
  return frozenset(
    n.name or n.op_type
    for s in sections_of(model.graph)
    for n in s.graph.node
    if n.domain.startswith(DOMAIN_PREFIX) and n.op_type.startswith(OP_PREFIX)
  )


def first_runs(model: onnx.ModelProto, paths: Collection[str]) -> onnx.ModelProto:
  """``model`` with the sections of these paths beside its main graph; ``model`` itself without any."""
  sections = [s for s in sections_of(model.graph) if s.path in paths]
  if not sections:
    return model
  result = onnx.ModelProto()
  result.CopyFrom(model)
  graph = result.graph
  for s in sections:
    graph.node.extend(_given(s))
    for tensor in s.graph.initializer:
      graph.initializer.add().CopyFrom(tensor)
      graph.initializer[-1].name = s.flat[tensor.name]
    for sparse in s.graph.sparse_initializer:
      graph.sparse_initializer.add().CopyFrom(sparse)
      graph.sparse_initializer[-1].values.name = s.flat[sparse.values.name]
    for node in s.graph.node:
      copy = graph.node.add()
      copy.CopyFrom(node)
      _rename(copy, s.flat)
    for value in (*s.graph.value_info, *s.graph.output):
      if (name := s.flat.get(value.name, "")).startswith(s.path) and value.type.WhichOneof("value"):
        info = graph.value_info.add()
        info.CopyFrom(value)
        info.name = name
  return result


def _given(s: Section) -> Iterator[onnx.NodeProto]:
  """The nodes that make what the section reads and is given."""
  for name, outer in s.captures.items():
    yield helper.make_node("Identity", [outer], [name])
  node, inputs = s.holder, [i.name for i in s.graph.input]
  names = [s.around.get(i, i) for i in node.input]
  if node.op_type == "Loop":
    rank = len(s.graph.input[0].type.tensor_type.shape.dim)
    first = numpy_helper.from_array(np.zeros([1] * min(rank, 1), np.int64))
    yield helper.make_node("Constant", [], [s.flat[inputs[0]]], value=first)
    on = numpy_helper.from_array(
      np.ones([1] * min(len(s.graph.input[1].type.tensor_type.shape.dim), 1), np.bool_)
    )
    yield helper.make_node("Constant", [], [s.flat[inputs[1]]], value=on)
    inputs, names = inputs[2:], names[2:]
  attributes = {a.name: a for a in node.attribute}
  scanned = attributes["num_scan_inputs"].i if node.op_type == "Scan" else 0
  axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else [0] * scanned
  carried = len(inputs) - scanned
  for k, (own, outer) in enumerate(zip(inputs, names, strict=False)):
    if k < carried:
      yield helper.make_node("Identity", [outer], [s.flat[own]])
      continue
    place = f"{s.flat[own]}/first"
    zero = numpy_helper.from_array(np.zeros((), np.int64))
    yield helper.make_node("Constant", [], [place], value=zero)
    yield helper.make_node("Gather", [outer, place], [s.flat[own]], axis=axes[k - carried])


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
  """Other names of values, also where subgraphs read them."""
  node.input[:] = [names.get(i, i) for i in node.input]
  node.output[:] = [names.get(o, o) for o in node.output]
  for a in node.attribute:
    for graph in (*([a.g] if a.HasField("g") else ()), *a.graphs):
      own = {name for name, _ in defined_names(graph)}
      outer = {k: v for k, v in names.items() if k not in own}
      for inner in graph.node:
        _rename(inner, outer)
      for output in graph.output:
        output.name = outer.get(output.name, output.name)
