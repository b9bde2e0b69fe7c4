"""Parts of a model that are models: some of its nodes, with what they read from outside as inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx
from onnx import helper

from mirage_onnx.importer.graph import nodes_of, reads


class ModelParts:
  """The parts of one model; ``model`` holds all its weights.

  Types of values that a part reads or yields are those that the model states, or that onnx infers.
  """

  def __init__(self, model: onnx.ModelProto) -> None:
    self.model = model
    graph = model.graph
    self.stored = {t.name: t for t in graph.initializer}
    self._sparse = {t.values.name: t for t in graph.sparse_initializer}
    self._types = _types(model)
    self.makers = {o: i for i, n in enumerate(graph.node) for o in n.output if o}
    self.order = _ordered(graph.node, self.makers)

  def part(
    self, nodes: Sequence[int], outputs: Iterable[str] | None = None, given: Iterable[str] = ()
  ) -> onnx.ModelProto | None:
    """The model of ``nodes`` (indices, any order); None where the type of a value is not known.

    ``outputs``: of those that it could have (``yields``), some; ``given``: initializers that become inputs.
    """
    graph, inside = self.model.graph, set(nodes)
    ours = [graph.node[i] for i in self.order if i in inside]
    made = {o for n in ours for o in n.output if o}
    every = self.yields(nodes)
    wanted = every if outputs is None else [o for o in every if o in set(outputs)]
    free, as_inputs = set(given), dict[str, onnx.ValueInfoProto]()
    kept: dict[str, onnx.TensorProto] = {}
    sparse: dict[str, onnx.SparseTensorProto] = {}
    for name in dict.fromkeys(r for n in ours for r in reads(n)):
      if name in made:
        continue
      if name in self._sparse:
        sparse[name] = self._sparse[name]
      elif name in self.stored and name not in free:
        kept[name] = self.stored[name]
        if name in {v.name for v in graph.input}:  # in old models initializers are inputs, too
          as_inputs[name] = self._types[name]
      elif name in self._types:
        as_inputs[name] = self._types[name]
      else:
        return None
    if not wanted or any(o not in self._types for o in wanted):
      return None
    part = helper.make_graph(
      ours, graph.name or "reduced", list(as_inputs.values()), [self._types[o] for o in wanted],
      list(kept.values()), sparse_initializer=list(sparse.values()),
    )  # fmt: skip
    result = helper.make_model(
      part, opset_imports=self.model.opset_import, functions=self._functions(ours),
      ir_version=self.model.ir_version, producer_name=self.model.producer_name,
    )  # fmt: skip
    used = [v for v in graph.value_info if v.name in made and v.name not in wanted]
    result.graph.value_info.extend(used)
    return result

  def yields(self, nodes: Sequence[int]) -> list[str]:
    """What a part has to yield: outputs of the model that it makes, and what only others read."""
    graph, inside = self.model.graph, set(nodes)
    read = {r for i in inside for r in reads(graph.node[i])}
    ours = [o for i in self.order if i in inside for o in graph.node[i].output if o]
    outputs = {o.name for o in graph.output}
    return [o for o in ours if o in outputs or o not in read]

  def needed(self, nodes: Sequence[int], outputs: Iterable[str]) -> tuple[int, ...]:
    """Those of ``nodes`` that ``outputs`` are computed from."""
    inside, found = set(nodes), set[int]()
    waiting = [self.makers[o] for o in outputs if o in self.makers]
    while waiting:
      i = waiting.pop()
      if i in inside and i not in found:
        found.add(i)
        waiting += [self.makers[r] for r in reads(self.model.graph.node[i]) if r in self.makers]
    return tuple(i for i in self.order if i in found)

  def _functions(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    """Those that nodes call, and those that these call."""
    known = {(f.domain, f.name): f for f in self.model.functions}
    used: dict[tuple[str, str], None] = {}
    holder = onnx.GraphProto()
    holder.node.extend(nodes)
    waiting: list[onnx.GraphProto | onnx.FunctionProto] = [holder]
    while waiting:
      for node in nodes_of(waiting.pop()):
        key = (node.domain, node.op_type)
        if key in known and key not in used:
          used[key] = None
          waiting.append(known[key])
    return [f for key, f in known.items() if key in used]


def _types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
  """Name -> its type, of every value of the main graph that has one."""
  light = onnx.ModelProto()
  light.CopyFrom(model) if model.ByteSize() < 1 << 28 else light.CopyFrom(_without_data(model))
  try:
    light = onnx.shape_inference.infer_shapes(light)
  except Exception:  # what is stated is all there is
    light = model
  found = {v.name: v for v in (*light.graph.value_info, *light.graph.input, *light.graph.output)}
  found = {n: v for n, v in found.items() if v.type.WhichOneof("value")}
  for t in model.graph.initializer:
    if t.name not in found:
      found[t.name] = helper.make_tensor_value_info(t.name, t.data_type, list(t.dims))
  return found


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
  """``model``, whose large initializers are inputs: inference only asks for their types."""
  light = onnx.ModelProto()
  for field, value in model.ListFields():
    if field.name != "graph":
      target = getattr(light, field.name)
      if hasattr(target, "extend"):
        target.extend(value)
      else:
        setattr(light, field.name, value)
  graph = light.graph
  graph.node.extend(model.graph.node)
  for name in ("input", "output", "value_info"):
    getattr(graph, name).extend(getattr(model.graph, name))
  graph.name = model.graph.name
  inputs = {v.name for v in graph.input}
  for t in model.graph.initializer:
    if len(t.raw_data) <= 1 << 12:
      graph.initializer.append(t)
    elif t.name not in inputs:
      graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
  return light


def _ordered(nodes: Sequence[onnx.NodeProto], makers: dict[str, int]) -> tuple[int, ...]:
  """Indices, producers first, else in the order of the file."""
  done: dict[int, None] = {}

  def visit(start: int) -> Iterator[int]:
    stack = [start]
    while stack:
      i = stack[-1]
      if i in done:
        stack.pop()
        continue
      waiting = [
        makers[r] for r in reads(nodes[i]) if r in makers and makers[r] not in done and makers[r] != i
      ]
      if waiting and not set(waiting) & set(stack):
        stack += waiting
      else:
        yield stack.pop()

  for n in range(len(nodes)):
    for i in visit(n):
      done[i] = None
  return tuple(done)
