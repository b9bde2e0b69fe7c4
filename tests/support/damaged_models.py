"""ONNX models that are nearly right, by seed: graphs of a grammar, then changed in terms of the format.

The grammar draws operators from onnx's own schemas, so that any of them, of any opset, comes with right
and wrong operands and attributes; those that are lowered come most often. What is changed then is
``model_mutations``. ``made`` also gives damaged records of kernels and entries of caches.
"""

import copy
import json
import random
from dataclasses import dataclass, field

import numpy as np
import onnx
from model_mutations import BYTES, DATA, EDGES, MESSAGES
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from mirage_onnx.importer.semantics import SEMANTICS

OPSETS = range(7, 27)
#: Operators that take or make other shapes, beside those that are lowered.
SHAPING = tuple(
  "Range ConstantOfShape Tile Pad Resize OneHot CumSum Einsum Shape Size Expand NonZero TopK If Loop Scan "
  "SequenceConstruct ScatterElements EyeLike Compress Where Constant Conv DequantizeLinear Trilu "
  "GatherElements".split()
)
FLOATS = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16)
SIZES = (1, 4, 4, 8, 8, 8, "n", "batch")
INTS = (-1, 0, 1, 2, 3, 4, 8, 64, 1024, *EDGES)
WORDS = ("", "linear", "constant", "none", "SAME_UPPER", "...ij,...jk->...ik", "ij,jk", "tanh", "\\0")
#: Deepest subgraph of the grammar.
DEPTH = 3


@dataclass(frozen=True)
class Made:
  """A damaged file: ``kind`` is model, record or entry; ``what`` was changed."""

  kind: str
  what: str
  data: bytes
  files: dict[str, bytes] = field(default_factory=dict)


class _Graph:
  def __init__(self, rng, opset, depth=0, outer=()):
    self.rng, self.opset, self.depth = rng, opset, depth
    self.type = rng.choice(FLOATS)
    self.nodes, self.weights, self.inputs = [], [], []
    self.values = list(outer)
    self.local = []
    self.prefix = f"g{depth}_{rng.randrange(10**6)}_" if depth else ""

  def name(self):
    return f"{self.prefix}v{len(self.nodes)}_{len(self.weights)}_{len(self.inputs)}"

  def weight(self, array, dtype):
    name = self.name()
    self.weights.append(helper.make_tensor(name, dtype, array.shape, array.reshape(-1).tolist()))
    return name

  def integers(self):
    count = self.rng.choice((0, 1, 1, 2, 2, 3, 4))
    values = [self.rng.choice(INTS[: 9 if self.rng.random() < 0.8 else None]) for _ in range(count)]
    shape = () if count == 1 and self.rng.random() < 0.3 else (count,)
    return self.weight(np.array(values, np.int64).reshape(shape), TensorProto.INT64)

  def floats(self):
    shape = self.rng.choice(((), (8,), (8, 8), (1, 8), (4, 8), (1,), (2, 3)))
    values = self.rng.choice((0.125, 1.0, -2.0, 0.0, 6e4, float("inf"))) if shape == () else 0.5
    return self.weight(np.full(shape, values), self.type)

  def operand(self, schema, i):
    rng = self.rng
    formal = schema.inputs[min(i, len(schema.inputs) - 1)]
    if rng.random() < 0.03:
      return rng.choice(("", "nobody", "x0"))
    if not any("float" in t for t in formal.types):
      wants = "tensor(bool)" in formal.types and "tensor(int64)" not in formal.types
      return self.weight(np.array(rng.random() < 0.5), TensorProto.BOOL) if wants else self.integers()
    if not self.values or rng.random() < 0.15:
      return self.floats()
    return rng.choice(self.values[-4:]) if rng.random() < 0.7 else rng.choice(self.values)

  def attribute(self, name, kind):
    rng, a = self.rng, AttributeProto
    if rng.random() < 0.03:
      kind = rng.choice([k for k in defs.OpSchema.AttrType.__members__.values() if k.name != "UNDEFINED"])
    small = 9 if rng.random() < 0.9 else None
    match kind.name:
      case "INT":
        return helper.make_attribute(name, rng.choice(INTS[:small]))
      case "INTS":
        return helper.make_attribute(
          name, [rng.choice(INTS[:small]) for _ in range(rng.randrange(4))], None, a.INTS
        )
      case "FLOAT":
        return helper.make_attribute(name, rng.choice((0.0, 0.5, 1e-5, -1.0, 1e38, float("nan"))))
      case "FLOATS":
        return helper.make_attribute(name, [0.5] * rng.randrange(4), None, a.FLOATS)
      case "STRING":
        return helper.make_attribute(name, rng.choice(WORDS))
      case "STRINGS":
        return helper.make_attribute(name, [rng.choice(WORDS)], None, a.STRINGS)
      case "TENSOR":
        dtype = rng.choice((np.int64, np.float32, bool, np.int32))
        shape = rng.choice(((), (1,), (8,), (2, 2), (0,)))
        return helper.make_attribute(name, numpy_helper.from_array(np.ones(shape, dtype)))
      case "GRAPH":
        return helper.make_attribute(name, self.inner())
      case _:
        return helper.make_attribute(name, 1)

  def inner(self):
    body = _Graph(self.rng, self.opset, self.depth + 1, self.values)
    for _ in range(self.rng.randrange(1, 3)):
      body.node()
    return body.proto(declared=self.rng.random() < 0.5)

  def node(self):
    rng = self.rng
    if self.local and rng.random() < 0.5:
      self._put(
        helper.make_node(rng.choice(self.local), [rng.choice(self.values)], [self.name()], domain="local")
      )
      return
    domain, op = rng.choice(_OPERATORS if rng.random() < 0.75 else _OTHERS)
    if domain:
      given = {}
      if rng.random() < 0.5:
        given = {"num_heads": rng.choice((1, 2, 3)), "epsilon": 1e-5, "transB": rng.randrange(2)}
      operands = [rng.choice([*self.values, "", self.floats()]) for _ in range(rng.randrange(1, 7))]
      self._put(helper.make_node(op, operands, [self.name()], domain=domain, **given))
      return
    try:
      schema = defs.get_schema(op, self.opset, "")
    except defs.SchemaError:
      self._put(helper.make_node(op, self.values[-1:], [self.name()]))
      return
    if self.depth >= DEPTH and any(a.type.name == "GRAPH" for a in schema.attributes.values()):
      return
    count = rng.randint(schema.min_input, max(schema.min_input, min(schema.max_input, 4)))
    operands = [self.operand(schema, i) for i in range(count)] if schema.inputs else []
    outputs = [self.name()]
    outputs += [f"{outputs[0]}_{k}" for k in range(1, rng.randint(1, max(1, min(schema.max_output, 3))))]
    node = helper.make_node(op, operands, outputs, name=rng.choice(("", op, outputs[0])))
    for name, a in schema.attributes.items():
      if rng.random() < (0.97 if a.required else 0.25):
        node.attribute.append(self.attribute(name, a.type))
    self._put(node)

  def _put(self, node):
    self.nodes.append(node)
    self.values += [o for o in node.output if o]

  def proto(self, *, declared=True):
    rng = self.rng
    outputs = [onnx.ValueInfoProto(name=n) for n in self.values[-rng.randint(1, 2) :]]
    if rng.random() < 0.3:
      outputs = [helper.make_tensor_value_info(o.name, self.type, [4, 8]) for o in outputs]
    graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.weights)
    if declared and rng.random() < 0.3 and self.nodes:
      shape = [rng.choice((*SIZES, -1, 0, 1 << 62)) for _ in range(rng.randrange(4))]
      graph.value_info.append(helper.make_tensor_value_info(rng.choice(self.values), self.type, shape))
    return graph


_OPERATORS = tuple(SEMANTICS)
_OTHERS = tuple(
  ("", name)
  for name in (*SHAPING, *(s.name for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated))
)


def grown(rng):
  """A model of the grammar, before anything is changed."""
  opset = rng.choice(OPSETS)
  graph = _Graph(rng, opset)
  same = [rng.choice(SIZES), 8]
  for i in range(rng.randint(1, 3)):
    shape = same if rng.random() < 0.7 else [rng.choice(SIZES) for _ in range(rng.randrange(5))]
    graph.inputs.append(helper.make_tensor_value_info(f"x{i}", graph.type, shape))
    graph.values.append(f"x{i}")
  functions = []
  if rng.random() < 0.15:
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    for i in range(rng.randint(1, 24)):
      callee, domain = (f"f{i - 1}", "local") if i else ("Relu", "")
      calls = [helper.make_node(callee, [a], [b], domain=domain) for a, b in (("a", "t"), ("t", "b"))]
      functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], calls, opsets))
      graph.local.append(f"f{i}")
  for _ in range(rng.randint(1, 9)):
    graph.node()
  if rng.random() < 0.1:  # a long chain
    op = rng.choice(("Relu", "Sum", "Add", "Mul", "Transpose", "Identity", "Concat", "Exp"))
    for _ in range(rng.choice((30, 60, 400))):
      given = {"axis": 0} if op == "Concat" else {}
      last = graph.values[-1]
      graph._put(
        helper.make_node(op, [last] * (1 + (op in ("Sum", "Add", "Mul", "Concat"))), [graph.name()], **given)
      )
  imports = [helper.make_opsetid(d, v) for d, v in (("", opset), ("com.microsoft", 1), ("local", 1))]
  model = helper.make_model(graph.proto(), opset_imports=imports, functions=functions)
  model.ir_version = rng.choice((3, 8, 10, 10, 10, 11))
  return model


def made(seed, record=b"{}", entry=b""):
  """The same file for the same seed; ``record`` and ``entry`` are what the others are made of."""
  rng = random.Random(seed)
  part = rng.random()
  if part < 0.04:
    return _changed_json(rng, "record", record)
  if part < 0.06:
    return _changed_json(rng, "entry", entry)
  model = grown(rng)
  numbers = np.random.default_rng(seed)
  kinds = []
  for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
    kind = rng.choice(tuple(MESSAGES))
    try:
      MESSAGES[kind](model, numbers)
      kinds.append(kind)
    except IndexError:  # nothing of the kind is in the model
      continue
  data = model.SerializeToString()
  if rng.random() < 0.15:
    kinds.append(kind := rng.choice(tuple(BYTES)))
    data = BYTES[kind](bytearray(data), numbers)
  return Made("model", "+".join(kinds) or "as grown", data, {"w.bin": DATA})


_JSON = (None, True, 0, -1, 1.5, 1 << 70, "", "x", [], [[]], {}, {"a": None}, "9" * 5000, "\0", ["a"] * 300)
_WORDS = ("", "-", "0", "-1", "99999999999999999999", "a9", "const[1e40000000]", "zz", "%7")


def _changed_json(rng, kind, text):
  value = json.loads(text)
  for _ in range(rng.randint(1, 3)):
    holder, key = value, None
    while True:
      keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
      if not keys:
        break
      key = rng.choice(keys)
      if isinstance(holder[key], (dict, list)) and rng.random() < 0.7:
        holder = holder[key]
        continue
      break
    if key is None:
      continue
    try:
      old = holder[key]
    except (LookupError, TypeError):
      continue
    change = rng.randrange(4)
    if change == 0:
      del holder[key]
    elif change == 1 or not isinstance(old, str) or not old:
      holder[key] = copy.deepcopy(rng.choice(_JSON))
    else:
      holder[key] = _changed_text(rng, old)
  return Made(kind, "json", json.dumps(value).encode())


def _changed_text(rng, text):
  words = text.split(" ")
  at = rng.randrange(len(words))
  match rng.randrange(4):
    case 0:
      del words[at]
    case 1:
      words[at] = rng.choice(
        ("", "-", "0", "-1", "99999999999999999999", "a9", "const[1e40000000]", "zz", "%7")
      )
    case 2:
      words.insert(at, rng.choice(words))
    case _:
      cut = rng.randrange(len(text))
      return text[:cut] + rng.choice("0-,=[]%/ \n@a9") + text[cut + 1 :]
  return " ".join(words)
