"""Models that are odd in ways of their own: one by seed, of a kind each.

Not damage of right models (``damaged_models.py``), but what no exporter writes: nesting, counts, wire
formats, functions, sparse and external tensors, attributes and arities at their ends, and graphs that
are small and dear to follow.
"""

import random
import struct
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

F, H, INT, B = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
HUGE = (0, 1, -1, 2, 3, 7, 63, 64, 65, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 32,
        1 << 40, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))  # fmt: skip
ODD_FLOATS = (0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4e38, float("inf"), float("-inf"), float("nan"), 65504.0, 65520.0,
              1.0, -1.0, 0.5)  # fmt: skip
ODD_BYTES = (
  b"\xff\xfe",
  b"\xc3\x28",
  b"\xed\xa0\x80",
  b"a\x00b",
  b"\n",
  b"\xe2\x80\xa8",
  b"",
  b"\xf4\x90\x80\x80",
)


@dataclass
class Odd:
  """``data``: the file; ``files``: those beside it, by name."""

  kind: str
  data: bytes
  files: dict[str, bytes] = field(default_factory=dict)


def info(name, kind=F, dims=(4, 64)):
  return helper.make_tensor_value_info(name, kind, list(dims))


def model(nodes, inputs, outputs, weights=(), functions=(), opset=20, extra=()):
  graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), list(weights))
  opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1), *extra]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def node(op, inputs, outputs, **attributes):
  inputs, outputs = (n.split() if isinstance(n, str) else n for n in (inputs, outputs))
  empty = {k: AttributeProto.INTS for k, v in attributes.items() if isinstance(v, list) and not v}
  made = helper.make_node(op, inputs, outputs, domain=attributes.pop("domain", ""))
  for name, value in attributes.items():
    made.attribute.append(helper.make_attribute(name, value, attr_type=empty.get(name)))
  return made


def weight(rng, name, dims, kind=np.float32):
  values = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(dims)
  return numpy_helper.from_array((values * 3).astype(kind), name)


def raw(message):
  return message.SerializeToString()


# --- wire format, by hand


def varint(value):
  value &= (1 << 64) - 1
  out = bytearray()
  while True:
    out.append(value & 127 | (128 if value > 127 else 0))
    value >>= 7
    if not value:
      return bytes(out)


def overlong(value, size):
  found = bytearray(varint(value))
  while len(found) < size:
    found[-1] |= 128
    found.append(0)
  return bytes(found)


def key(number, kind):
  return varint(number << 3 | kind)


def chunk(number, data):
  return key(number, 2) + varint(len(data)) + data


def plain(rng):
  """A right model: a norm, a product and something elementwise."""
  width = rng.choice((8, 64, 96))
  nodes = [
    node("LayerNormalization", "x s", "n", axis=-1),
    node("MatMul", "n w", "m"),
    node(rng.choice(("Relu", "Tanh", "Erf", "Sigmoid")), "m", "a"),
    node("Add", "a b", "y"),
  ]
  weights = [weight(rng, "s", (64,)), weight(rng, "w", (64, width)), weight(rng, "b", (width,))]
  return model(nodes, [info("x")], [info("y", F, (4, width))], weights)


# --- kinds


def deep_graphs(rng):
  depth = rng.choice((1, 5, 12, 20, 24, 28, 31))
  op = rng.choice(("If", "Loop", "Scan", "mixed"))
  inner = [node("Relu", "x", "o0")]
  last = "o0"
  for k in range(depth):
    kind = rng.choice(("If", "Loop")) if op == "mixed" else op
    made = f"o{k + 1}"
    if kind == "If":
      body = helper.make_graph(inner, f"b{k}", [], [helper.make_empty_tensor_value_info(last)])
      other = helper.make_graph([node("Neg", "x", f"e{k}")], f"e{k}", [], [info(f"e{k}")])
      inner = [
        node(
          "If", "c", made, then_branch=body, else_branch=body if rng.random() < 0.3 and depth <= 12 else other
        )
      ]
    elif kind == "Loop":
      carried = [node("Identity", f"c{k}", f"cc{k}"), *inner]
      ins = [info(f"i{k}", INT, ()), info(f"c{k}", B, ()), info(f"v{k}")]
      body = helper.make_graph(
        carried, f"b{k}", ins, [info(f"cc{k}", B, ()), helper.make_empty_tensor_value_info(last)]
      )
      inner = [node("Loop", "t c x", made, body=body)]
    else:
      body = helper.make_graph(inner, f"b{k}", [info(f"s{k}")], [helper.make_empty_tensor_value_info(last)])
      inner = [node("Scan", "x", made, body=body, num_scan_inputs=1)]
    last = made
  return model(
    inner, [info("x"), info("c", B, ()), info("t", INT, ())], [helper.make_empty_tensor_value_info(last)]
  )


def deep_types(rng):
  found = plain(rng)
  kind = found.graph.value_info.add(name=rng.choice(("m", "a", "y", "none"))).type
  for _ in range(rng.choice((1, 5, 20, 40))):
    what = rng.choice(("sequence", "optional", "map"))
    if what == "map":
      kind.map_type.key_type = rng.choice((INT, TensorProto.STRING, F, 99))
      kind = kind.map_type.value_type
    else:
      kind = getattr(kind, f"{what}_type").elem_type
  if rng.random() < 0.5:
    kind.tensor_type.elem_type = rng.choice((F, H, 0, 99, -1))
  if rng.random() < 0.3:
    found.graph.input[0].type.CopyFrom(found.graph.value_info[0].type)
  return found


def many(rng):
  found = plain(rng)
  count = rng.choice((100, 1000, 3000))
  what = rng.randrange(10)
  graph = found.graph
  if what == 0:
    op = rng.choice(("Sum", "Max", "Mean", "Concat", "Min"))
    attributes = {"axis": 0} if op == "Concat" else {}
    graph.node.append(node(op, ["x"] * count, "z", **attributes))
    graph.output.append(info("z", F, (4 * count, 64) if op == "Concat" else (4, 64)))
  elif what == 1:
    names = [f"p{k}" for k in range(count)]
    graph.node.append(node("Split", "x", names, axis=0, num_outputs=count))
    graph.output.append(helper.make_empty_tensor_value_info(names[rng.randrange(count)]))
  elif what == 2:
    for k in range(count):
      graph.node[0].attribute.append(helper.make_attribute(f"a{k}", k))
  elif what == 3:
    for k in range(count):
      graph.value_info.append(info(f"v{k}", F, [f"d{k}", 3]))
  elif what == 4:
    for k in range(count):
      found.opset_import.append(helper.make_opsetid(f"d{k}", k))
  elif what == 5:
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n" * (100 * count)
  elif what == 6:
    for k in range(count):
      graph.node.append(node("Shape", "x", f"z{k}"))
      graph.output.append(info(f"z{k}", INT, (2,)))
  elif what == 7:
    before = "x"
    for k in range(min(count, 1000)):
      graph.node.append(node(rng.choice(("Add", "Mul")), f"{before} x", f"z{k}"))
      before = f"z{k}"
    graph.output.append(helper.make_empty_tensor_value_info(before))
  elif what == 8:
    graph.input[0].type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    for _ in range(rng.choice((9, 33, 64, 65, 500))):
      graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
  else:
    for k in range(count):
      found.metadata_props.add(key=f"k{k % 7}", value="v" * 30)
      graph.initializer.append(numpy_helper.from_array(np.float32(k), f"s{k}"))
  return found


def wire(rng):
  """Fields that protobuf allows and no writer makes."""
  found = plain(rng)
  data = raw(found)
  what = rng.randrange(11)
  if what == 0:  # parts of a message are merged
    return data + raw(plain(rng))
  if what == 1:  # unknown fields, groups
    extra = (
      key(rng.choice((99, 1000, 536870911)), 3) + chunk(5, b"x") + key(rng.choice((99, 1000, 536870911)), 4)
    )
    return data + extra if rng.random() < 0.5 else extra + data
  if what == 2:
    depth = rng.choice((10, 90, 101, 5000))
    return data + key(99, 3) * depth + key(99, 4) * depth
  if what == 3:
    return data + key(1, 0) + overlong(rng.choice(HUGE), rng.choice((2, 9, 10, 11, 12)))
  if what == 4:
    return data + key(7, 2) + varint(rng.choice(HUGE)) + b"abc"
  if what == 5:  # a graph in a graph's place, twice
    return (
      raw(ModelProto(ir_version=8))
      + chunk(7, raw(found.graph)) * rng.choice((2, 3))
      + chunk(8, raw(found.opset_import[0]))
    )
  if what == 6:
    found.graph.initializer[0].data_type = rng.choice(
      (0, 8, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 99, -1)
    )
    if rng.random() < 0.5:
      found.graph.initializer[0].ClearField("raw_data")
    return raw(found)
  if what == 7:
    return data[:-2] + varint(rng.choice(HUGE)) + data[-2:]
  if what == 8:  # ints as floats of another wire type
    t = TensorProto(name="w", dims=[64, 8], data_type=F)
    body = raw(t) + key(4, rng.choice((0, 1, 2, 5))) + struct.pack("<d", 1.5)
    return raw(ModelProto(ir_version=8)) + chunk(7, raw(found.graph) + chunk(5, body))
  if what == 9:
    found.ir_version = rng.choice(HUGE)
    for o in found.opset_import:
      o.version = rng.choice((*HUGE, 20))
    return raw(found)
  return b"".join(chunk(n, raw(m)) for n, m in ((8, found.opset_import[0]), (7, found.graph)))


def functions(rng):
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid("my", 1)]
  names = [
    rng.choice(("F", "G", "Relu", "MatMul", "LayerNormalization", "If")) for _ in range(rng.randrange(1, 5))
  ]
  domain = rng.choice(("my", "my", "", "ai.onnx", "com.microsoft", "ai.mirage.v1.sm90a"))
  made = []
  for name in names:
    body, last = [], "a"
    for j in range(rng.randrange(0, 4)):
      op = rng.choice((*names, "Relu", "Tanh", "If", "Constant"))
      out = f"t{j}"
      if op == "If":
        branch = helper.make_graph([node(rng.choice((*names, "Relu")), last, "z", domain=rng.choice((domain, "")))],
                                   "b", [], [helper.make_empty_tensor_value_info("z")])  # fmt: skip
        body += [node("Constant", "", "c", value=helper.make_tensor("", B, [], [True])),
                 node("If", "c", out, then_branch=branch, else_branch=branch)]  # fmt: skip
        body[-2].ClearField("input")
      elif op == "Constant":
        body.append(helper.make_node("Constant", [], [out]))
        body[-1].attribute.add(name="value_float", ref_attr_name=rng.choice(("alpha", "none", "")), type=1)
      else:
        body.append(node(op, [last] * rng.choice((1, 1, 2, 0)), out, domain=domain if op in names else ""))
      last = out
    function = helper.make_function(domain, name, rng.choice((["a"], [], ["a", "a"], ["a", "b"])),
                                    rng.choice(([last], [last], ["none"], [], [last, last])), body, opsets)  # fmt: skip
    if rng.random() < 0.2:
      function.overload = rng.choice(("", "o", "x" * 1000))
    if rng.random() < 0.2:
      function.attribute.append("alpha")
    if rng.random() < 0.2:
      function.attribute_proto.append(helper.make_attribute("alpha", 1.5))
    if rng.random() < 0.1:
      del function.opset_import[:]
    made.append(function)
  calls = [
    node(rng.choice(names), rng.choice(("x", "x x", "")), rng.choice(("y", "y z", "y")), domain=domain)
  ]
  if rng.random() < 0.3:
    calls[0].attribute.append(helper.make_attribute("alpha", rng.choice((1, 1.5, "s"))))
  extra = [] if domain in ("", "my") else [helper.make_opsetid(domain, rng.choice((1, 2, 20)))]
  return model(calls, [info("x")], [helper.make_empty_tensor_value_info("y")], functions=made, extra=extra)


def texts(rng):
  """Names that are not text, in the place of letters."""
  found = plain(rng)
  found.producer_name, found.doc_string, found.domain = "@@@@", "@@@@", "@@@@"
  place = rng.randrange(12)
  graph = found.graph
  if place == 0:
    graph.node[rng.randrange(4)].op_type = "@@@@"
  elif place == 1:
    graph.node[rng.randrange(4)].domain = "@@@@"
  elif place == 2:
    graph.node[1].output[0] = graph.node[2].input[0] = "@@@@"
  elif place == 3:
    graph.node[0].attribute.append(helper.make_attribute("@@@@", 1))
  elif place == 4:
    graph.node[0].attribute.append(helper.make_attribute("s", "@@@@"))
  elif place == 5:
    graph.input[0].type.tensor_type.shape.dim[0].dim_param = "@@@@"
  elif place == 6:
    graph.initializer[0].name = graph.node[0].input[1] = "@@@@"
  elif place == 7:
    found.functions.append(
      helper.make_function("my", "@@@@", ["@@@@"], ["b"], [node("Relu", "@@@@", "b")], found.opset_import[:1])
    )
  elif place == 8:
    found.metadata_props.add(key="@@@@", value="@@@@")
  elif place == 9:
    graph.value_info.append(info("@@@@"))
  elif place == 10:
    graph.sparse_initializer.add().values.name = "@@@@"
  else:
    graph.input[0].name = graph.node[0].input[0] = "@@@@"
    graph.output[0].type.tensor_type.shape.dim[0].denotation = "@@@@"
  odd = rng.choice(ODD_BYTES)
  return raw(found).replace(b"@@@@", (odd * 4)[:4].ljust(4, b"q"))


def sparse(rng):
  dims = rng.choice(([64, 8], [4, 64], [512], [], [0], [1 << 40, 1 << 40], [-1, 8], [64, 8, 1]))
  count = rng.choice((0, 1, 3, 100))
  values = TensorProto(
    name=rng.choice(("w", "x", "")), data_type=rng.choice((F, F, INT, H, 99)), dims=[count]
  )
  values.raw_data = bytes(count * 4) if rng.random() < 0.8 else b""
  shape = rng.choice(([count], [count, 2], [count, len(dims)], [2, count], [count, 1 << 33]))
  indices = TensorProto(data_type=rng.choice((INT, INT, INT, 6, F)), dims=shape)
  places = [
    rng.choice((0, 1, 5, 5, -1, 511, 512, 1 << 40, -(1 << 63)))
    for _ in range(min(400, int(np.prod(shape[:2]))))
  ]
  indices.raw_data = struct.pack(f"<{len(places)}q", *places) if rng.random() < 0.7 else b""
  t = onnx.SparseTensorProto(values=values, indices=indices, dims=dims)
  if rng.random() < 0.5:
    found = model([node("MatMul", "x w", "y")], [info("x")], [helper.make_empty_tensor_value_info("y")])
    found.graph.sparse_initializer.append(t)
    return found
  constant = helper.make_node("Constant", [], ["w"])
  attribute = constant.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
  attribute.sparse_tensor.CopyFrom(t)
  op = rng.choice(("MatMul", "Add", "Reshape", "Expand", "Gather"))
  return model([constant, node(op, "x w", "y")], [info("x")], [helper.make_empty_tensor_value_info("y")])


def external(rng):
  found = plain(rng)
  data = bytes(rng.randrange(256) for _ in range(256)) * 80
  numbers = ("0", "1", "3", "4096", " 5 ", "+4", "1_000", "٣", "0x10", "1e3", "-1", "-0", "", "9" * 30, "9" * 5000,
             str(1 << 63), str((1 << 63) - 1), "nan", "1.0", "\n8", "18446744073709551616")  # fmt: skip
  places = ("w.bin", "./w.bin", "a/../w.bin", "w.bin/", "/etc/passwd", "../w.bin", "w.bin\0", "", ".", "nul", "C:\\w.bin",
            "sub\\w.bin", "~/w.bin", "w.bin#", "%77.bin", "file://w.bin", "a/./b/../../w.bin", "//w.bin", "in.onnx",
            "*/ORT_MEM_ADDR/*", "w" * 255)  # fmt: skip
  for t in found.graph.initializer:
    if rng.random() < 0.3:
      continue
    size = len(t.raw_data)
    t.data_location = rng.choice(
      (TensorProto.EXTERNAL, TensorProto.EXTERNAL, TensorProto.EXTERNAL, TensorProto.DEFAULT)
    )
    if rng.random() < 0.9:
      t.ClearField("raw_data")
    right = rng.random() < 0.5
    entries = [("location", "w.bin" if right else rng.choice(places))]
    if rng.random() < 0.7:
      entries.append(("offset", rng.choice(numbers)))
    if rng.random() < 0.5:
      entries.append(("length", str(size) if right else rng.choice(numbers)))
    if rng.random() < 0.2:
      entries.append(("checksum", "0" * 40))
    if rng.random() < 0.2:
      entries.append(rng.choice(entries))
    for name, value in entries:
      t.external_data.add(key=name, value=value)
    if rng.random() < 0.2:
      t.data_type = rng.choice((8, 22, 21, 25, 17, 16, 14))
  return Odd("", raw(found), {"w.bin": data[: rng.choice((0, 1, 4096, 20480))]})


_ATTRIBUTES = {
  "Softmax": ("x", {"axis": HUGE}), "Clip": ("x lo hi", {}), "LayerNormalization": ("x s", {"epsilon": ODD_FLOATS, "axis": HUGE, "stash_type": HUGE}),
  "Gemm": ("x w", {"alpha": ODD_FLOATS, "beta": ODD_FLOATS, "transA": HUGE, "transB": HUGE}), "LeakyRelu": ("x", {"alpha": ODD_FLOATS}),
  "Elu": ("x", {"alpha": ODD_FLOATS}), "HardSigmoid": ("x", {"alpha": ODD_FLOATS, "beta": ODD_FLOATS}),
  "Transpose": ("x", {"perm": None}), "Flatten": ("x", {"axis": HUGE}), "Concat": ("x x", {"axis": HUGE}), "Cast": ("x", {"to": HUGE}),
  "ReduceSum": ("x axes", {"keepdims": HUGE, "noop_with_empty_axes": HUGE}), "ReduceMean": ("x axes", {"keepdims": HUGE}),
  "Split": ("x axes", {"axis": HUGE, "num_outputs": HUGE}), "Slice": ("x lo8 hi8 axes steps", {}), "Pad": ("x pads", {}),
  "Tile": ("x reps", {}), "Expand": ("x reps", {}), "Reshape": ("x reps", {"allowzero": HUGE}), "Gather": ("x axes", {"axis": HUGE}),
  "GatherElements": ("x axes", {"axis": HUGE}), "GatherND": ("x axes", {"batch_dims": HUGE}), "OneHot": ("axes depth two", {"axis": HUGE}),
  "Range": ("n0 n1 n2", {}), "ConstantOfShape": ("reps", {}), "Unsqueeze": ("x axes", {}), "Squeeze": ("x axes", {}),
  "Trilu": ("x n0", {"upper": HUGE}), "CumSum": ("x n0", {"exclusive": HUGE}), "TopK": ("x depth1", {"axis": HUGE, "k": HUGE}),
  "Conv": ("x4 w4", {"group": HUGE, "kernel_shape": None, "pads": None, "strides": None, "dilations": None}),
  "MaxPool": ("x4", {"kernel_shape": None, "pads": None, "strides": None, "dilations": None, "ceil_mode": HUGE}),
  "AveragePool": ("x4", {"kernel_shape": None, "pads": None, "strides": None, "ceil_mode": HUGE}),
  "ConvTranspose": ("x4 w4", {"group": HUGE, "output_padding": None, "output_shape": None, "strides": None, "pads": None}),
  "Resize": ("x4  sc", {"axes": None}), "Upsample": ("x4 sc", {}), "DepthToSpace": ("x4", {"blocksize": HUGE}), "SpaceToDepth": ("x4", {"blocksize": HUGE}),
  "GroupNormalization": ("x4 s s", {"num_groups": HUGE, "epsilon": ODD_FLOATS}), "LpPool": ("x4", {"kernel_shape": None, "p": HUGE}),
  "Attention": ("x3 x3 x3", {"q_num_heads": HUGE, "kv_num_heads": HUGE, "scale": ODD_FLOATS, "softcap": ODD_FLOATS, "is_causal": HUGE}),
  "RMSNormalization": ("x s", {"axis": HUGE, "epsilon": ODD_FLOATS, "stash_type": HUGE}), "RotaryEmbedding": ("x3 cs cs", {"num_heads": HUGE, "rotary_embedding_dim": HUGE, "interleaved": HUGE}),
  "QuantizeLinear": ("x s", {"axis": HUGE, "block_size": HUGE, "output_dtype": HUGE, "precision": HUGE}), "DequantizeLinear": ("q8 s", {"axis": HUGE, "block_size": HUGE}),
  "EyeLike": ("x", {"dtype": HUGE, "k": HUGE}), "Multinomial": ("x", {"dtype": HUGE, "sample_size": HUGE}), "RandomNormalLike": ("x", {"dtype": HUGE}),
  "RandomUniform": ("", {"shape": None, "dtype": HUGE}), "Einsum": ("x x", {"equation": ("ij,ij", "ij,jk->ik", "...i,...i->...", "i" * 70 + "," + "j", "ij,ij->ijijij", "->", "a,b,c", "ii,ii->i", "ij,kl->..."), }),
  "LSTM": ("x3 w3 r3", {"hidden_size": HUGE, "layout": HUGE, "direction": ("forward", "bidirectional", "odd")}), "GRU": ("x3 w3 r3", {"hidden_size": HUGE}),
  "ScatterND": ("x axes x", {}), "ScatterElements": ("x axes x", {"axis": HUGE}), "Compress": ("x bb", {"axis": HUGE}), "Det": ("x4", {}), "STFT": ("x3 n0 s n1", {"onesided": HUGE}), "DFT": ("x3 n0 n1", {"inverse": HUGE}),
  "MelWeightMatrix": ("n0 n1 n2 f0 f1", {"output_datatype": HUGE}), "HannWindow": ("n0", {"output_datatype": HUGE, "periodic": HUGE}), "RoiAlign": ("x4 ro axes", {"output_height": HUGE, "output_width": HUGE}),
  "NonMaxSuppression": ("ro3 x3 n0", {"center_point_box": HUGE}), "Col2Im": ("x3 axes axes", {"pads": None, "strides": None, "dilations": None}), "GridSample": ("x4 x4", {"align_corners": HUGE}), "AffineGrid": ("x3 axes", {}), "CenterCropPad": ("x axes", {"axes": None}),
  "MatMulInteger": ("q8 q8", {}), "QLinearMatMul": ("q8 f0 z q8 f0 z f0 z", {}), "QLinearConv": ("x4 f0 z w4 f0 z f0 z", {"group": HUGE, "strides": None}), "SplitToSequence": ("x axes", {"axis": HUGE, "keepdims": HUGE}), "ConcatFromSequence": ("sq", {"axis": HUGE, "new_axis": HUGE}),
  "ImageDecoder": ("u8", {"pixel_format": ("RGB", "odd")}), "StringSplit": ("st", {"maxsplit": HUGE, "delimiter": ("", "a")}), "TfIdfVectorizer": ("axes", {"max_gram_length": HUGE, "min_gram_length": HUGE, "max_skip_count": HUGE, "ngram_counts": None, "ngram_indexes": None, "pool_int64s": None, "mode": ("TF", "odd")}),
  "Unique": ("x", {"axis": HUGE, "sorted": HUGE}), "BatchNormalization": ("x4 s s s s", {"epsilon": ODD_FLOATS, "training_mode": HUGE}), "InstanceNormalization": ("x4 s s", {"epsilon": ODD_FLOATS}), "LRN": ("x4", {"size": HUGE, "alpha": ODD_FLOATS}), "MaxUnpool": ("x4 i4", {"kernel_shape": None, "strides": None, "pads": None}),
  "NegativeLogLikelihoodLoss": ("x4 axes", {"ignore_index": HUGE}), "SoftmaxCrossEntropyLoss": ("x4 axes", {"ignore_index": HUGE}), "ReverseSequence": ("x axes", {"batch_axis": HUGE, "time_axis": HUGE}), "Bernoulli": ("x", {"dtype": HUGE}), "TensorScatter": ("x x axes", {"axis": HUGE}), "Swish": ("x", {"alpha": ODD_FLOATS}),
}  # fmt: skip


def attributes(rng):
  """An operator with attributes and small operands at their ends."""
  op = rng.choice(sorted(_ATTRIBUTES))
  names, given = _ATTRIBUTES[op]
  chosen = {}
  for name, values in given.items():
    if rng.random() < 0.6:
      if values is None:
        chosen[name] = [rng.choice(HUGE) for _ in range(rng.choice((0, 1, 2, 3, 4, 8)))]
      elif rng.random() < 0.3:
        chosen[name] = rng.choice(([1], [1.5], "s", 1, 0.5))
      else:
        chosen[name] = rng.choice(values)
  ints = lambda n: np.array([rng.choice((*HUGE, 0, 1, -1, 2)) for _ in range(n)], np.int64)  # noqa: E731
  scalars = {n: np.array(rng.choice((*HUGE, 0, 1, 3)), np.int64) for n in ("n0", "n1", "n2", "depth")}
  values = {
    **scalars, "depth1": ints(1), "axes": ints(rng.choice((0, 1, 2, 3))), "lo8": ints(2), "hi8": ints(2), "steps": ints(2),
    "pads": ints(rng.choice((0, 3, 4, 8))), "reps": ints(rng.choice((0, 1, 2, 3, 9, 65))), "two": np.zeros(2, np.float32),
    "lo": np.float32(rng.choice(ODD_FLOATS)), "hi": np.float32(rng.choice(ODD_FLOATS)), "sc": np.array([rng.choice(ODD_FLOATS) for _ in range(rng.choice((0, 2, 4)))], np.float32),
    "s": np.ones(64, np.float32), "w": np.ones((64, 8), np.float32), "f0": np.float32(1), "f1": np.float32(2), "z": np.uint8(0),
    "bb": np.ones(3, bool),
  }  # fmt: skip
  odd = lambda *dims: [rng.choice((*HUGE, "n")) if rng.random() < 0.1 else d for d in dims]  # noqa: E731
  shapes = {
    "x": (F, (4, 64)), "x3": (F, (2, 8, 64)), "x4": (F, (1, 4, 8, 8)), "w4": (F, (4, 4, 3, 3)), "w3": (F, (1, 32, 64)), "r3": (F, (1, 32, 8)),
    "cs": (F, (8, 32)), "q8": (2, (4, 64)), "ro": (F, (3, 4)), "ro3": (F, (1, 8, 4)), "i4": (INT, (1, 4, 8, 8)), "u8": (2, (9,)), "st": (8, (3,)), "sq": (F, (4, 64)),
  }  # fmt: skip
  inputs, weights = [], []
  for name in dict.fromkeys(n for n in names.split(" ") if n):
    if name in values and rng.random() < 0.85:
      weights.append(numpy_helper.from_array(np.asarray(values[name]), name))
    else:
      array = values.get(name)
      kind, dims = (
        shapes[name]
        if array is None
        else (helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), np.shape(array))
      )
      inputs.append(info(name, kind, odd(*dims)))
      if rng.random() < 0.05:
        inputs[-1].type.tensor_type.ClearField("shape")
  operands = names.split(" ") if names else []
  if rng.random() < 0.15:
    operands = operands[: rng.randrange(len(operands) + 1)]
  if rng.random() < 0.1:
    operands[rng.randrange(len(operands)) if operands else 0 :] = ["" for _ in operands[:1]]
  outs = [f"y{k}" for k in range(rng.choice((1, 1, 1, 2, 3)))]
  nodes = [node(op, operands, outs, **chosen)]
  if rng.random() < 0.3 and inputs:  # of a type that nothing knows
    nodes.insert(0, helper.make_node("Theirs", [], [f"{inputs[0].name}"], domain="my"))
    inputs = inputs[1:]
  if rng.random() < 0.4:
    nodes.append(
      node(
        rng.choice(("Relu", "Shape", "Identity", "Cast")),
        "y0",
        "r",
        **({"to": 1} if nodes[-1] is None else {}),
      )
    )
    outs = ["r"]
  opset = rng.choice((7, 9, 10, 11, 12, 13, 15, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26))
  made = [helper.make_empty_tensor_value_info(o) for o in outs]
  for m in made:
    if rng.random() < 0.3:
      m.CopyFrom(info(m.name, rng.choice((F, INT, H)), odd(4, 64)))
  return model(nodes, inputs, made, weights, opset=opset)


def arities(rng):
  """If, Loop, Scan and SequenceMap whose graphs take and make other counts."""
  op = rng.choice(("If", "Loop", "Scan", "SequenceMap"))

  def body(k):
    ins = [
      info(f"b{k}_{j}", rng.choice((F, INT, B)), rng.choice(((), (4,), (4, 64))))
      for j in range(rng.randrange(5))
    ]
    made = [f"o{k}_{j}" for j in range(rng.randrange(4))]
    nodes = [node("Identity", rng.choice([i.name for i in ins] or ["x"]), m) for m in made]
    return helper.make_graph(
      nodes, f"g{k}", ins, [helper.make_empty_tensor_value_info(m) for m in made if rng.random() < 0.9]
    )

  given = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
    "SequenceMap": ("body",),
  }[op]
  chosen = {name: body(k) for k, name in enumerate(given) if rng.random() < 0.9}
  if op == "Scan":
    chosen["num_scan_inputs"] = rng.choice(HUGE)
    for name in ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions"):
      if rng.random() < 0.4:
        chosen[name] = [rng.choice(HUGE) for _ in range(rng.randrange(4))]
  if rng.random() < 0.1:
    chosen[given[0]] = 3
  operands = [rng.choice(("x", "t", "c", "", "sq")) for _ in range(rng.randrange(6))]
  outs = [f"y{k}" for k in range(rng.randrange(4))]
  nodes = [
    node("SequenceConstruct", "x x", "sq"),
    node(op, operands, outs, **chosen),
    node("Relu", "x", "last"),
  ]
  ins = [info("x"), info("t", INT, rng.choice(((), (1,)))), info("c", B, ())]
  made = [helper.make_empty_tensor_value_info(o) for o in (*outs, "last")]
  return model(nodes, ins, made, opset=rng.choice((8, 9, 11, 13, 16, 17, 19, 21, 23, 25)))


def names(rng):
  """Values whose names are in each other's way."""
  found = plain(rng)
  graph = found.graph
  odd = rng.choice(
    (
      "",
      " ",
      "x",
      "y",
      "a\nb",
      "a\0b",
      "\u2028",
      "n" * 70_000,
      "/",
      "..",
      "mirage/bundle",
      "%",
      "{}",
      "\\",
      "'",
      "🙂" * 9,
      "\ufeff",
    )
  )
  for n in graph.node:
    if rng.random() < 0.3:
      n.name = odd
    for holder in (n.input, n.output):
      for k in range(len(holder)):
        if rng.random() < 0.15:
          holder[k] = odd
  for holder in (graph.input, graph.output, graph.initializer):
    for v in holder:
      if rng.random() < 0.2:
        v.name = odd
  if rng.random() < 0.3:
    branch = helper.make_graph([node("Relu", "x", odd)], "b", [], [helper.make_empty_tensor_value_info(odd)])
    graph.node.append(node("If", "cc", "z", then_branch=branch, else_branch=branch))
    graph.input.append(info("cc", B, ()))
  if rng.random() < 0.3:
    graph.name = odd
  return found


def dense(rng):
  """Small graphs that are dear to follow: products of themselves, ladders, many readers."""
  count = rng.choice((10, 20, 40, 80))
  nodes, known = [], ["x"]
  how = rng.randrange(7)
  dims, weights = (8, 64), [weight(rng, "w", (64, 64)), weight(rng, "s", (64,))]
  for k in range(count):
    last, out = known[-1], f"v{k}"
    if how == 0:
      nodes.append(node(rng.choice(("Mul", "Add")), f"{last} {last}", out))
    elif how == 1:
      nodes.append(
        node(rng.choice(("Mul", "Add", "Sub", "Div", "Max")), f"{last} {known[max(0, len(known) - 2)]}", out)
      )
    elif how == 2:
      nodes.append(
        node(
          rng.choice(("Sum", "Max", "Mean")),
          [rng.choice(known[-6:]) for _ in range(rng.randrange(2, 9))],
          out,
        )
      )
    elif how == 3:
      nodes.append(node("MatMul", f"{last} w", out) if k % 2 else node("Softmax", last, out))
    elif how == 4:
      nodes.append(
        node(rng.choice(("Exp", "Tanh", "Sqrt", "Erf", "Neg", "Reciprocal")), rng.choice(known[-3:]), out)
      )
    elif how == 5:
      nodes.append(
        node("LayerNormalization", f"{last} s", out)
        if k % 3 == 0
        else node("Add", f"{last} {rng.choice(known)}", out)
      )
    else:
      nodes += [
        node("Transpose", last, f"t{k}", perm=[1, 0]),
        node("Transpose", f"t{k}", f"u{k}", perm=[1, 0]),
        node("Add", f"u{k} {rng.choice(known)}", out),
      ]
    known.append(out)
  outputs = [
    helper.make_empty_tensor_value_info(n) for n in {known[-1], *rng.sample(known[1:], min(3, count))}
  ]
  return model(nodes, [info("x", rng.choice((F, H)), dims)], outputs, weights)


def shapes(rng):
  """Shapes that are made of shapes, many times."""
  count = rng.choice((5, 20, 60))
  nodes, last, weights = [], "x", [numpy_helper.from_array(np.array([k]), f"k{k}") for k in range(3)]
  weights += [
    numpy_helper.from_array(np.array([-1]), "minus"),
    numpy_helper.from_array(np.ones(1 << rng.choice((4, 9, 10)), np.int64), "vec"),
  ]
  for k in range(count):
    nodes += [node("Shape", last, f"s{k}")]
    what = rng.randrange(5)
    if what == 0:
      nodes += [
        node("Gather", f"s{k} k0", f"g{k}"),
        node("Concat", f"g{k} minus", f"c{k}", axis=0),
        node("Reshape", f"{last} c{k}", f"r{k}"),
      ]
    elif what == 1:
      nodes += [node("Add", f"s{k} k0", f"c{k}"), node("Expand", f"{last} c{k}", f"r{k}")]
    elif what == 2:
      nodes += [
        node("Slice", f"s{k} k0 k1", f"g{k}"),
        node("Concat", f"minus g{k}", f"c{k}", axis=0),
        node("Reshape", f"{last} c{k}", f"r{k}"),
      ]
    elif what == 3:
      nodes += [node("ConstantOfShape", f"s{k}", f"c{k}"), node("Add", f"{last} c{k}", f"r{k}")]
    else:
      nodes += [
        node("Mul", "vec vec", f"q{k}"),
        node("Concat", f"q{k} vec", f"h{k}", axis=0),
        node("Identity", last, f"r{k}"),
      ]
    last = f"r{k}"
  return model(
    nodes,
    [info("x", F, rng.choice(((4, 64), ("n", 64), ("n", "m"))))],
    [helper.make_empty_tensor_value_info(last)],
    weights,
  )


KINDS = (
  deep_graphs, deep_types, many, wire, functions, texts, sparse, external, attributes, attributes, attributes, arities, names, dense, dense, shapes,
)  # fmt: skip


def made(seed):
  """The file of a seed; the same bytes for the same seed."""
  rng = random.Random(f"odd {seed}")
  kind = KINDS[seed % len(KINDS)]
  found = kind(rng)
  if isinstance(found, Odd):
    found.kind = kind.__name__
    return found
  return Odd(kind.__name__, found if isinstance(found, bytes) else raw(found))
