"""The subgraphs of If, Loop and Scan as *sections*: parts of one flat graph, side by side with the main one.

A section reads nothing of the graph around it but constants: what a run makes outside is an input of its
own, so no region reaches across its border. Every value is named by the way to its subgraph,
``y:then_branch/t``, where ``y`` is the first output of the node that holds it: rewriting keeps these, so a
model and what is made of it name values alike. ``rewrite.sections`` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, NodeProto

from mirage_onnx.importer.graph import defined_names, free_names, subgraphs, unique_names
from mirage_onnx.importer.steps_apart import is_left

#: Operators whose subgraphs are opened.
HOLDERS = frozenset({"If", "Loop", "Scan"})


@dataclass(frozen=True, eq=False, slots=True)
class Section:
  """A subgraph; names are those in its own model, ``flat`` ones those of the flat graph.

  ``path``: what its flat names begin with. ``holder``: its node. ``outer``: the path of the graph that
  has that node. ``flat``: name -> flat name, of all that it defines or reads. ``captures``: what it
  reads that a run makes outside, flat name -> flat name there. ``around``: as ``flat``, of that graph.
  """

  path: str
  outer: str
  holder: NodeProto
  attribute: str
  graph: GraphProto = field(repr=False)
  flat: Mapping[str, str] = field(repr=False)
  captures: Mapping[str, str] = field(repr=False)
  around: Mapping[str, str] = field(repr=False)

  @property
  def key(self) -> str:
    """The flat name of the holder's first output."""
    return self.outer + first_output(self.holder)

  @property
  def given(self) -> tuple[str, ...]:
    """Flat names of what it is given: what it reads outside, and its own inputs."""
    return (*self.captures, *(self.flat[i.name] for i in self.graph.input))


def first_output(node: NodeProto) -> str:
  """The first output that has a name, or ""."""
  return next((o for o in node.output if o), "")


def sections_of(graph: GraphProto) -> tuple[Section, ...]:
  """The sections of a main graph, each before those inside of it.

  None of a subgraph of which a flat name is one of the main graph already.
  """
  own = {name for name, _ in defined_names(graph)}
  return tuple(_sections(graph, "", {n: n for n in own}, _constants(graph), frozenset(own)))


def node_names(graph: GraphProto, sections: Sequence[Section]) -> dict[str, tuple[str, ...]]:
  """A name for every node, by the path of its graph; ``sections``: all of the main graph ``graph``.

  Its own name, where no node of a graph before has it; else with the path before it.
  """
  found = {"": unique_names(graph)}
  used = set(found[""])
  for s in sections:
    names = []
    for own, node in zip(unique_names(s.graph), s.graph.node, strict=True):
      name = own if node.name and own not in used else s.path + own
      while name in used:
        name += "_"
      used.add(name)
      names.append(name)
    found[s.path] = tuple(names)
  return found


def _sections(
  graph: GraphProto, path: str, flat: Mapping[str, str], constants: frozenset[str], taken: frozenset[str]
) -> Iterator[Section]:
  """``flat``: of what the graph defines and reads; ``constants``: names that the graph gives to some."""
  for node in graph.node:
    for attribute in node.attribute if _opens(node) else ():
      if attribute.type != AttributeProto.GRAPH or is_left(node, attribute.name):
        continue
      inner, inside = attribute.g, f"{path}{first_output(node)}:{attribute.name}/"
      names = {name: inside + name for name, _ in defined_names(inner)}
      fixed, captures = set(_constants(inner)), dict[str, str]()
      for name in free_names(inner):
        if name not in flat:
          break  # a graph that is no use to anybody
        if name in constants:
          names[name] = flat[name]
          fixed.add(name)
        else:
          names[name] = inside + name
          captures[inside + name] = flat[name]
      else:
        if taken.isdisjoint((*captures, *(inside + name for name, _ in defined_names(inner)))):
          yield Section(inside, path, node, attribute.name, inner, names, captures, flat)
          yield from _sections(inner, inside, names, frozenset(fixed), taken)


def _opens(node: NodeProto) -> bool:
  return node.domain in ("", "ai.onnx") and node.op_type in HOLDERS and bool(first_output(node))


def _constants(graph: GraphProto) -> frozenset[str]:
  """Values that no run changes and no node computes: they are read where they are."""
  fed = {i.name for i in graph.input}
  found = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
  made = (n for n in graph.node if n.op_type == "Constant" and n.domain in ("", "ai.onnx"))
  return frozenset(found - fed | {first_output(n) for n in made})


def renamed(node: NodeProto, flat: Mapping[str, str]) -> NodeProto:
  """A copy with other names of values, and without its subgraphs: what those capture are inputs."""
  inner = subgraphs(node)
  inputs = [flat.get(i, i) for i in node.input]
  copy = NodeProto()
  if not inner:
    copy.CopyFrom(node)
  else:
    copy.op_type, copy.domain, copy.overload, copy.name = node.op_type, node.domain, node.overload, node.name
    copy.attribute.extend(
      a for a in node.attribute if a.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
    )
  copy.input[:] = inputs
  copy.output[:] = [flat.get(o, o) for o in node.output]
  return copy
