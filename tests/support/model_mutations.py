"""Damaged model files: one seed, one file. Bytes are flipped or cut, or messages made to lie."""

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Rng = np.random.Generator

#: Whole numbers at the edges of what fields of models hold.
EDGES = (0, 1, -1, 2, 127, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 40,
         (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))  # fmt: skip
NAMES = ("", " ", "x" * 3000, "a/b", "../up", "\0", "{x}", "%s", "\u202e", "\U0001f600", "\n\n")
#: What a damaged file may give as the place of its weights.
PLACES = ("../w.bin", "/etc/hostname", "missing.bin", "", ".", "w.bin/", "w" * 300, "a\0b",
          "C:\\w.bin", "..\\w.bin", "a/../../w.bin", "in.onnx", "~/w.bin", "//w.bin",
          "w.bin")  # fmt: skip
DATA = bytes(range(256)) * 16


@dataclass(frozen=True)
class Mutant:
  kind: str
  data: bytes
  files: dict[str, bytes] = field(default_factory=dict)


def mutant(seed, subjects):
  """The same file for the same seed and subjects, on every machine."""
  rng = np.random.default_rng(seed)
  subject = subjects[int(rng.integers(len(subjects)))]
  if rng.random() < 0.35:
    kind = _pick(rng, tuple(BYTES))
    return Mutant(kind, BYTES[kind](bytearray(subject), rng))
  model = onnx.ModelProto.FromString(subject)
  kinds = [_pick(rng, tuple(MESSAGES)) for _ in range(1 + int(rng.integers(3)))]
  for kind in kinds:
    try:
      MESSAGES[kind](model, rng)
    except IndexError:  # nothing of the kind is left in the model
      continue
  data = model.SerializeToString()
  if rng.random() < 0.05:
    data = BYTES["flips"](bytearray(data), rng)
  return Mutant("+".join(kinds), data, {"w.bin": DATA} if "external" in kinds else {})


def _pick(rng, items):
  if not items:
    raise IndexError
  return items[int(rng.integers(len(items)))]


# -- bytes


def _flips(data, rng):
  for at in rng.integers(0, len(data), 1 + int(rng.integers(8))):
    data[at] ^= 1 << int(rng.integers(8))
  return bytes(data)


def _cut(data, rng):
  return bytes(data[: int(rng.integers(len(data)))])


def _hole(data, rng):
  start = int(rng.integers(len(data)))
  return bytes(data[:start] + data[start + 1 + int(rng.integers(64)) :])


def _noise(data, rng):
  start = int(rng.integers(len(data)))
  size = 1 + int(rng.integers(32))
  return bytes(data[:start] + rng.bytes(size) + data[start + size * int(rng.integers(2)) :])


def _repeat(data, rng):
  a, b = sorted(int(i) for i in rng.integers(0, len(data), 2))
  return bytes(data[:b] + data[a : min(b, a + 4096)] + data[b:])


def _names(data, rng):
  """Text that is no UTF-8: small fields near the front hold names and types."""
  for at in rng.integers(0, min(len(data), 4096), 4):
    data[at] = 0xFF
  return bytes(data)


def _deep(data, rng):
  """An If in an If in an If, joined to the graph as bytes: protobuf refuses to nest so deep."""
  graph = b""
  for _ in range(int(_pick(rng, (1, 3, 10, 30, 33, 40, 500)))):
    attribute = AttributeProto(name="then_branch", type=AttributeProto.GRAPH)
    body = attribute.SerializeToString() + _field(AttributeProto.G_FIELD_NUMBER, graph)
    node = onnx.NodeProto(op_type=_pick(rng, ("If", "If", "Loop", "Scan")), output=["r"])
    node.input.append(_pick(rng, ("", "x0", "r", "nobody")))
    body = node.SerializeToString() + _field(onnx.NodeProto.ATTRIBUTE_FIELD_NUMBER, body)
    graph = _field(onnx.GraphProto.NODE_FIELD_NUMBER, body)
  return bytes(data) + _field(onnx.ModelProto.GRAPH_FIELD_NUMBER, graph)


def _field(number, data):
  """A message inside another, as protobuf writes it: key, length, data."""
  key, size = bytes([number << 3 | 2]), len(data)
  while size > 127:
    key, size = key + bytes([size & 127 | 128]), size >> 7
  return key + bytes([size]) + data


BYTES = {
  "flips": _flips, "cut": _cut, "hole": _hole, "noise": _noise, "repeat": _repeat,
  "no text": _names, "deep": _deep, "nothing": lambda data, rng: b"",
  "only noise": lambda data, rng: rng.bytes(99),
}  # fmt: skip

# -- messages


def _node(model, rng):
  return _pick(rng, model.graph.node)


def _attribute(model, rng):
  return _pick(rng, [a for n in model.graph.node for a in n.attribute])


def _weight(model, rng):
  return _pick(rng, model.graph.initializer)


def _value(model, rng):
  graph = model.graph
  return _pick(rng, (*graph.input, *graph.output, *graph.value_info))


def _drop_attribute(model, rng):
  node = _pick(rng, [n for n in model.graph.node if n.attribute])
  del node.attribute[int(rng.integers(len(node.attribute)))]


def _attribute_value(model, rng):
  a = _attribute(model, rng)
  edge = int(_pick(rng, EDGES))
  if a.ints:
    a.ints[int(rng.integers(len(a.ints)))] = edge
  elif a.type == AttributeProto.FLOAT:
    a.f = float(_pick(rng, (np.nan, np.inf, -np.inf, 0.0, -1.0, 3e38, 1e-45)))
  elif a.type == AttributeProto.STRING:
    a.s = _pick(rng, (b"", b"\xff\xfe", b"none", b"x" * 9999))
  else:
    a.i = edge


def _attribute_type(model, rng):
  a = _attribute(model, rng)
  if rng.random() < 0.5:
    a.type = int(rng.integers(0, 15))
  else:
    name = a.name
    a.Clear()
    values = (1, 0.5, "text", [1, 2], [0.5], ["a"],
              numpy_helper.from_array(np.ones(2)))  # fmt: skip
    a.CopyFrom(helper.make_attribute(name, _pick(rng, values)))


def _attribute_twice(model, rng):
  node = _pick(rng, [n for n in model.graph.node if n.attribute])
  node.attribute.add().CopyFrom(_pick(rng, node.attribute))


def _dims(model, rng):
  shape = _value(model, rng).type.tensor_type.shape
  if rng.random() < 0.3:
    shape.dim.add(dim_value=int(_pick(rng, EDGES)))
  elif rng.random() < 0.2:
    shape.dim.add(dim_param=_pick(rng, NAMES))
  else:
    _pick(rng, shape.dim).dim_value = int(_pick(rng, EDGES))


def _value_type(model, rng):
  value = _value(model, rng)
  if rng.random() < 0.6:
    value.type.tensor_type.elem_type = int(rng.integers(-1, 40))
  else:
    value.type.Clear()
    if rng.random() < 0.5:
      value.type.sequence_type.elem_type.tensor_type.elem_type = 1


def _weight_dims(model, rng):
  tensor = _weight(model, rng)
  if tensor.dims and rng.random() < 0.7:
    tensor.dims[int(rng.integers(len(tensor.dims)))] = int(_pick(rng, EDGES))
  else:
    tensor.dims.extend([int(_pick(rng, EDGES))] * int(rng.integers(1, 80)))


def _weight_type(model, rng):
  _weight(model, rng).data_type = int(rng.integers(-1, 40))


def _weight_data(model, rng):
  tensor = _weight(model, rng)
  match int(rng.integers(4)):
    case 0:
      tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
    case 1:
      tensor.ClearField("raw_data")
    case 2:
      tensor.float_data.extend([1.0, 2.0])
    case _:
      tensor.raw_data = rng.bytes(len(tensor.raw_data))


def _rename(model, rng):
  """One end of an edge, or the name of a node, an operator, a domain, a weight, a value."""
  node, name = _node(model, rng), _pick(rng, NAMES)
  edges = [e for e in (node.input, node.output) if e]
  match int(rng.integers(7)):
    case 0 | 1:
      edge = _pick(rng, edges)
      edge[int(rng.integers(len(edge)))] = name
    case 2:
      node.name = name
    case 3:
      node.op_type = name
    case 4:
      node.domain = name
    case 5:
      _weight(model, rng).name = name
    case _:
      _value(model, rng).name = name


def _rewire(model, rng):
  """Two names become one: cycles, values defined twice, operands of the wrong type."""
  names = [v for n in model.graph.node for v in (*n.input, *n.output)]
  node = _node(model, rng)
  edge = _pick(rng, [e for e in (node.input, node.output) if e])
  edge[int(rng.integers(len(edge)))] = _pick(rng, names)


def _arity(model, rng):
  node = _node(model, rng)
  edge = _pick(rng, (node.input, node.output))
  if edge and rng.random() < 0.6:
    edge.pop()
  else:
    edge.append(_pick(rng, NAMES))


def _operator(model, rng):
  names = sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == ""})
  _node(model, rng).op_type = _pick(rng, names)


def _part(model, rng):
  g = model.graph
  parts = (g.node, g.initializer, g.input, g.output, g.value_info, model.opset_import)
  return _pick(rng, [p for p in parts if p])


def _drop(model, rng):
  part = _part(model, rng)
  del part[int(rng.integers(len(part)))]


def _double(model, rng):
  part = _part(model, rng)
  part.add().CopyFrom(_pick(rng, part))


def _shuffle(model, rng):
  nodes = list(model.graph.node)
  del model.graph.node[:]
  model.graph.node.extend(nodes[int(i)] for i in rng.permutation(len(nodes)))


def _versions(model, rng):
  if rng.random() < 0.3:
    model.ir_version = int(_pick(rng, EDGES))
  elif model.opset_import and rng.random() < 0.8:
    _pick(rng, model.opset_import).version = int(_pick(rng, (*EDGES, 7, 12, 13, 17, 24, 25)))
  else:
    model.opset_import.add(domain=_pick(rng, NAMES), version=int(_pick(rng, EDGES)))


def _external(model, rng):
  tensor = _weight(model, rng)
  if rng.random() < 0.9:
    tensor.ClearField("raw_data")
  tensor.data_location = TensorProto.EXTERNAL
  numbers = (*map(str, EDGES), "", "many", "1e3", "0x10", "9" * 5000)
  place = "w.bin" if rng.random() < 0.4 else _pick(rng, PLACES)
  tensor.external_data.add(key="location", value=place)
  for key in ("offset", "length"):
    if rng.random() < 0.4:
      tensor.external_data.add(key=key, value=_pick(rng, numbers))


def _function(model, rng):
  """A function that calls itself, or takes the name of an operator."""
  node = _node(model, rng)
  name = _pick(rng, (node.op_type, "F", ""))
  domain = _pick(rng, (node.domain, "local", ""))
  call = helper.make_node(name, ["a"], ["b"], domain=domain)
  opsets = [helper.make_opsetid("", 20)]
  model.functions.append(helper.make_function(domain, name, ["a"], ["b"], [call], opsets))
  if rng.random() < 0.7:
    node.op_type, node.domain = name, domain
    model.opset_import.add(domain=domain, version=1)


def _sparse(model, rng):
  tensor = _weight(model, rng)
  sparse = model.graph.sparse_initializer.add(dims=[int(_pick(rng, EDGES))])
  sparse.values.CopyFrom(tensor)
  sparse.indices.CopyFrom(tensor)
  if rng.random() < 0.7:
    model.graph.initializer.remove(tensor)


MESSAGES = {
  "drop attribute": _drop_attribute, "attribute value": _attribute_value,
  "attribute type": _attribute_type, "attribute twice": _attribute_twice, "dims": _dims,
  "value type": _value_type, "weight dims": _weight_dims, "weight type": _weight_type,
  "weight data": _weight_data, "rename": _rename, "rewire": _rewire, "arity": _arity,
  "operator": _operator, "drop": _drop, "double": _double, "shuffle": _shuffle,
  "versions": _versions, "external": _external, "function": _function,
  "sparse": _sparse,
}  # fmt: skip
