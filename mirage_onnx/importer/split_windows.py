"""Conv whose windows fill the image and do not overlap as its parts: a product of windows and weights.

Windows are the rows of a matrix (``windows.py``), but each lies in pieces of memory: no kernel contracts
these, so they are put in order first, by a Transpose. Where no kernel replaces the product the parts are one
node again, which is what ONNX Runtime had. Predictions say nothing of them (``Node.part_of``): what they
take is measured.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from mirage_onnx.importer.graph import domain_of, nodes_of, subgraphs
from mirage_onnx.importer.marks import mark_of, without_marks
from mirage_onnx.importer.windows import Windows, find_windows
from mirage_onnx.ir import Tensor

_MARK = "pkg.mirage_onnx.windows"
#: What a part says of itself: it is in front of the product, of the product, or the last of it.
_BEFORE, _PRODUCT, _LAST = "before", "product", "last"
#: From here on Reshape, which keeps a dimension where it is told 0, is the same in all opsets.
_FIRST_OPSET = 13
_X, _WEIGHTS, _BIAS = range(3)
#: What the parts are.
_OPERATORS = ("Reshape", "Transpose", "MatMul", "Add")


def split_windows(proto: ModelProto, opset: int, tensors: Mapping[str, Tensor]) -> ModelProto:
  """``proto`` itself where there is none. ``tensors``: shapes as far as they are known.

  What a model says of parts itself is not believed.
  """
  own = {(f.domain, f.name) for f in proto.functions}
  if opset < _FIRST_OPSET or own & {("", op) for op in ("Conv", *_OPERATORS)}:
    return proto
  windows = [_windows(n, tensors) for n in proto.graph.node]
  marked = any(map(_mark, proto.graph.node))
  if not any(windows) and not marked:
    return proto
  made = ModelProto()
  made.CopyFrom(proto)
  if marked:
    without_marks(made.graph.node, _MARK)
  names = {n.name for n in nodes_of(proto.graph)}
  taken = {x for n in nodes_of(proto.graph) for x in (*n.input, *n.output)} | tensors.keys()
  given = list(made.graph.node)
  del made.graph.node[:]
  for node, found in zip(given, windows, strict=True):
    parts, shapes = _parts(node, found, taken, names) if found else ([node], [])
    made.graph.node.extend(parts)
    made.graph.initializer.extend(shapes)
  return made


def _windows(node: NodeProto, tensors: Mapping[str, Tensor]) -> Windows | None:
  if domain_of(node) or node.op_type != "Conv" or not all((*node.input[:2], *node.output)):
    return None
  x, w = (tensors.get(name) for name in node.input[:2])
  if x is None or w is None or x.dtype is None or not x.dtype.is_float:
    return None
  given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
  found = find_windows(given, x.shape or (), w.shape or ())
  return None if isinstance(found, str) else found


def whole_windows(model: ModelProto) -> None:
  """Makes one node again of parts that are all there; others have no mark."""
  graph = model.graph
  if not any(map(_mark, graph.node)):
    return
  gone, whole, nodes = set[int](), dict[int, NodeProto](), list(graph.node)
  for parts in _complete(graph):
    gone |= set(parts[:-1])
    whole[parts[-1]] = _joined([nodes[k] for k in parts])
  kept = [
    NodeProto.FromString(whole.get(k, n).SerializeToString()) for k, n in enumerate(nodes) if k not in gone
  ]
  without_marks(kept, _MARK)
  inner = nodes_of(*(g for n in kept for g in subgraphs(n)))
  left = {i for n in (*kept, *inner) for i in n.input}
  shapes = {nodes[k].input[1] for k in {*gone, *whole} if nodes[k].op_type == "Reshape"} - left
  del graph.node[:]
  graph.node.extend(kept)
  stored = [t for t in graph.initializer if t.name not in shapes]
  if len(stored) < len(graph.initializer):
    del graph.initializer[:]
    graph.initializer.extend(stored)


def windows_of(proto: ModelProto, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
  """By ``names`` of the nodes: the parts of each operator that has been split, the last one last."""
  return tuple(tuple(names[k] for k in parts) for parts in _complete(proto.graph))


def before_windows(proto: ModelProto, nodes: Sequence[NodeProto]) -> list[NodeProto]:
  """The parts in front of a product among ``nodes`` that put its rows in order, first to last."""
  product = next((n for n in nodes if n.op_type == "MatMul" and _mark(n) == _PRODUCT), None)
  makers = {n.output[0]: n for n in proto.graph.node if product is not None and _mark(n) == _BEFORE}
  found, name = list[NodeProto](), product.input[0] if product is not None else ""
  while (maker := makers.get(name)) is not None:
    found.append(maker)
    name = maker.input[0]
  return found[::-1]


def image_of(parts: Sequence[NodeProto], rows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
  """The image of which ``parts`` (``before_windows``) make ``rows``; ``shape``: of the first one's result."""
  (turned,) = (n for n in parts if n.op_type == "Transpose")
  order = next(list(a.ints) for a in turned.attribute if a.name == "perm")
  count, *sides = (len(rows), *shape[1:])
  back = rows.reshape([(count, *sides)[d] for d in order]).transpose(np.argsort(order))
  return back.reshape(count, sides[0], *(a * b for a, b in zip(sides[1::2], sides[2::2], strict=True)))


def is_window_part(node: NodeProto) -> bool:
  """Whether the node is a part of a Conv."""
  return bool(_mark(node))


def is_behind_windows(node: NodeProto) -> bool:
  """Whether the node is the product of a Conv, or a part between it and the last."""
  return _mark(node) == _PRODUCT


def _parts(
  node: NodeProto, found: Windows, taken: set[str], names: set[str]
) -> tuple[list[NodeProto], list[TensorProto]]:
  """The parts, and the shapes that they read; ``taken``, ``names``: of values and of nodes."""

  def fresh(name: str, taken: set[str] = taken) -> str:
    while name in taken:
      name += "_"
    taken.add(name)
    return name

  y, base = node.output[0], node.name or node.output[0]
  parts, shapes = list[NodeProto](), list[TensorProto]()

  def add(op: str, inputs: Sequence[str], what: str, kind: str, **attributes: Any) -> str:
    out = y if kind.startswith(_LAST) else fresh(f"{y}/{what}")
    name = node.name if kind.startswith(_LAST) else fresh(f"{base}/{what}", names)
    parts.append(helper.make_node(op, inputs, [out], name=name, **attributes))
    parts[-1].metadata_props.add(key=_MARK, value=kind)
    return out

  def reshaped(x: str, shape: Sequence[int], what: str, kind: str) -> str:
    shapes.append(numpy_helper.from_array(np.array(shape, np.int64), fresh(f"{y}/{what}/shape")))
    return add("Reshape", [x, shapes[-1].name], what, kind)

  # 0: as many as there are, which a run may say.
  sides = [d for pair in zip(found.grid, found.window, strict=True) for d in pair]
  cut = reshaped(node.input[_X], [0, found.channels, *sides], "windows", _BEFORE)
  places, insides = range(2, 2 + len(sides), 2), range(3, 3 + len(sides), 2)
  turned = add("Transpose", [cut], "turned", _BEFORE, perm=[0, *places, 1, *insides])
  rows = reshaped(turned, [0, found.count, found.depth], "rows", _BEFORE)
  flat = reshaped(node.input[_WEIGHTS], [found.columns, found.depth], "weights", _BEFORE)
  weights = add("Transpose", [flat], "columns", _BEFORE, perm=[1, 0])
  product = add("MatMul", [rows, weights], "product", _PRODUCT)
  if len(node.input) > _BIAS and node.input[_BIAS]:
    product = add("Add", [product, node.input[_BIAS]], "sum", _PRODUCT)
  back = add("Transpose", [product], "back", _PRODUCT, perm=[0, 2, 1])
  original = b64encode(node.SerializeToString()).decode()
  reshaped(back, [0, found.columns, *found.grid], "image", f"{_LAST} {original}")
  return parts, shapes


def _complete(graph: GraphProto) -> list[tuple[int, ...]]:
  """Places of parts that can be one node again, in the order of ``_parts``."""
  nodes, found = list(graph.node), list[tuple[int, ...]]()
  makers = {o: k for k, n in enumerate(nodes) for o in n.output}
  readers = Counter(i for n in nodes_of(graph) for i in n.input)
  readers.update(o.name for o in graph.output)
  for k, node in enumerate(nodes):
    if _mark(node) != _LAST:
      continue
    parts, todo = [k], [k]
    while todo:
      for i in nodes[todo.pop()].input:
        maker = makers.get(i)
        if maker is not None and _mark(nodes[maker]) in (_BEFORE, _PRODUCT) and readers[i] == 1:
          parts.append(maker)
          todo.append(maker)
    bias = len(_original(node).input) > _BIAS and bool(_original(node).input[_BIAS])
    if len(parts) == 8 + bias:
      found.append(tuple(sorted(parts)))
  return found


def _joined(parts: Sequence[NodeProto]) -> NodeProto:
  node = _original(parts[-1])
  makers = {o: n for n in parts for o in n.output}

  def first(name: str) -> str:
    while name in makers:
      name = makers[name].input[0]
    return name

  (product,) = (n for n in parts if n.op_type == "MatMul")
  node.input[_X], node.input[_WEIGHTS] = map(first, product.input)
  for n in parts:
    if n.op_type == "Add":
      node.input[_BIAS] = n.input[1]
  node.output[:] = parts[-1].output
  return node


def _original(last: NodeProto) -> NodeProto:
  return NodeProto.FromString(b64decode(mark_of(last, _MARK).partition(" ")[2]))


def _mark(node: NodeProto) -> str:
  return mark_of(node, _MARK).partition(" ")[0]
