"""A LLaMA decode layer as an expert of onnxruntime writes it: with its own fused operators.

The cache has room for the new position and is both read and written (bind each ``past`` and
``present`` to one buffer); queries, keys and values come out of one matrix.
"""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from speed_graph import EPSILON

CONTRIB = "com.microsoft"
#: Input -> the output that shares its buffer.
SHARED = {"past_k": "present_k", "past_v": "present_v"}


def fused_layer(case, heads, kv_heads):
  """The same layer, weights and inputs as ``case`` (of ``llama_layer``): model and feeds."""
  w, x = case.weights, case.feeds["x"]
  batch, _, before, depth = case.feeds["past_k"].shape
  length, hidden = before + 1, x.shape[-1]
  half = depth // 2
  row = {n: case.feeds[n].reshape(depth)[:half] for n in ("cos", "sin")}
  weights = {
    "norm1": w["attn.norm"], "norm2": w["mlp.norm"], "o": w["attn.o"],
    "qkv": np.concatenate([w[f"attn.{n}"] for n in "qkv"], 1),
    "gate": w["mlp.gate"], "up": w["mlp.up"], "down": w["mlp.down"],
    "total": np.array(length, np.int32),
    **{f"{n}_cache": np.tile(r, (length, 1)) for n, r in row.items()},
  }  # fmt: skip
  nodes = [
    _node("SimplifiedLayerNormalization", "x norm1", "n1", "", epsilon=EPSILON, axis=-1,
          stash_type=1),
    _node("MatMul", "n1 qkv", "p", ""),
    _node("GroupQueryAttention", "p _ _ past_k past_v last total cos_cache sin_cache",
          "a present_k present_v", num_heads=heads, kv_num_heads=kv_heads, do_rotary=1),
    _node("MatMul", "a o", "b", ""),
    _node("SkipSimplifiedLayerNormalization", "x b norm2", "n2 _ _ r", epsilon=EPSILON),
    _node("MatMul", "n2 gate", "g", ""),
    _node("QuickGelu", "g", "s", alpha=1.0),
    _node("MatMul", "n2 up", "u", ""),
    _node("Mul", "s u", "m", ""),
    _node("MatMul", "m down", "d", ""),
    _node("Add", "d r", "y", ""),
  ]  # fmt: skip
  cache, half_type = (batch, kv_heads, length, depth), TensorProto.FLOAT16
  info = helper.make_tensor_value_info
  graph = helper.make_graph(
    nodes, "fused",
    [info("x", half_type, x.shape), *(info(n, half_type, cache) for n in SHARED),
     info("last", TensorProto.INT32, (batch,))],
    [info("y", half_type, (batch, 1, hidden)),
     *(info(n, half_type, cache) for n in SHARED.values())],
    [numpy_helper.from_array(v, n) for n, v in weights.items()],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)]
  room = ((0, 0), (0, 0), (0, 1), (0, 0))
  feeds = {"x": x, **{n: np.pad(case.feeds[n], room) for n in SHARED}}
  feeds["last"] = np.full(batch, length - 1, np.int32)
  return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def fused_session(model, feeds, providers, device, make=None):
  """A run with IOBinding, and one that returns y and the new keys and values.

  ``make`` makes the session (default: onnxruntime's own).
  """
  import onnxruntime as ort

  options = ort.SessionOptions()
  options.log_severity_level = 3
  session = (make or ort.InferenceSession)(model, options, providers=providers)
  if session.get_providers()[0] != (providers[0] if device == "cpu" else providers[0][0]):
    raise RuntimeError("onnxruntime fell back to the CPU")
  binding = session.io_binding()
  at = {n: ort.OrtValue.ortvalue_from_numpy(x, device, 0) for n, x in feeds.items()}
  for name, value in at.items():
    binding.bind_ortvalue_input(name, value)
  y = ort.OrtValue.ortvalue_from_numpy(np.zeros_like(feeds["x"]), device, 0)
  binding.bind_ortvalue_output("y", y)
  for past, present in SHARED.items():
    binding.bind_ortvalue_output(present, at[past])
  run_options = ort.RunOptions()
  run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

  def call():
    session.run_with_iobinding(binding, run_options)

  def result():
    y.update_inplace(np.full(y.shape(), np.nan, np.float16))
    binding.synchronize_inputs()
    call()
    binding.synchronize_outputs()
    return [y.numpy(), *(at[n].numpy()[:, :, -1:] for n in SHARED)]

  for _ in range(4):  # allocations, and with enable_cuda_graph its capture
    call()
  return call, result


def _node(op, inputs, outputs, domain=CONTRIB, **more):
  read, made = ([n if n != "_" else "" for n in text.split()] for text in (inputs, outputs))
  return helper.make_node(op, read, made, domain=domain, **more)
