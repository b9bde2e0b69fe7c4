"""Odd parts of models: functions, texts, sparse and external tensors."""

import struct

import numpy as np
import onnx
from odd_base import INT, ODD_BYTES, B, F, H, Odd, info, model, node, plain, raw
from onnx import AttributeProto, TensorProto, helper


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
