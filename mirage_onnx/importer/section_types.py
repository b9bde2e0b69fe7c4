"""Types and shapes inside of a section: what is given to it, and what follows from that.

A branch of an If is given what it reads outside. Loop and Scan give what they carry and slices of what they
scan; a dimension of a carried value counts as known if the body, given it, yields it again, which
inference shows. What it does not show has a name of its own, as a dimension that only a run knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.constant_nodes import constant_nodes
from mirage_onnx.importer.declared_names import typed, without_names
from mirage_onnx.importer.graph import check_names, topological_order
from mirage_onnx.importer.inferring import known_of
from mirage_onnx.importer.sections import Section
from mirage_onnx.importer.shapes import DTYPES, SMALL, check_nodes
from mirage_onnx.importer.steps_apart import sizes_in
from mirage_onnx.ir.program import Dim, Tensor
from mirage_onnx.onnx_process import Onnx

Read = Callable[[TensorProto], np.ndarray]
ELEMENT_TYPES = {dtype: kind for kind, dtype in DTYPES.items()}
#: Inferences until what is carried is the same before and after.
_MOST_ROUNDS = 8
#: Results of Loops that are told to inference, which runs again for each.
_MOST_RESULTS = 64


@dataclass(frozen=True, eq=False, slots=True)
class Scope:
  """What is known of the values of one graph, by its own names; ``constants``: tensors that no run changes.

  ``order``: indices of its nodes, producers first. ``folded``: what nodes make of constants and shapes.
  ``model``: what inference was given, with ``more`` and (of sizes) ``told``; ``path`` begins names of
  dimensions but those ``given``.
  """

  model: ModelProto = field(repr=False)
  order: tuple[int, ...]
  tensors: Mapping[str, Tensor] = field(repr=False)
  folded: Mapping[str, TensorProto] = field(repr=False)
  constants: Mapping[str, TensorProto] = field(repr=False)
  path: str = ""
  given: frozenset[Dim] = frozenset()
  more: tuple[ValueInfoProto, ...] = ()
  told: tuple[ValueInfoProto, ...] = ()

  def known(self, name: str) -> TensorProto | None:
    return self.folded.get(name) or self.constants.get(name)

  def with_results(self, found: Iterable[Tensor], opset: int, read: Read) -> Scope:
    """The scope, where ``found`` says more of results of nodes than inference does."""
    more = []
    for t in found:
      have = self.tensors.get(t.name)
      if t.dtype is None or t.shape is None or (have and have.is_static):
        continue
      dims = [d if isinstance(d, int) or d in self.given else None for d in t.shape]
      if have is None or have.shape is None or any(d is not None for d in dims):
        more.append(helper.make_tensor_value_info(t.name, ELEMENT_TYPES[t.dtype], dims))
    if not more or len(self.more) >= _MOST_RESULTS:
      return self
    every = (*self.more, *more)
    try:
      tensors, folded = known_of(self.model, self.order, opset, read, (*self.told, *every))
    except MirageError:
      return self
    own = {n: _renamed(t, self.given, self.path) for n, t in tensors.items()} if self.path else tensors
    return replace(self, tensors={**self.tensors, **own}, folded=folded, more=every)


def section_scope(section: Section, outer: Scope, model: ModelProto, opset: int, read: Read) -> Scope:
  """What is known inside of a section; ``model`` has the functions and opsets.

  Raises:
      MirageError: MODEL_INVALID, also where nothing is known of the type of what it is given.
  """
  graph, node = section.graph, section.holder
  sizes = sizes_in(node, section.attribute)
  given, states = _given(section, outer, opset)
  light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
  light.graph.name = section.path
  light.graph.node.extend(graph.node)
  light.graph.sparse_initializer.extend(graph.sparse_initializer)
  light.graph.output.extend(without_names(graph.output))
  light.graph.value_info.extend(without_names(typed(graph.value_info)))
  own = {t.name: t for t in graph.initializer}
  constants = own | constant_nodes(graph.node)
  captured = [n for n in section.flat if n not in own and not section.flat[n].startswith(section.path)]
  captured += [n.removeprefix(section.path) for n in section.captures]
  seen = dict[str, Tensor]()
  for name in captured:
    value = outer.known(name)
    if value is not None:
      constants[name] = value
    seen[name] = _sized(outer.tensors[name], sizes)
  for name, tensor in constants.items():
    if name in own or name in captured:
      _add_constant(light.graph, name, tensor, read)
  for name, t in seen.items():
    if name not in constants:
      light.graph.input.append(stated(t))
  fixed = len(light.graph.input)
  for _ in range(_MOST_ROUNDS):
    del light.graph.input[fixed:]
    light.graph.input.extend(given.values())
    check_names(light.graph)
    order = topological_order(light.graph)
    onnx = Onnx()
    check_nodes(light, opset, onnx)
    tensors, folded = known_of(light, order, opset, read, onnx=onnx)
    looser = {x: v for x, y in states.items() if (v := _looser(given[x], tensors.get(y), section.path))}
    if not looser:
      break
    given |= looser
  else:
    raise MirageError("MODEL_INVALID", f"{node.op_type}: what it carries never keeps its type")
  named = frozenset(d for t in (*seen.values(), *map(_tensor, given.values())) for d in t.shape or ())
  tensors = {n: _renamed(t, named, section.path) for n, t in tensors.items()}
  return Scope(light, order, {**tensors, **seen}, folded, constants, section.path, named)


def _sized(t: Tensor, sizes: Mapping[str, int]) -> Tensor:
  """With numbers for names that have one size here."""
  if not sizes or t.shape is None:
    return t
  return replace(t, shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in t.shape))


def carried_results(section: Section, inner: Scope) -> tuple[Tensor, ...]:
  """What a Loop or a Scan yields of what it carries: as before its first run and after each."""
  node, skip = section.holder, 2 if section.holder.op_type == "Loop" else 0
  if node.op_type == "If":
    return ()
  count = _states(section)
  pairs = zip(section.graph.input[skip : skip + count], node.output[:count], strict=False)
  return tuple(replace(inner.tensors[i.name], name=o) for i, o in pairs if o)


def repeats(section: Section, outer: Scope) -> int:
  """How often a run of the holder runs the section, where that is known; else 1."""
  node = section.holder
  if node.op_type == "Scan":
    found = [d for _, d in _scanned(section, outer)]
    return next((d for d in found if isinstance(d, int)), 1)
  value = outer.known(node.input[0]) if node.op_type == "Loop" and node.input[0] else None
  if value is None or value.data_type != TensorProto.INT64 or prod(value.dims) != 1 or not value.raw_data:
    return 1
  return max(1, int(numpy_helper.to_array(value).reshape(())))


def _given(section: Section, outer: Scope, opset: int) -> tuple[dict[str, ValueInfoProto], dict[str, str]]:
  """What a holder gives its subgraph, by name; and of what is carried the name before -> after."""
  node, graph = section.holder, section.graph
  inputs = list(graph.input)
  weights = {t.name for t in graph.initializer}
  if any(i.name in weights for i in inputs):
    raise MirageError(
      "MODEL_INVALID", f"{node.op_type}: an initializer of its {section.attribute} is an input"
    )
  if node.op_type == "If":
    if inputs:
      raise MirageError("MODEL_INVALID", "If: a branch has inputs")
    return {}, {}
  if node.op_type == "Loop":
    count = len(node.input) - 2
    if len(inputs) != 2 + count or len(graph.output) < 1 + count:
      raise MirageError("MODEL_INVALID", "Loop: its body has another number of inputs than it is given")
    kinds = TensorProto.INT64, TensorProto.BOOL
    given = {i.name: _scalar(i, kind) for i, kind in zip(inputs[:2], kinds, strict=True)}
    carried = list(zip(inputs[2:], node.input[2:], graph.output[1:], strict=False))
    scanned: list[tuple[str, Dim]] = []
  else:
    if opset < 9:
      raise MirageError("MODEL_INVALID", "Scan: before opset 9 it has batches")
    scanned = _scanned(section, outer)
    count = len(node.input) - len(scanned)
    if len(inputs) != len(node.input) or len(graph.output) < count:
      raise MirageError("MODEL_INVALID", "Scan: its body has another number of inputs than it is given")
    given = {}
    carried = list(zip(inputs[:count], node.input[:count], graph.output, strict=False))
  states = dict[str, str]()
  for before, value, after in carried:
    given[before.name] = stated(replace(outer.tensors[value], name=before.name))
    states[before.name] = after.name
  for i, ((value, _), axis) in enumerate(zip(scanned, _axes(node, len(scanned)), strict=True)):
    t = outer.tensors[value]
    name = inputs[len(carried) + i].name
    shape = None if t.shape is None else tuple(d for k, d in enumerate(t.shape) if k != axis % len(t.shape))
    given[name] = stated(Tensor(name, t.dtype, shape))
  return given, states


def _states(section: Section) -> int:
  """How many values a Loop or a Scan carries."""
  node = section.holder
  if node.op_type == "Loop":
    return len(node.input) - 2
  return len(node.input) - next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)


def _scanned(section: Section, outer: Scope) -> list[tuple[str, Dim]]:
  """What a Scan takes slices of: the values, and the size of the axis."""
  node = section.holder
  count = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
  if not 0 < count <= len(node.input):
    raise MirageError("MODEL_INVALID", f"Scan: it scans {count} of {len(node.input)} inputs")
  found: list[tuple[str, Dim]] = []
  for name, axis in zip(node.input[-count:], _axes(node, count), strict=True):
    shape = outer.tensors[name].shape if name in outer.tensors else None
    if shape is not None and not -len(shape) <= axis < len(shape):
      raise MirageError("MODEL_INVALID", f"Scan: {name!r} has no axis {axis}")
    found.append((name, "?" if shape is None else shape[axis]))
  return found


def _axes(node: NodeProto, count: int) -> Sequence[int]:
  axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [])
  return axes if len(axes) == count else [0] * count


def _scalar(value: ValueInfoProto, kind: int) -> ValueInfoProto:
  """The count or the condition of a Loop: of no dimensions, or as its body says of one."""
  rank = len(value.type.tensor_type.shape.dim)
  return helper.make_tensor_value_info(value.name, kind, [1] * min(rank, 1))


def _add_constant(graph: GraphProto, name: str, tensor: TensorProto, read: Read) -> None:
  """By value where it is short; its type is enough else."""
  if prod(tensor.dims) <= SMALL and tensor.data_type in DTYPES:
    graph.initializer.append(numpy_helper.from_array(read(tensor), name))
  else:
    graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))


def stated(t: Tensor) -> ValueInfoProto:
  """What a graph says of a value.

  Raises:
      MirageError: MODEL_INVALID where its type is not known.
  """
  if t.dtype is None:
    raise MirageError("MODEL_INVALID", f"the type of {t.name!r}, which it reads, is not known")
  return helper.make_tensor_value_info(t.name, ELEMENT_TYPES[t.dtype], t.shape)


def _tensor(value: ValueInfoProto) -> Tensor:
  dims = value.type.tensor_type.shape.dim
  shape = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims)
  return Tensor(value.name, DTYPES[value.type.tensor_type.elem_type], shape)


def _looser(before: ValueInfoProto, after: Tensor | None, path: str) -> ValueInfoProto | None:
  """What of a carried value is the same before and after a run of the body; None if that is all."""
  if not before.type.tensor_type.HasField("shape"):
    return None
  t = _tensor(before)
  assert t.shape is not None
  if after is None or after.shape is None or len(after.shape) != len(t.shape):
    return stated(replace(t, shape=None))
  own = [f"{path}{t.name}:{k}" for k in range(len(t.shape))]
  shape = tuple(x if x in (y, name) else name for x, y, name in zip(t.shape, after.shape, own, strict=True))
  return None if shape == t.shape else stated(replace(t, shape=shape))


def _renamed(t: Tensor, given: frozenset[Dim], path: str) -> Tensor:
  """With names of dimensions that no other graph has, but for those that the section is given."""
  if t.shape is None:
    return t
  shape = tuple(d if isinstance(d, int) or d in given else path + d for d in t.shape)
  return replace(t, shape=shape)
