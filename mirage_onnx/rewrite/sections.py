"""The way back from a rewritten flat graph: every section is the subgraph of its node again.

New weights and the bundle stay initializers of the main graph, which subgraphs see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from mirage_onnx.importer.graph import nodes_of
from mirage_onnx.importer.opening import HOLDER, Flat
from mirage_onnx.importer.sections import Section, first_output
from mirage_onnx.ir.program import Tensor
from mirage_onnx.rewrite.value_types import forget_contradicted

#: (flat name of a holder's first output, attribute) -> its subgraph.
_Made = Mapping[tuple[str, str], onnx.GraphProto]


def all_names(model: onnx.ModelProto) -> set[str]:
  """Names of all values and nodes, of subgraphs too: none of them is free for something new."""
  found = set[str]()
  graphs = [model.graph]
  for node in nodes_of(model.graph):
    found |= {node.name, *node.input, *node.output}
    graphs += [a.g for a in node.attribute if a.HasField("g")]
    graphs += [g for a in node.attribute for g in a.graphs]
  for graph in graphs:
    found |= {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    found |= {t.values.name for t in graph.sparse_initializer}
  return found


def closed_again(
  rewritten: onnx.ModelProto,
  nested: onnx.ModelProto,
  flat: Flat,
  made: Iterable[str],
  tensors: Mapping[str, Tensor],
) -> onnx.ModelProto:
  """``rewritten`` with subgraphs in place of sections. It was made of ``flat``, which was made of ``nested``.

  ``made``: what custom nodes yield, of which a graph says the type; ``tensors``: what is known of
  values of the flat graph. ``rewritten`` is changed.
  """
  graph = rewritten.graph
  home = {f: s.path for s in flat.sections for f in s.flat.values() if f.startswith(s.path)}
  done = dict[tuple[str, str], onnx.GraphProto]()
  new = frozenset(made)
  for section in reversed(flat.sections):  # inner ones first
    done[section.key, section.attribute] = _subgraph(section, graph, flat, home, new, done, tensors)
  stated = new | {v.name for v in nested.graph.value_info}
  nodes = [_back(n, {}, flat, done) for n in graph.node if not _home(n, home)]
  for field, keep in (
    (graph.initializer, lambda t: t.name not in home),
    (graph.sparse_initializer, lambda t: t.values.name not in home),
    (graph.value_info, lambda v: v.name not in home and v.name in stated),
  ):
    _filter(field, keep)
  for info in graph.value_info:
    if info.name in new:
      _forget_names(info)
  for field in ("node", "input", "output"):
    del getattr(graph, field)[:]
  graph.node.extend(nodes)
  graph.input.extend(nested.graph.input)
  graph.output.extend(nested.graph.output)
  _type_outputs(graph, {v.name: v for v in graph.value_info}, ranked=False)
  forget_contradicted(graph, tensors)
  return rewritten


def _subgraph(
  section: Section,
  graph: onnx.GraphProto,
  flat: Flat,
  home: Mapping[str, str],
  new: frozenset[str],
  done: _Made,
  tensors: Mapping[str, Tensor],
) -> onnx.GraphProto:
  made = onnx.GraphProto()
  for field, value in section.graph.ListFields():
    if field.name not in ("node", "initializer", "sparse_initializer", "value_info"):
      _set(made, field.name, value)
  names = {flat_name: name for name, flat_name in section.flat.items()}
  nodes = [n for n in graph.node if _home(n, home) == section.path]
  made.node.extend(_back(n, names, flat, done) for n in nodes)
  for t in graph.initializer:
    if home.get(t.name) == section.path:
      made.initializer.add().CopyFrom(t)
      made.initializer[-1].name = names[t.name]
  for s in graph.sparse_initializer:
    if home.get(s.values.name) == section.path:
      made.sparse_initializer.add().CopyFrom(s)
      made.sparse_initializer[-1].values.name = names[s.values.name]
  yielded = {o: names.get(o, o) for n in nodes for o in n.output if o}
  kept = {*yielded.values(), *(i.name for i in section.graph.input)}
  made.value_info.extend(v for v in section.graph.value_info if v.name in kept)
  stated = {v.name for v in made.value_info}
  types = dict[str, onnx.ValueInfoProto]()
  for info in graph.value_info:
    if info.name in new and info.name in yielded:
      types[yielded[info.name]] = copy = onnx.ValueInfoProto()
      copy.CopyFrom(info)
      copy.name = yielded[info.name]
      _forget_names(copy)
  outputs = {v.name for v in made.output}
  made.value_info.extend(v for name, v in types.items() if name not in stated | outputs)
  _type_outputs(made, types, ranked=section.holder.op_type == "Scan")
  forget_contradicted(made, {name: tensors[o] for o, name in yielded.items() if o in tensors})
  return made


def _home(node: onnx.NodeProto, home: Mapping[str, str]) -> str:
  return next((home[o] for o in node.output if o in home), "")


def _back(node: onnx.NodeProto, names: Mapping[str, str], flat: Flat, done: _Made) -> onnx.NodeProto:
  """A node of the flat graph as one of its own graph; a holder has its subgraphs again."""
  copy = onnx.NodeProto()
  held = next((p.value for p in node.metadata_props if p.key == HOLDER), None)
  if held is None:
    copy.CopyFrom(node)
    if (name := flat.names.get(node.name)) == "":
      copy.ClearField("name")
    elif name:
      copy.name = name
    copy.input[:] = [names.get(i, i) for i in node.input]
    copy.output[:] = [names.get(o, o) for o in node.output]
    return copy
  own, _ = flat.holders[int(held)]
  for field, value in own.ListFields():
    if field.name != "attribute":
      _set(copy, field.name, value)
  for a in own.attribute:
    graph = done.get((first_output(node), a.name))
    added = copy.attribute.add()
    for field, value in a.ListFields():
      _set(added, field.name, graph if field.name == "g" and graph is not None else value)
  return copy


def _type_outputs(graph: onnx.GraphProto, types: Mapping[str, onnx.ValueInfoProto], *, ranked: bool) -> None:
  """onnxruntime asks for the type of what custom nodes yield, also where it is a result of the graph.

  ``ranked``: and for its rank, as Scan does; of other nodes it infers that itself.
  """
  for output in (o for o in graph.output if o.name in types):
    known = types[output.name].type
    if not output.type.WhichOneof("value"):
      output.type.CopyFrom(known)
    elif ranked and not output.type.tensor_type.HasField("shape") and known.tensor_type.HasField("shape"):
      output.type.tensor_type.shape.CopyFrom(known.tensor_type.shape)


def _forget_names(info: onnx.ValueInfoProto) -> None:
  """Names of dimensions that the importer has made up."""
  for d in info.type.tensor_type.shape.dim:
    if d.HasField("dim_param"):
      d.ClearField("dim_param")


def _set(message: Any, field: str, value: Any) -> None:
  if hasattr(value, "CopyFrom"):
    getattr(message, field).CopyFrom(value)
  elif isinstance(value, (str, bytes, int, float)):
    setattr(message, field, value)
  else:
    getattr(message, field).extend(value)


def _filter(field: Any, keep: Any) -> None:
  for i in range(len(field) - 1, -1, -1):
    if not keep(field[i]):
      del field[i]
