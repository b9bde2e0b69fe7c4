"""The interface of a custom node, made from the original model instead of read from the bundle.

A record of the interface stands in the same file as the plan, so who changes one can change the other.
``verify`` has the original: its nodes between what a custom node reads and makes are a region, and a
region with the recorded µGraph has one interface. In subgraphs, too: both models name their values by the
way to the subgraph (``importer.sections``). Where the region is not found again (nodes that stand beside
each other in one kernel, tensors whose names are others) nothing is derived, and it is said.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx

from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.interface import Interface
from mirage_onnx.custom_op.launch_plan import Planned, plan_candidate
from mirage_onnx.custom_op.model_nodes import CustomNode
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.custom_op.provenance import recorded_extents
from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.importer import LoadedModel, import_model
from mirage_onnx.importer.sections import sections_of
from mirage_onnx.ir import Candidate, KernelParams, Program, Region, parse_ugraph
from mirage_onnx.match.repeated import RegionMaker


@dataclass(frozen=True, slots=True)
class Derived:
  """How many of the ``nodes`` have the interface that the original gives; the others' could not be made."""

  nodes: int
  checked: int

  @property
  def text(self) -> str:
    """For a report."""
    if not self.nodes:
      return ""
    return f"the interfaces of {self.checked} of {self.nodes} nodes follow from the original"


def check_interfaces(
  original: LoadedModel, made: onnx.GraphProto, nodes: Sequence[CustomNode], bundle: Bundle
) -> Derived:
  """Compare what is recorded with what the original gives; plans have been compared with the records.

  ``nodes``: of the main graph ``made`` and its subgraphs.

  Raises:
      MirageError: SOURCE_MISMATCH, naming the node.
  """
  program = import_model(original)
  maker = RegionMaker(program)
  sections = {id(s.graph): s.flat for s in sections_of(made)}  # ``nodes`` hold their graphs
  checked = 0
  for node in nodes:
    record = bundle.provenance[node.plan]
    if node.is_nested:
      flat = sections.get(id(node.graph))
      if flat is None:
        continue
      inputs, outputs = (tuple(flat.get(n, n) for n in names) for names in (node.inputs, node.outputs))
      node = replace(node, inputs=inputs, outputs=outputs)
    region = _region(program, maker, node, record, bundle)
    if region is None:
      continue
    planned = _planned(region, record)
    if planned is None:
      continue
    if why := next(_differences(planned, node, record, program), ""):
      raise MirageError("SOURCE_MISMATCH", f"node '{node.name}': {why}")
    checked += 1
  return Derived(len(nodes), checked)


def _region(
  program: Program, maker: RegionMaker, node: CustomNode, record: Mapping[str, Any], bundle: Bundle
) -> Region | None:
  """The region of the original that the node replaces, if it is the recorded one."""
  made = node.outputs[: len(parse_plan(bundle.plans[node.plan]).outputs)]
  covered = _between(program, made, frozenset(node.inputs))
  if not covered:
    return None
  try:
    region = maker.make(covered, frozenset(made)).region
  except (RejectionError, LookupError, ValueError):
    return None
  extents, runtime = recorded_extents(record["region"])
  if set(runtime) != set(region.runtime) or extents.keys() != region.extents.keys():
    return None
  region = replace(region, extents={**region.extents, **{a: extents[a] for a in runtime}})
  return region if region.text == record["region"] else None


def _between(program: Program, made: Sequence[str], read: frozenset[str]) -> frozenset[str]:
  """The nodes that make ``made`` of ``read`` and of weights; none where others are needed, too."""
  producer = {o: n for n in program.nodes for o in n.outputs}
  covered, todo = set[str](), list(made)
  while todo:
    name = todo.pop()
    node = producer.get(name)
    if node is None:
      if name not in program.weights and name not in program.constants and name not in read:
        return frozenset()
      continue
    if node.name in covered:
      continue
    if node.barrier is not None or not node.steps:
      return frozenset()
    covered.add(node.name)
    todo += [i for i in node.operands if i not in read]
  return frozenset(covered)


def _planned(region: Region, record: Mapping[str, Any]) -> Planned | None:
  graph = parse_ugraph(record["ugraph"])
  params = tuple(KernelParams.from_text(p) for p in record["params"])
  recorded = Interface.from_record(record["interface"])
  operands = recorded.head.inputs[len(region.reads) :]
  try:
    return plan_candidate(region, Candidate(graph, params), ()).placed((), operands)
  except (MirageError, RejectionError, LookupError, ValueError):
    return None


def _differences(
  planned: Planned, node: CustomNode, record: Mapping[str, Any], program: Program
) -> Iterator[str]:
  ours, theirs = planned.interface.to_record(), record["interface"]
  for what in ("head", "inputs", "outputs", "sizes"):
    if ours[what] != theirs.get(what):
      found, wanted = (str(x)[:150] for x in (theirs.get(what), ours[what]))
      yield f"its recorded {what} are not those of the original: {found}, where it has {wanted}"
  for k, (name, given) in enumerate(zip(planned.inputs, node.inputs, strict=False)):
    if name != given and name not in program.weights:  # a weight may be stored in another order
      yield f"its input {k + 1} is {given!r}, the original's is {name!r}"
  for k, (name, made) in enumerate(zip(planned.outputs, node.outputs, strict=False)):
    if name != made:
      yield f"its output {k} is {made!r}, the original's is {name!r}"
