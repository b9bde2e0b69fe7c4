"""One step of grouped attention with a cache in one buffer, as a model, and runs that share the buffer."""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"


def cached_step(
  batch, own, shared, size, room, *, rotary=True, dtype=np.float16, fixed=True, norms=(), named="", new=1,
  apart=False, **more,
):  # fmt: skip
  """The model, of packed queries, keys and values; ``fixed``: present has the size of past.

  ``norms``: weights of queries and keys. ``named``: how the dimension of the cache is called, if by name.
  ``new``: how many tokens are. ``apart``: so are queries, keys and values.
  """
  rng = np.random.default_rng(0)
  heads, kind = own * shared, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  tables = [rng.standard_normal((room, size // 2)).astype(dtype) for _ in range(2)] if rotary else []
  node = helper.make_node(
    "GroupQueryAttention",
    [*(("q", "k", "v") if apart else ("qkv", "", "")), "past_k", "past_v", "lengths", "total",
     *(("cos", "sin") if rotary else ()),
     *([""] * (5 if rotary else 7) + ["norm_q", "norm_k"] if norms else [])],
    ["y", "present_k", "present_v"], name="it", domain=MS, num_heads=heads, kv_num_heads=own,
    do_rotary=int(rotary), **more,
  )  # fmt: skip
  parts = {"q": heads, "k": own, "v": own} if apart else {"qkv": heads + 2 * own}
  info, cache = helper.make_tensor_value_info, (batch, own, named or room, size)
  made = cache if fixed else (batch, own, "total", size)
  graph = helper.make_graph(
    [node], "step",
    [*(info(n, kind, (batch, new, of * size)) for n, of in parts.items()), info("past_k", kind, cache),
     info("past_v", kind, cache), info("lengths", TensorProto.INT32, (batch,)),
     info("total", TensorProto.INT32, ())],
    [info("y", kind, (batch, new, heads * size)), *(info(f"present_{n}", kind, made) for n in "kv")],
    [numpy_helper.from_array(x, n) for x, n in (
      *zip(tables, ("cos", "sin"), strict=False), *zip(norms, ("norm_q", "norm_k"), strict=False))],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def step_feeds(model, lengths, *, garbage=np.nan, seed=1):
  """Inputs of a model of ``cached_step``; behind ``lengths`` rows the caches hold ``garbage``."""
  rng = np.random.default_rng(seed)
  found = {}
  for value in model.graph.input:
    dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
    found[value.name] = rng.standard_normal(shape).astype(dtype)
  found["lengths"] = np.array(lengths, np.int32)
  found["total"] = np.array(max(lengths) + 1, np.int32)
  for n in ("past_k", "past_v"):
    for row, length in zip(found[n], lengths, strict=True):
      row[:, length:] = garbage
  return found


def run_step(session, feeds, *, shared):
  """y, and the keys and values of each sequence up to its new row; ``shared``: past is present."""
  binding, kept = session.io_binding(), {n: x.copy() for n, x in feeds.items()}
  values = {n: ort.OrtValue.ortvalue_from_numpy(x) for n, x in kept.items()}
  for name, value in values.items():
    binding.bind_ortvalue_input(name, value)
  binding.bind_output("y")
  for n in "kv":
    if shared:
      binding.bind_ortvalue_output(f"present_{n}", values[f"past_{n}"])
    else:
      binding.bind_output(f"present_{n}")
  session.run_with_iobinding(binding)
  y, *caches = (x.numpy().copy() for x in binding.get_outputs())
  rows = [[row[:, : n + 1] for row, n in zip(c, feeds["lengths"].tolist(), strict=True)] for c in caches]
  return y, rows, caches
