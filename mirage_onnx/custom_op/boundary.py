"""Models cut at the boundaries of the custom nodes, so that each region can be run by itself.

The rewriter keeps the names of tensors: what a custom node reads and makes has the same name in the
original, weights that are stored in another order excepted. So the two models can be cut alike: a
*detached* model holds the regions side by side, and each reads graph inputs (``FED`` + name), even
where another region makes the tensor.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx
from onnx import helper

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.errors import MirageError

#: What a tensor is called where it is fed to a detached region.
FED = "boundary/"


class NamedValue(Protocol):
  """An input of a session, or of a graph."""

  name: str


@dataclass(frozen=True, slots=True)
class Boundary:
  """A custom node: the tensors it reads (no initializers) and makes (not the workspace)."""

  node: str
  reads: tuple[str, ...]
  makes: tuple[str, ...]


def boundaries(rewritten: ModelFile) -> tuple[Boundary, ...]:
  """Of the custom nodes of the main graph, in its (topological) order.

  Raises:
      MirageError: BUNDLE_INVALID, PLAN_INVALID.
  """
  nodes = [n for n in rewritten.custom_nodes() if not n.is_nested]
  if not nodes:
    return ()
  bundle = rewritten.bundle()
  graph = rewritten.proto.graph
  weights = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
  found = []
  for node in nodes:
    if node.plan >= len(bundle.plans):
      raise MirageError("BUNDLE_INVALID", f"node '{node.name}': no plan {node.plan}")
    made = len(parse_plan(bundle.plans[node.plan]).outputs)
    reads = dict.fromkeys(i for i in node.inputs if i and i not in weights)
    found.append(Boundary(node.name, tuple(reads), node.outputs[:made]))
  return tuple(found)


def exposed(original: ModelFile, cuts: Sequence[Boundary]) -> bytes:
  """The original with every tensor that a region reads as a further output.

  Raises:
      MirageError: SHAPES_DIFFER when it lacks one: the other model was not made from it.
  """
  model = onnx.ModelProto()
  model.CopyFrom(original.proto)
  graph = model.graph
  made = {name for node in graph.node for name in node.output}
  given = {v.name for v in (*graph.input, *graph.initializer)}
  outputs = {v.name for v in graph.output}
  for cut in cuts:
    for name in cut.reads:
      if name not in made | given:
        raise _foreign(cut, name)
      if name in made - outputs:
        outputs.add(name)
        graph.output.add(name=name)
  return model.SerializeToString()


def detached_original(
  original: ModelFile, cuts: Sequence[Boundary], values: Mapping[str, np.ndarray]
) -> bytes:
  """The regions of the original: its nodes between what each custom node reads and makes.

  ``values``: what will be fed, for the types. Regions may share nodes: each has its own copy.

  Raises:
      MirageError: SHAPES_DIFFER, as ``exposed``.
  """
  producer = {name: node for node in original.proto.graph.node for name in node.output if name}
  nodes: list[onnx.NodeProto] = []
  # A shape that kernels do not read may be made of an input of the model.
  inputs = {v.name for v in original.proto.graph.input}
  inputs -= {t.name for t in original.proto.graph.initializer}
  for k, cut in enumerate(cuts):
    region = _between(cut, producer)
    names = {i: FED + i for node in region for i in node.input if i in inputs}
    names |= {o: f"{k}/{o}" for node in region for o in node.output if o}
    names |= {name: name for name in cut.makes} | {name: FED + name for name in cut.reads}
    for node in region:
      copy = onnx.NodeProto()
      copy.CopyFrom(node)
      copy.name = f"{k}/{node.name}" if node.name else ""  # of those without a name there may be two
      copy.input[:] = [names.get(i, i) for i in node.input]
      copy.output[:] = [names.get(o, o) for o in node.output]
      nodes.append(copy)
  outputs = [onnx.ValueInfoProto(name=name) for cut in cuts for name in cut.makes]
  return _assemble(original, nodes, values, outputs, [])


def detached_nodes(rewritten: ModelFile, cuts: Sequence[Boundary], values: Mapping[str, np.ndarray]) -> bytes:
  """The custom nodes alone; ``values`` as above."""
  graph = rewritten.proto.graph
  results = [name for cut in cuts for name in cut.makes]
  fed = {name for cut in cuts for name in cut.reads}
  nodes = []
  for node in graph.node:
    if not set(results).isdisjoint(node.output):
      copy = onnx.NodeProto()
      copy.CopyFrom(node)
      copy.input[:] = [FED + i if i in fed else i for i in node.input]
      nodes.append(copy)
  stated = {v.name: v for v in (*graph.value_info, *graph.output)}
  scratch = {o for node in nodes for o in node.output} - set(results)
  return _assemble(rewritten, nodes, values, [stated[r] for r in results], [stated[s] for s in scratch])


def fed(inputs: Iterable[NamedValue], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """``values`` by the names of the ``inputs`` of a detached model."""
  return {i.name: values[i.name.removeprefix(FED)] for i in inputs}


def _between(cut: Boundary, producer: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
  """The nodes that make ``cut.makes`` from ``cut.reads`` and initializers, in order."""
  done: dict[int, onnx.NodeProto] = {}
  todo = [(name, False) for name in reversed(cut.makes)]
  for name in cut.makes:
    if name not in producer:
      raise _foreign(cut, name)
  while todo:
    name, is_ready = todo.pop()
    node = producer.get(name)
    if node is None or name in cut.reads or id(node) in done:
      continue
    if is_ready:
      done[id(node)] = node
    else:
      todo.append((name, True))
      todo.extend((i, False) for i in reversed(node.input))
  return list(done.values())


def _assemble(
  source: ModelFile,
  nodes: Sequence[onnx.NodeProto],
  values: Mapping[str, np.ndarray],
  outputs: Sequence[onnx.ValueInfoProto],
  stated: Sequence[onnx.ValueInfoProto],
) -> bytes:
  """A model of ``nodes`` with the functions, opsets and weights of ``source``."""
  model = onnx.ModelProto()
  model.CopyFrom(source.proto)
  graph = model.graph
  for field in (graph.node, graph.input, graph.output, graph.value_info, graph.initializer):
    del field[:]
  graph.node.extend(nodes)
  used = {name for node in nodes for name in node.input}
  graph.initializer.extend(t for t in source.proto.graph.initializer if t.name in used)
  for fed in sorted(name for name in used if name.startswith(FED)):
    value = values[fed.removeprefix(FED)]
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    graph.input.append(helper.make_tensor_value_info(fed, kind, [None] * value.ndim))
  graph.output.extend(outputs)
  graph.value_info.extend(stated)
  return model.SerializeToString()


def _foreign(cut: Boundary, name: str) -> MirageError:
  why = f"the original has no tensor '{name}', which node '{cut.node}' reads or makes"
  return MirageError("SHAPES_DIFFER", why)
