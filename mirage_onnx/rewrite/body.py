"""Function bodies: the original nodes of a region under canonical names.

A runtime that does not know ``MuGraph_k`` runs the model-local function of that name, so the body
computes what the original nodes computed, by the same operators in the same order.

    formals   bundle, i0, i1, ...       outputs   o0, o1, ..., workspace
    body      Transpose of every input that is stored in another dim order,
              integers of 4 bits of the bytes that hold them (``fours.py``),
              Constant for every small constant the region reads (functions capture nothing;
              a large one is one more input, behind those of the kernel, which does not read it),
              the shapes that the model computes elsewhere, from those of the inputs,
              the region's nodes, depth first from the outputs (not in the model's order, which may
              interleave equal regions differently), readers that stand in for those outside
              (``readers``), an empty workspace.

Canonical names make the bodies of equal regions equal bytes, which is how sharing is checked.
Attributes keep the order that they have: ONNX Runtime takes two nodes for one only where that is the
same, too (it hashes them in the order of its table), and what it fuses depends on how often a value
is read: an Add that a LayerNormalization and its copy in a body read becomes no SkipLayerNormalization.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mirage_onnx.importer.graph import subgraphs
from mirage_onnx.importer.new_places import read_of
from mirage_onnx.ir.runtime_extent import Monomial
from mirage_onnx.rewrite.constants import Constants
from mirage_onnx.rewrite.fours import restored_fours
from mirage_onnx.rewrite.replacement import Replacement, internal

#: A region's constants up to this size move into the body; larger ones are inputs.
MAX_CONSTANT_BYTES = 1024
#: Nodes that a kernel computes from their result's shape alone, and the node that takes the shape.
_TO_SHAPE = {
  "Reshape": "Reshape", "Squeeze": "Reshape", "Unsqueeze": "Reshape", "Expand": "Expand",
}  # fmt: skip
#: (domain, operator, input): no kernel reads it, for it is one more than the largest of that input.
_LONGEST = {("com.microsoft", "GroupQueryAttention", 6): 5}
#: First opset that has ConstantOfShape, and Constants of other types than floats.
CONSTANTS_OF_ALL_TYPES = 9
_FLOATS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
Shapes = Mapping[str, tuple[int, ...]]
NO_SHAPES: Shapes = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Body:
  """A function without its domain and name, and the constants that it reads as further inputs."""

  function: onnx.FunctionProto
  operands: tuple[str, ...]

  @property
  def text(self) -> bytes:
    return bytes(self.function.SerializeToString(deterministic=True))

  @property
  def key(self) -> str:
    """A digest of the function."""
    return hashlib.sha256(self.text).hexdigest()[:16]


def build_body(
  nodes: Sequence[onnx.NodeProto],
  replacement: Replacement,
  constants: Constants,
  opsets: Mapping[str, int],
  shapes: Shapes = NO_SHAPES,
  missing: Sequence[tuple[str, str]] = (),
) -> Body:
  """The body of a region; ``shapes``: static ones, by value.

  ``missing``: values that need one more reader, and its operator (``Readers.missing``).

  Raises:
      MirageError: INTERNAL where the region reads what is neither an input nor a constant,
          where it does not make an output, or where a node holds a subgraph.
  """
  return _Builder(nodes, replacement, constants, opsets, shapes).build(missing)


class _Builder:
  def __init__(
    self,
    nodes: Sequence[onnx.NodeProto],
    replacement: Replacement,
    constants: Constants,
    opsets: Mapping[str, int],
    shapes: Shapes,
  ) -> None:
    self.shapes = shapes
    self.replacement = replacement
    self.constants = constants
    self.opsets = opsets
    self.is_old = opsets.get("", CONSTANTS_OF_ALL_TYPES) < CONSTANTS_OF_ALL_TYPES
    self.producer = {name: node for node in nodes for name in node.output if name}
    self.domains = {""}
    self.prologue: list[onnx.NodeProto] = []
    self.body: list[onnx.NodeProto] = []
    self.done: set[int] = set()
    self.names: dict[str, str] = {}
    self.operands: list[str] = []
    self.fresh = self.read = 0

  def build(self, missing: Sequence[tuple[str, str]]) -> Body:
    formals = self._inputs()
    outputs = [f"o{i}" for i in range(len(self.replacement.outputs))]
    for name, value in zip(outputs, self.replacement.outputs, strict=True):
      if value not in self.producer:
        raise internal(f"no node of the region makes its output {value!r}")
      self.names[value] = name
    for value in self.replacement.outputs:
      self._emit(self.producer[value])
    self._read(missing)
    if self.replacement.workspace:
      outputs.append("workspace")
      self.body += empty_workspace(self.is_old)
    formals += [self.names[value] for value in self.operands]
    function = onnx.FunctionProto(
      input=["bundle", *formals], output=outputs, node=[*self.prologue, *self.body]
    )
    for domain in sorted(self.domains):
      if domain not in self.opsets:
        raise internal(f"the model imports no opset for domain {domain!r}")
      function.opset_import.add(domain=domain, version=self.opsets[domain])
    return Body(function, tuple(self.operands))

  def _inputs(self) -> list[str]:
    formals = []
    for i, value in enumerate(self.replacement.inputs):
      if value in self.producer:
        raise internal(f"input {value!r} is made inside the region")
      formals.append(f"i{i}")
      use = self.replacement.weight(value)
      if use is None:
        self.names[value] = f"i{i}"
      else:
        self.names[value] = f"i{i}_restored"
        if use.four is not None:
          self.domains.add("")
          self.prologue += restored_fours(f"i{i}", use)
          continue
        self.prologue.append(
          helper.make_node(
            "Transpose",
            [f"i{i}"],
            [f"i{i}_restored"],
            name=f"Transpose_i{i}",
            perm=use.inverse,
          )
        )
    return formals

  def _emit(self, node: onnx.NodeProto) -> None:
    """Append ``node`` after the nodes it needs (iterative: regions may be deep)."""
    stack = [(node, iter(node.input))]
    while stack:
      current, pending = stack[-1]
      needed = next((p for v in pending if (p := self.producer.get(v)) and id(p) not in self.done), None)
      if needed is None:
        stack.pop()
        if id(current) not in self.done:
          self.done.add(id(current))
          self.body.append(self._renamed(current))
      else:
        if any(needed is open_node for open_node, _ in stack):
          raise internal(f"the region is cyclic at {needed.name or needed.op_type!r}")
        stack.append((needed, iter(needed.input)))

  def _renamed(self, node: onnx.NodeProto) -> onnx.NodeProto:
    if subgraphs(node):
      raise internal(f"node {node.name!r} of a region holds a subgraph")
    domain = "" if node.domain == "ai.onnx" else node.domain
    self.domains.add(domain)
    if (shape := self._fixed(node)) is not None:
      op_type, attributes = _TO_SHAPE[node.op_type], []
      inputs = [self._name(node.input[0]), self._shape(shape)]
    else:
      op_type, attributes = node.op_type, node.attribute
      inputs = [self._given(node, i) if value else "" for i, value in enumerate(read_of(node))]
    copy = onnx.NodeProto(
      op_type=op_type,
      domain=domain,
      overload=node.overload,
      name=f"{node.op_type}_{len(self.body)}",
      input=inputs,
    )
    for value in node.output:
      if value and value not in self.names:
        self.names[value] = f"v{self.fresh}"
        self.fresh += 1
      copy.output.append(self.names[value] if value else "")
    for attribute in attributes:
      added = copy.attribute.add()
      added.CopyFrom(attribute)
      added.ClearField("doc_string")
      if added.HasField("t"):
        for field in ("name", "doc_string"):
          added.t.ClearField(field)
    return copy

  def _fixed(self, node: onnx.NodeProto) -> tuple[Monomial, ...] | None:
    """The result's shape where a node of the layout reads a shape or axes made elsewhere.

    Kernels read no such operand, so it is no input of the region; the result's shape says the
    same.
    """
    if node.op_type not in _TO_SHAPE or node.domain not in ("", "ai.onnx"):
      return None
    operand = node.input[1] if len(node.input) > 1 else ""
    known = operand in self.names or operand in self.constants.tensors
    if not operand or known:
      return None
    if (shape := self.shapes.get(node.output[0])) is not None:
      return tuple(map(Monomial, shape))
    return self.replacement.shapes.get(node.output[0])

  def _given(self, node: onnx.NodeProto, position: int) -> str:
    """The body's name of what a node reads; the longest of some lengths is made of them."""
    value = node.input[position]
    last = _LONGEST.get((node.domain, node.op_type, position))
    if last is None or value in self.names or value in self.constants.tensors:
      return self._name(value)
    most = self._compute("ReduceMax", [self._name(node.input[last])], keepdims=0)
    one = self._append(numpy_helper.from_array(np.array(1, np.int32)))
    longest, query = self._compute("Add", [most, one]), self.shapes.get(node.input[0])
    if query is None or len(query) != 3 or query[1] < 2:
      return longest
    # A prompt of which every sequence ends before its last token is as long as that all the same.
    new = self._append(numpy_helper.from_array(np.array(query[1], np.int32)))
    return self._compute("Max", [longest, new])

  def _name(self, value: str) -> str:
    """The body's name of a value; a constant gets its node, or becomes an input, on first use."""
    if value in self.names:
      return self.names[value]
    tensor = self.constants.tensors.get(value)
    if tensor is None:
      raise internal(f"{value!r} is neither an input of the region nor a constant")
    count = np.prod(tensor.dims, dtype=np.int64)
    stored = numpy_helper.from_array(self.constants.array(value)) if count <= MAX_CONSTANT_BYTES else None
    if stored is not None and len(stored.raw_data) <= MAX_CONSTANT_BYTES:
      self.names[value] = self._append(stored)
    else:
      self.names[value] = f"i{len(self.replacement.inputs) + len(self.operands)}"
      self.operands.append(value)
    return self.names[value]

  def _shape(self, shape: tuple[Monomial, ...]) -> str:
    """A value that holds the shape: a constant, or made of dimensions of inputs."""
    if not any(m.dims for m in shape):
      return self._constant([m.coefficient for m in shape])
    parts = [self._size(m) for m in shape]
    return self._compute("Concat", parts, axis=0)

  def _size(self, m: Monomial) -> str:
    factors = [self._constant([m.coefficient])] if m.coefficient != 1 or not m.dims else []
    for i, d in m.dims:
      whole = self._compute("Shape", [f"i{i}"])
      factors.append(self._compute("Gather", [whole, self._constant([d])]))
    while len(factors) > 1:
      factors[:2] = [self._compute("Mul", factors[:2])]
    return factors[0]

  def _compute(self, op: str, inputs: list[str], **more: Any) -> str:
    name = f"s{len(self.prologue)}"
    self.prologue.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **more))
    return name

  def _constant(self, values: Sequence[int]) -> str:
    return self._append(numpy_helper.from_array(np.array(values, np.int64)))

  def _append(self, stored: onnx.TensorProto) -> str:
    name = f"c{sum(n.op_type == 'Constant' for n in self.prologue)}"
    if self.is_old and stored.data_type not in _FLOATS:
      # A double holds every number of a shape.
      wide = numpy_helper.from_array(numpy_helper.to_array(stored).astype(np.float64))
      return self._compute("Cast", [self._append(wide)], to=stored.data_type)
    self.prologue.append(helper.make_node("Constant", [], [name], name=f"Constant_{name}", value=stored))
    return name

  def _read(self, missing: Sequence[tuple[str, str]]) -> None:
    for value, op in missing:
      last = self.names[value]
      # The second Flatten keeps the first one in fp16 where the value's node is none. A scalar has axis 0.
      more: dict[str, Any] = {"axis": 0} if op == "Flatten" else {}
      for _ in range(2 if op == "Flatten" else 1):
        name = f"r{self.read}"
        self.body.append(helper.make_node(op, [last], [name], name=f"{op}_{name}", **more))
        self.read, last = self.read + 1, name


def empty_workspace(is_old: bool) -> list[onnx.NodeProto]:
  """Nodes that make ``workspace``, a uint8 tensor of no elements: a body needs no scratch memory."""
  if is_old:
    empty = numpy_helper.from_array(np.zeros(0, np.float32))
    to = onnx.TensorProto.UINT8
    return [
      helper.make_node("Constant", [], ["workspace_float"], name="Constant_workspace", value=empty),
      helper.make_node("Cast", ["workspace_float"], ["workspace"], name="Cast_workspace", to=to),
    ]
  shape = numpy_helper.from_array(np.zeros(1, np.int64))
  empty = numpy_helper.from_array(np.zeros(1, np.uint8))
  return [
    helper.make_node("Constant", [], ["workspace_shape"], name="Constant_workspace", value=shape),
    helper.make_node(
      "ConstantOfShape", ["workspace_shape"], ["workspace"], name="ConstantOfShape_workspace", value=empty
    ),
  ]
