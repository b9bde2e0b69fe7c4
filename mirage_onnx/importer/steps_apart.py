"""A decoder whose steps have a branch of their own: one new token, a cache that has room for it.

The graph that onnxruntime-genai's builder writes takes a prompt or one new token, and its caches may be
one buffer or grow; which it is shows each run. (Caches of a window only, as Gemma-3 has them beside the
others, stay as they are.) So that kernels for steps need not be right, nor fast,
for prompts, the graph stands twice in an ``If``: with one new token in a cache that keeps its size, and
as it was for all else. Both branches read the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx import (
  AttributeProto,
  GraphProto,
  ModelProto,
  NodeProto,
  ValueInfoProto,
)

from mirage_onnx.importer.graph import dims_of, nodes_of, subgraphs
from mirage_onnx.importer.marks import mark_of
from mirage_onnx.importer.quick_gelus import with_gelus
from mirage_onnx.importer.step_condition import condition

#: The operator whose cache is one buffer.
CACHED = "GroupQueryAttention"
#: The property of the ``If``, of which the other branch stays as it is, and of operators with such a cache.
STEPS = "pkg.mirage_onnx.steps"
#: The property of the ``If`` that says what dimensions have in the branch of steps, as ``batch=1 new=1``.
_SIZES = "pkg.mirage_onnx.sizes"
#: Properties of nodes that no written model keeps.
STEP_MARKS = (STEPS, _SIZES)
_STEP, _OTHERS = "/step", "/others"
#: In sizes of steps, where no dimension is called so: how many rows caches have, if that is one number only.
ROOM = " rows"
#: New tokens of a prompt that is timed.
PROMPT = 256
#: From which a Shape may be of one dimension.
_OPSET = 15
_QUERY, _PASTS, _TOTAL = 0, (3, 4), 6
#: Operators that make of shapes how long all is together.
_OF_SHAPES = frozenset({"Shape", "Gather", "Cast", "Squeeze", "Unsqueeze", "Slice", "Identity"})


@dataclass(frozen=True, slots=True)
class StepDecoder:
  """``fixed``: sizes in a step, of new tokens, too; ``past``: a cache; ``total``: what makes ``length``.

  ``sizes``: of names that the operators leave no choice (of a head). ``new``: the name of new tokens.
  ``rows``: how many the caches have in a step, if that is one number; ``room``: the name of that dimension.
  """

  new: str
  fixed: Mapping[str, int]
  past: str
  total: tuple[NodeProto, ...]
  length: str
  sizes: Mapping[str, int]
  room: str
  rows: int | None

  def known(self, value: ValueInfoProto) -> ValueInfoProto:
    """A copy, with numbers for the names that have one size only."""
    made = ValueInfoProto()
    made.CopyFrom(value)
    for d in made.type.tensor_type.shape.dim:
      if d.dim_param in self.sizes:
        d.dim_value = self.sizes[d.dim_param]
    return made


def steps_apart(proto: ModelProto, sizes: Mapping[str, int] | None = None) -> ModelProto:
  """``proto`` itself where it is no decoder of that kind.

  ``sizes``: by name, of dimensions of inputs; steps of others go with the prompts. With ``ROOM`` so do
  those with caches of another size.
  """
  opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
  found = _decoder(proto.graph, sizes or {}) if opset >= _OPSET else None
  if found is None:
    return proto
  made = ModelProto()
  made.CopyFrom(proto)
  graph = made.graph
  del graph.node[:]
  del graph.value_info[:]
  for values in (graph.input, graph.output):
    known = [found.known(v) for v in values]
    del values[:]
    values.extend(known)
  names = _Names(proto.graph)
  graph.node.extend(condition(found, proto.graph, names.fresh))
  holder = graph.node.add(op_type="If", name=names.fresh("steps"), input=[graph.node[-1].output[0]])
  holder.output.extend(o.name for o in proto.graph.output)
  holder.metadata_props.add(key=STEPS, value="then_branch")
  sized = dict(found.fixed) if found.rows is None else {**found.fixed, found.room: found.rows}
  said = " ".join(f"{n}={size}" for n, size in sorted(sized.items()))
  holder.metadata_props.add(key=_SIZES, value=said)
  for attribute, end in (("then_branch", _STEP), ("else_branch", _OTHERS)):
    branch = _branch(found, proto.graph, end, names)
    holder.attribute.add(name=attribute, type=AttributeProto.GRAPH, g=branch)
  return made


def apart_as_in(proto: ModelProto, made: ModelProto, sizes: Mapping[str, int] | None = None) -> ModelProto:
  """``proto`` with its steps apart where ``made``, which was made of it, has them so; else itself.

  ``sizes``: as in ``steps_apart``.
  """
  holders = {(n.name, *n.output) for n in made.graph.node if n.op_type == "If"}
  if not holders:
    return proto
  found = steps_apart(proto, sizes)
  last = found.graph.node[-1]
  return found if found is not proto and (last.name, *last.output) in holders else proto


def is_apart(proto: ModelProto) -> bool:
  """Whether the steps of a model have a branch."""
  return any(p.key == STEPS for n in proto.graph.node for p in n.metadata_props)


def is_step(proto: ModelProto, sizes: Mapping[str, int]) -> bool:
  """Whether a run at these sizes takes the branch of steps of a model that has one, if its cache has room."""
  held = [sizes_in(n, a.name) for n in proto.graph.node for a in n.attribute if has_steps(n, a.name)]
  return all(sizes.get(name, size) == size for own in held for name, size in own.items())


def prompt_of(proto: ModelProto, sizes: Mapping[str, int]) -> dict[str, int] | None:
  """``sizes`` of a step of a model as those of a prompt, which takes the other branch; None of other models.

  Of so many new tokens that they are no more than any other dimension of lengths.
  """
  found = _decoder(proto.graph, sizes)
  if found is None or found.new not in sizes:
    return None
  known = {v.name: dims_of(v) for v in proto.graph.input}
  shapes = [n.input[0] for n in found.total if n.op_type == "Shape"]
  lengths = {d for name in (found.past, *shapes) for d in known[name] if d not in found.fixed}
  new = min(
    PROMPT, *(sizes[d] for d in lengths if isinstance(d, str) and d in sizes and d not in found.sizes)
  )
  return {**sizes, found.new: new} if new > 1 else None


def step_sizes(proto: ModelProto) -> dict[str, int]:
  """Name of a dimension -> its size in the branch of steps of a written model; nothing where there is none.

  Of the last node's branches: what the first yields has numbers where the second, as the graph, has names.
  """
  last = proto.graph.node[-1] if proto.graph.node else None
  if last is None or last.op_type != "If":
    return {}
  branches = {a.name: a.g for a in last.attribute}
  if {*branches} != {"then_branch", "else_branch"}:
    return {}
  steps, others = (branches[n].output for n in ("then_branch", "else_branch"))
  if not all(o.name.endswith(_STEP) for o in steps) or not all(o.name.endswith(_OTHERS) for o in others):
    return {}
  caches = {x for n in branches["else_branch"].node if n.op_type == CACHED for x in n.output[1:]}
  found = dict[str, int]()
  for a, b in zip(steps, others, strict=False):
    for k, (own, theirs) in enumerate(zip(dims_of(a), dims_of(b), strict=False)):
      if isinstance(theirs, str) and isinstance(own, int) and own > 0:
        found[ROOM if k == 2 and b.name in caches else theirs] = own
  return found


def named_step_sizes(proto: ModelProto) -> dict[str, int]:
  """As ``step_sizes``, by names that inputs have: what has caches of so many rows calls them somehow."""
  found = step_sizes(proto)
  rows = found.pop(ROOM, None)
  if rows is None:
    return found
  others = next(a.g for a in proto.graph.node[-1].attribute if a.name == "else_branch")
  whole = [n for n in others.node if n.op_type == CACHED and not _holds_window(n)]
  caches = {x for n in whole for i in _PASTS for x in n.input[i : i + 1]}
  rooms = (dims_of(v)[2] for v in proto.graph.input if v.name in caches)
  return found | {room: rows for room in rooms if isinstance(room, str)}


def room_of(proto: ModelProto) -> str:
  """The name of the dimension of caches in a decoder whose steps may have a branch; "" of other models."""
  found = _decoder(proto.graph, {})
  return found.room if found is not None else ""


def is_left(node: NodeProto, attribute: str) -> bool:
  """Whether a subgraph is that of what is no step, which stays as it is."""
  return any(p.key == STEPS and p.value != attribute for p in node.metadata_props)


def has_steps(node: NodeProto, attribute: str) -> bool:
  """Whether a subgraph is that of steps."""
  return any(p.key == STEPS and p.value == attribute for p in node.metadata_props)


def step_graphs(proto: ModelProto) -> list[GraphProto]:
  """The branches of steps in the main graph."""
  holders = (n for n in proto.graph.node if n.op_type == "If")
  return [a.g for n in holders for a in n.attribute if has_steps(n, a.name)]


def sizes_in(node: NodeProto, attribute: str) -> dict[str, int]:
  """What dimensions of what is around it are in the branch of steps, by name; no other run gets there."""
  if not has_steps(node, attribute):
    return {}
  said = mark_of(node, _SIZES)
  return {name: int(size) for name, _, size in (x.rpartition("=") for x in said.split(" ") if x)}


def keeps_its_room(node: NodeProto) -> bool:
  """Whether a run gets to this operator only with a cache that has room for what is new."""
  return any(p.key == STEPS for p in node.metadata_props)


class _Names:
  def __init__(self, graph: GraphProto) -> None:
    every = [*nodes_of(graph)]
    self.taken = {x for n in every for x in (*n.input, *n.output, n.name)}
    self.taken |= {v.name for v in (*graph.input, *graph.output, *graph.initializer, *graph.value_info)}

  def fresh(self, name: str) -> str:
    while name in self.taken:
      name += "_"
    self.taken.add(name)
    return name


def _decoder(graph: GraphProto, wanted: Mapping[str, int]) -> StepDecoder | None:
  """What the model is, if it is one; ``wanted``: sizes in its steps."""
  nodes = [n for n in graph.node if n.op_type == CACHED and n.domain == "com.microsoft"]
  makers = {o: n for n in graph.node for o in n.output if o}
  stored = {t.name for t in graph.initializer}
  inputs = {v.name: v for v in graph.input if v.name not in stored}
  outputs = {v.name for v in graph.output}
  known = {v.name: dims_of(v) for v in (*graph.value_info, *graph.input, *graph.output)}
  if not nodes or any(o not in makers for o in outputs) or any(map(subgraphs, graph.node)):
    return None
  new, pasts, windows = set[int | str](), set[int | str](), set[int | str]()
  sizes = dict[str, int]()
  for n in nodes:
    if len(n.input) <= _TOTAL or len(n.output) != 3 or not outputs.issuperset(n.output[1:]):
      return None
    query, *caches = (known.get(n.input[i], ()) for i in (_QUERY, *_PASTS))
    if len(query) != 3 or any(n.input[i] not in inputs for i in _PASTS) or any(len(c) != 4 for c in caches):
      return None
    new.add(query[1])
    (windows if _holds_window(n) else pasts).update(c[2] for c in caches)
    heads = _number(n, "num_heads") + (0 if n.input[1] else 2 * _number(n, "kv_num_heads"))
    if isinstance(query[2], int) and heads and query[2] % heads == 0:
      sizes |= {c[3]: query[2] // heads for c in caches if isinstance(c[3], str)}
  (first,), (past,) = (tuple(x) if len(x) == 1 else ("",) for x in (new, pasts))
  total = _made_of_shapes(nodes[0].input[_TOTAL], makers, inputs)
  has_new = any(first in known[name] for name in inputs)
  if not (isinstance(first, str) and first and isinstance(past, str) and past and total and has_new):
    return None
  if first == past or {first, past} & windows or len({n.input[_TOTAL] for n in nodes}) != 1:
    return None
  lengths = {past, *windows, *(d for n in nodes for d in known.get(n.output[1], ())[2:3])}
  names = {d for name in inputs for d in known[name] if d not in lengths | {*sizes}}
  fixed = {n: size for n, size in wanted.items() if n in names and " " not in n} | {first: 1}
  one = next(n for n in nodes if not _holds_window(n))
  length = one.input[_TOTAL]
  return StepDecoder(first, fixed, one.input[_PASTS[0]], total, length, sizes, past, wanted.get(ROOM))


def _holds_window(node: NodeProto) -> bool:
  """Whether a cache is as long as a window, which moves: it has no room to keep."""
  return bool(_number(node, "sliding_window_cache"))


def _number(node: NodeProto, name: str) -> int:
  return next((a.i for a in node.attribute if a.name == name), 0)


def _made_of_shapes(
  name: str, makers: Mapping[str, NodeProto], inputs: Mapping[str, ValueInfoProto]
) -> tuple[NodeProto, ...]:
  """The nodes that make a number of shapes of inputs, in order; none where others do."""
  found, todo = list[NodeProto](), [name]
  while todo:
    node = makers.get(todo.pop())
    if node is None or node.op_type == "Constant" or node in found:
      continue
    if node.op_type not in _OF_SHAPES or len(found) > 16:
      return ()
    found.append(node)
    if node.op_type == "Shape" and node.input[0] not in inputs:
      return ()
    todo += node.input if node.op_type != "Shape" else ()
  return tuple(found[::-1])


def _branch(d: StepDecoder, graph: GraphProto, end: str, names: _Names) -> GraphProto:
  """The graph as a branch: what it yields has names of its own.

  So have its constants: one that is outside is copied to the GPU in each run. Of the other branch all
  values have, for onnx's inference mixes up sizes of equal names. Neither takes anything from the
  condition: onnxruntime copies a number from outside to the GPU and back, and an operator that wants it on
  the host reads what was there before (on an H100 prompts attended to some of their tokens only).
  """
  is_step = end == _STEP
  outputs = {o.name: names.fresh(o.name + end) for o in graph.output}
  produced = [o for n in graph.node if n.op_type != "Constant" for o in n.output if o]
  own = {o: names.fresh(o + end) for n in graph.node if n.op_type == "Constant" for o in n.output} | outputs
  if not is_step:
    own |= {o: names.fresh(o + end) for o in produced if o not in outputs}
  made = GraphProto(name=end.strip("/"))
  for n in graph.node if is_step else with_gelus(graph):
    copy = made.node.add()
    copy.CopyFrom(n)
    copy.input[:] = [own.get(i, i) for i in n.input]
    copy.output[:] = [own.get(o, o) for o in n.output]
    if is_step and n.op_type == CACHED and not _holds_window(n):
      copy.metadata_props.add(key=STEPS, value=CACHED)
  caches = {x for n in graph.node if n.op_type == CACHED and not _holds_window(n) for x in n.output[1:]}
  room = next(dims_of(v)[2] for v in graph.input if v.name == d.past)

  def said(values: Iterable[ValueInfoProto]) -> list[ValueInfoProto]:
    found = []
    for v in values:
      found.append(d.known(v))
      found[-1].name = own.get(v.name, v.name)
      for k, x in enumerate(found[-1].type.tensor_type.shape.dim if is_step else ()):
        if x.dim_param in d.fixed:
          x.dim_value = d.fixed[x.dim_param]
        elif d.rows is not None and (x.dim_param == d.room or (v.name in caches and k == 2)):
          x.dim_value = d.rows
        elif v.name in caches and k == 2:
          x.dim_param = str(room)
    return found

  made.output.extend(said(graph.output))
  inner = {*produced} - {*outputs}
  made.value_info.extend(said(v for v in graph.value_info if v.name in inner))
  return made
