"""A model with its subgraphs opened: one flat graph, and what is known of all its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.declared_names import typed
from mirage_onnx.importer.graph import captured_names, free_names, subgraphs
from mirage_onnx.importer.section_types import Read, Scope, carried_results, repeats, section_scope, stated
from mirage_onnx.importer.sections import Section, node_names, renamed, sections_of
from mirage_onnx.importer.steps_apart import is_left
from mirage_onnx.ir.program import Tensor

#: Key of the property that says of a node which of ``Flat.holders`` it is.
HOLDER = "mirage.holder"
#: Each is checked and inferred by itself, in 2 ms: of more, those that come later stay closed.
MOST_SECTIONS = 512
#: What a malformed subgraph may raise where nobody has looked at it before.
_MALFORMED = (MirageError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, eq=False, slots=True)
class Flat:
  """``proto``: its graph has all sections beside the main graph; holders have lost their subgraphs.

  ``order`` and ``tensors`` as in ``LoadedModel``; ``folded``, too, with what sections read of it.
  By the place of a node in the graph: ``holders``: as they were, and why a subgraph of them is not opened;
  ``repeats``: how often it is run, where that is known and more than once. ``names``: names of nodes that
  are others in the model, and those.
  """

  proto: ModelProto
  order: tuple[int, ...]
  tensors: Mapping[str, Tensor] = field(repr=False)
  folded: Mapping[str, TensorProto] = field(repr=False)
  sections: tuple[Section, ...] = ()
  holders: Mapping[int, tuple[NodeProto, str]] = field(default_factory=dict)
  repeats: Mapping[int, int] = field(default_factory=dict)
  names: Mapping[str, str] = field(default_factory=dict)


def opened(model: ModelProto, main: Scope, opset: int, read: Read) -> Flat | None:
  """``model`` with all subgraphs of which the types can be told beside its graph; None if there are none."""
  opener = _Opener(model, opset, read, sections_of(model.graph))
  opener.open("", main)
  if not opener.found:
    return None
  return _flat(opener)


class _Opener:
  def __init__(self, model: ModelProto, opset: int, read: Read, sections: Sequence[Section]) -> None:
    self.model, self.opset, self.read = model, opset, read
    self.sections = sections
    self.scopes: dict[str, Scope] = {}
    self.counts = {"": 1}
    self.closed: dict[str, str] = {}
    self.found: list[Section] = []

  def open(self, path: str, scope: Scope) -> None:
    """Open the sections of a graph, and what is inside of them; types of their results are types of it."""
    for section in (s for s in self.sections if s.outer == path):
      if len(self.found) == MOST_SECTIONS:
        self.closed[section.key] = f"{MOST_SECTIONS} subgraphs come before it, and no more are opened"
        continue
      try:
        inner = section_scope(section, scope, self.model, self.opset, self.read)
        self.counts[section.path] = self.counts[path] * repeats(section, scope)
      except _MALFORMED as error:
        self.closed[section.key] = " ".join(str(getattr(error, "detail", error)).split())
        continue
      self.found.append(section)
      self.open(section.path, inner)
      scope = scope.with_results(carried_results(section, inner), self.opset, self.read)
    self.scopes[path] = scope


def _flat(opener: _Opener) -> Flat:
  model, scopes, found, closed = opener.model, opener.scopes, opener.found, opener.closed
  counts, main = opener.counts, opener.scopes[""]
  flat = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
  graph = flat.graph
  graph.name = model.graph.name
  for name in (
    "input",
    "output",
    "initializer",
    "sparse_initializer",
    "quantization_annotation",
  ):
    getattr(graph, name).extend(getattr(model.graph, name))
  graph.value_info.extend(typed(model.graph.value_info))
  tensors, folded = dict(main.tensors), dict(main.folded)
  order, holders = list(main.order), dict[int, tuple[NodeProto, str]]()
  captured: dict[str, set[str]] = {}
  for section in found:
    captured.setdefault(section.key, set()).update(section.captures.values())
  times = dict[int, int]()

  every = node_names(model.graph, opener.sections)
  own_names = dict[str, str]()

  def add(nodes: Iterable[NodeProto], path: str, names: Mapping[str, str]) -> None:
    for node, name in zip(nodes, every[path], strict=True):
      copy = renamed(node, names)
      if copy.name != name:
        own_names[name], copy.name = copy.name, name
      if subgraphs(node):
        key = path + next((o for o in node.output if o), "")
        outer = [names.get(n, n) for n in captured_names(node)]
        left = {names.get(n, n) for a in node.attribute if is_left(node, a.name) for n in free_names(a.g)}
        copy.input.extend(
          n for n in outer if key not in captured or key in closed or n in captured[key] | left
        )
        holders[len(graph.node)] = node, closed.get(key, "" if key in captured else "they cannot be opened")
        copy.metadata_props.add(key=HOLDER, value=str(len(graph.node)))
      if counts[path] > 1:
        times[len(graph.node)] = counts[path]
      graph.node.append(copy)

  add(model.graph.node, "", {})
  for section in found:
    scope, names = scopes[section.path], section.flat
    order += [len(graph.node) + i for i in scope.order]
    add(section.graph.node, section.path, names)
    for tensor in section.graph.initializer:
      graph.initializer.add().CopyFrom(tensor)
      graph.initializer[-1].name = names[tensor.name]
    for sparse in section.graph.sparse_initializer:
      graph.sparse_initializer.add().CopyFrom(sparse)
      graph.sparse_initializer[-1].values.name = names[sparse.values.name]
    for name, t in scope.tensors.items():
      if (new := names.get(name, "")).startswith(section.path):
        tensors[new] = replace(t, name=new)
    for name, value in {**scope.constants, **scope.folded}.items():
      if section.path + name in section.captures or name in scope.folded:
        new = names[name]
        folded[new] = TensorProto()
        folded[new].CopyFrom(value)
        folded[new].name = new
    graph.input.extend(stated(tensors[n]) for n in section.given if n not in folded)
    graph.output.extend(ValueInfoProto(name=names[o.name]) for o in section.graph.output)
  said = {v.name for v in graph.value_info}
  made = (tensors[o] for n in graph.node for o in n.output if o and o not in said)
  graph.value_info.extend(stated(t) for t in made if t.dtype is not None)
  return Flat(flat, tuple(order), tensors, folded, tuple(found), holders, times, own_names)
