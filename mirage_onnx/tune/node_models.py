"""Nodes of a model by themselves, as models that ONNX Runtime runs: what its kernels for them take is asked.

A node is asked about if all that a run gives it are floating-point numbers and truth values: none of
them changes what its kernels do. Equal nodes (operator, attributes, types, shapes) are one. Of a cache
that a step reads the lengths do; it is half full. What hides keys hides none. Nodes that are parts of one
operator are asked as that operator, too: ONNX Runtime has its own kernel for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.causal import implied
from mirage_onnx.importer.constants import known_values
from mirage_onnx.importer.split_caches import CACHED
from mirage_onnx.importer.split_norms import norms_of_one, whole_norms
from mirage_onnx.importer.split_projections import parts_of_one, whole_projections
from mirage_onnx.importer.split_windows import whole_windows, windows_of
from mirage_onnx.ir import DType, as_input
from mirage_onnx.ir.program import Node, Program, Tensor
from mirage_onnx.tune.baseline import FREE
from mirage_onnx.tune.baseline_nodes import canonical_nodes
from mirage_onnx.tune.ort_run import model_of, stored_constant

#: A node that reads and writes more bytes is not run alone: it would take the memory of the GPU.
MOST_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class NodeModel:
  """One node as a model. ``text``: what its time depends on; ``weight_bytes``: of constants and caches.

  ``parts``: names of the nodes that are ``node`` together; ``beside``: of those of the operator that it is a
  part of, without whose times its own is of no use.
  """

  node: Node
  text: str
  moved_bytes: int
  weight_bytes: int
  parts: tuple[str, ...] = ()
  beside: tuple[str, ...] = ()


def distinct_nodes(
  loaded: LoadedModel, program: Program, names: Iterable[str]
) -> dict[str, tuple[NodeModel, ...]]:
  """Text -> the nodes of ``names`` that have it, of those that can be asked about.

  ``program`` is static; where a model has names of dimensions, it is that of some sizes.
  """
  values, wanted = known_values(loaded), set(names)
  found: dict[str, list[NodeModel]] = {}
  nodes = {n.name: n for n in program.nodes}
  wholes = [f(loaded.proto, loaded.node_names) for f in (parts_of_one, windows_of, norms_of_one)]
  wanted_wholes = [p for some in wholes for p in some if not wanted.isdisjoint(p)]
  beside = {n: p for p in wanted_wholes for n in p}
  asked = [(n, ()) for n in program.nodes if n.name in wanted or n.name in beside]
  for node, parts in [*asked, *((_whole([nodes[n] for n in p]), p) for p in wanted_wholes)]:
    if not _is_asked(node, program, values):
      continue
    hollow = node_model(loaded, program, node, values, parts, hollow=True)
    text = canonical_nodes(hollow)
    sizes = [_bytes(program.tensors[n]) for n in (*node.inputs, *node.outputs) if n]
    kept = _caches(node, program)  # which no other node reads before the next run
    weights = sum(_bytes(program.tensors[n]) for n in node.inputs if n in values or n in kept)
    if sum(sizes) <= MOST_BYTES:
      model = NodeModel(node, text, sum(sizes), weights, parts, beside.get(node.name, ()))
      found.setdefault(text, []).append(model)
  return {text: tuple(same) for text, same in found.items()}


def node_model(
  loaded: LoadedModel,
  program: Program,
  node: Node,
  values: Mapping[str, TensorProto],
  parts: Sequence[str] = (),
  *,
  hollow: bool = False,
  outside: bool = False,
) -> ModelProto:
  """The node as a model: what a run gives it is an input.

  ``parts``: as of ``NodeModel``; ``hollow``, ``outside``: as of ``ort_run.region_model``.
  """
  protos = [NodeProto.FromString(loaded.node(n).SerializeToString()) for n in parts or (node.name,)]
  given = dict.fromkeys(n for n in node.inputs if n and n not in values and not implied(n))
  constants = dict.fromkeys(n for n in node.inputs if n and n in values)

  def info(name: str) -> ValueInfoProto:
    t = program.tensors[name]
    assert t.dtype is not None
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(t.dtype.numpy), t.shape)

  graph = helper.make_graph(
    protos, "node",
    [info(n) for n in given], [info(n) for n in node.outputs if n],
    [stored_constant(loaded, values[n], n, hollow=hollow, outside=outside) for n in constants],
  )  # fmt: skip
  model = model_of(loaded, graph)
  whole_projections(model)
  whole_norms(model)
  whole_windows(model)
  return model


def node_feeds(node: Node, program: Program, values: Mapping[str, TensorProto]) -> dict[str, np.ndarray]:
  """Numbers for what a run gives the node: near one, in the domain of every function."""
  rng = np.random.default_rng(0)
  found = {}
  for name in node.inputs:
    if name and name not in values and not implied(name):
      t = program.tensors[name]
      assert t.dtype is not None
      shape = tuple(int(d) for d in t.shape or ())
      few = rng.uniform(0.5, 1.0, min(prod(shape), 1 << 20))
      found[name] = np.resize(as_input(few, t.dtype).astype(t.dtype.numpy), shape)
  for name, count in _integers(node, program).items():
    if name in found:
      found[name] = np.full_like(found[name], count)
  return found


def whole_name(parts: Sequence[str]) -> str:
  """What nodes are called that are one operator together; no node is called so."""
  return "\0".join(parts)


def _whole(parts: Sequence[Node]) -> Node:
  """One node with the inputs of all parts, and the outputs of the last."""
  made = {o for p in parts for o in p.outputs}
  inputs = tuple(i for p in parts for i in p.inputs if i not in made)
  last = parts[-1]
  return replace(last, name=whole_name([p.name for p in parts]), op_type=last.part_of, inputs=inputs)


def _caches(node: Node, program: Program) -> list[str]:
  """The inputs that are caches, of which a step reads what they hold."""
  if node.op_type != CACHED:
    return []
  return [n for n in node.inputs if n and (t := program.tensors.get(n)) and len(t.shape or ()) == 4]


def _integers(node: Node, program: Program) -> dict[str, int]:
  """What the integers are that a run gives a node: lengths of a cache, or what hides no key."""
  if not node.part_of:
    return _lengths(node, program)
  y = program.numbers(node.outputs[0]) or ()
  masks = [n for n in node.inputs if n and (t := program.tensors.get(n)) and t.dtype is DType.I32]
  # Of one number a row it says where its keys end, of which there are as many as rows.
  return {n: y[1] if len(program.tensors[n].shape or ()) == 1 and len(y) > 1 else 1 for n in masks}


def _lengths(node: Node, program: Program) -> dict[str, int]:
  """The inputs that say how far caches are full, as in the middle of a text."""
  caches, tensors = _caches(node, program), program.tensors
  counts = [n for n in node.inputs if n and not implied(n) and n in tensors and tensors[n].dtype is DType.I32]
  if len(caches) != 2 or len(counts) != 2:
    return {}
  room = (tensors[caches[0]].shape or ())[2]
  held = max(1, room // 2) if isinstance(room, int) else 1
  return dict(zip(counts, (held - 1, held), strict=True))


def _is_asked(node: Node, program: Program, values: Mapping[str, TensorProto]) -> bool:
  if node.op_type in FREE or not node.steps or node.barrier is not None:
    return False
  tensors = list(_tensors(node, program))
  if any(t is None or t.dtype is None or not t.is_static for t in tensors):
    return False
  lengths = _integers(node, program)
  names = (n for n in node.inputs if n and n not in values and n not in lengths and not implied(n))
  given = [program.tensors[n] for n in names]
  return bool(given) and all(t.dtype and (t.dtype.is_float or t.dtype is DType.BOOL) for t in given)


def _tensors(node: Node, program: Program) -> Iterator[Tensor | None]:
  for name in (*node.inputs, *node.outputs):
    if name:
      yield program.tensors.get(name)


def _bytes(t: Tensor) -> int:
  return prod(int(d) for d in t.shape or ()) * (t.dtype.size_bytes if t.dtype else 8)
