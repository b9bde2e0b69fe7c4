"""Decoders as onnxruntime-genai's builder writes them: GroupQueryAttention whose lengths come from a mask."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

MS, HEADS, OWN, SIZE = "com.microsoft", 4, 2, 32
CPU = ["CPUExecutionProvider"]


def decoder(*, layers=1, head="size", new="new", past="past", named=True):
  """What is around the operator in a decoder of genai's builder: lengths of a mask."""
  info, half, wide = helper.make_tensor_value_info, TensorProto.FLOAT16, (HEADS + 2 * OWN) * SIZE
  rng = np.random.default_rng(0)
  weights = [numpy_helper.from_array(rng.standard_normal((64, SIZE // 2)).astype(np.float16), n)
             for n in ("cos", "sin")]  # fmt: skip
  weights.append(
    numpy_helper.from_array((rng.standard_normal((HEADS * SIZE, wide)) / 12).astype(np.float16), "w")
  )
  one = helper.make_tensor("", TensorProto.INT64, [1], [1])
  nodes = [
    helper.make_node("Constant", [], ["one"], value=one),
    helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
    helper.make_node("Sub", ["count", "one"], ["before"]),
    helper.make_node("Cast", ["before"], ["lengths"], to=TensorProto.INT32),
    helper.make_node("Shape", ["mask"], ["shape"]),
    helper.make_node("Gather", ["shape", "one"], ["longest"]),
    helper.make_node("Cast", ["longest"], ["total"], to=TensorProto.INT32),
  ]
  values, caches, x = [], [], "qkv"
  for k in range(layers):
    cache = [(f"past_{k}_{n}", f"present_{k}_{n}") for n in "kv"]
    nodes.append(helper.make_node(
      "GroupQueryAttention", [x, "", "", *(a for a, _ in cache), "lengths", "total", "cos", "sin"],
      [f"y{k}", *(b for _, b in cache)], name=f"it{k}", domain=MS, num_heads=HEADS, kv_num_heads=OWN,
      do_rotary=1))  # fmt: skip
    caches += cache
    if k + 1 < layers:
      x = f"x{k}"
      nodes.append(helper.make_node("MatMul", [f"y{k}", "w"], [x]))
      values.append(info(x, half, ("batch", new, wide)))
  graph = helper.make_graph(
    nodes, "decoder",
    [info("qkv", half, ("batch", new, wide)), info("mask", TensorProto.INT64, ("batch", "all")),
     *(info(a, half, ("batch", OWN, past, head)) for a, _ in caches)],
    [info(f"y{layers - 1}", half, ("batch", new, HEADS * SIZE)),
     *(info(b, half, ("batch", OWN, "all", head)) for _, b in caches)],
    weights, value_info=values if named else [],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 22), helper.make_opsetid(MS, 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10)
