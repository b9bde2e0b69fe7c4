"""One step of grouped attention with a cache in one buffer, ours against ONNX Runtime's own operator.

    python3 bench/decode_attention.py [--out DIR] [--seconds 150] [--batch 1 8] [--room 4096] [--lengths ...]

The operator as onnxruntime-genai's builder writes it (packed queries, keys and values; rotary inside; fp16,
32 and 8 heads of 128), the cache bound as input and output. Kernels are chosen once for each batch and
room, by the cost model and by measuring; then all sessions run at every length, each as a CUDA graph of
one stream, interleaved. Right against float64: y and the new rows. Cold: ``Gpu.time_us``;
warm: replays one after the other; single kernels by CUPTI. Writes DIR/decode_attention.json.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from attention_cases import llama_layer
from genai_runs import kernel_times
from onnx import TensorProto, helper, numpy_helper
from ort_fused import fused_layer, fused_session
from packed import warm_us
from protocol import facts, relative_error, streaming_limit, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import mirage_onnx
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

MS, HEADS, OWN, SIZE, SAMPLES = "com.microsoft", 32, 8, 128, 21


def model_of(batch, room, seed=0):
  """The model, and the cosines and sines in it."""
  info, half = helper.make_tensor_value_info, TensorProto.FLOAT16
  angles = np.arange(room)[:, None] / 10000.0 ** (np.arange(SIZE // 2) / (SIZE // 2))
  tables = [f(angles).astype(np.float16) for f in (np.cos, np.sin)]
  node = helper.make_node(
    "GroupQueryAttention", ["qkv", "", "", "past_k", "past_v", "lengths", "total", "cos", "sin"],
    ["y", "present_k", "present_v"], domain=MS, num_heads=HEADS, kv_num_heads=OWN, do_rotary=1, name="it",
  )  # fmt: skip
  cache = (batch, OWN, room, SIZE)
  graph = helper.make_graph(
    [node], "step",
    [info("qkv", half, (batch, 1, (HEADS + 2 * OWN) * SIZE)), info("past_k", half, cache),
     info("past_v", half, cache), info("lengths", TensorProto.INT32, (batch,)),
     info("total", TensorProto.INT32, ())],
    [info("y", half, (batch, 1, HEADS * SIZE)), *(info(f"present_{n}", half, cache) for n in "kv")],
    [numpy_helper.from_array(x, n) for x, n in zip(tables, ("cos", "sin"), strict=True)],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
  return helper.make_model(graph, opset_imports=opsets, ir_version=10), tables


def drawn(batch, room, length):
  rng = np.random.default_rng(length)
  cache = (batch, OWN, room, SIZE)
  return {
    "qkv": rng.standard_normal((batch, 1, (HEADS + 2 * OWN) * SIZE)).astype(np.float16),
    **{n: rng.standard_normal(cache, np.float32).astype(np.float16) for n in ("past_k", "past_v")},
    "lengths": np.full(batch, length - 1, np.int32), "total": np.array(length, np.int32),
  }  # fmt: skip


def exact(feeds, tables, length):
  """y and the new rows of keys and values, in float64."""
  x = feeds["qkv"][:, 0].astype(np.float64)
  parts = np.split(x, np.cumsum([HEADS, OWN]) * SIZE, axis=1)
  q, k, v = (p.reshape(len(x), -1, SIZE) for p in parts)
  cos, sin = (t[length - 1].astype(np.float64) for t in tables)
  q, k = (np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
          for a, b in (np.split(y, 2, -1) for y in (q, k)))  # fmt: skip
  keys, values = (
    np.concatenate([feeds[n][:, :, : length - 1].astype(np.float64), own[:, :, None]], 2)
    for n, own in (("past_k", k), ("past_v", v))
  )
  scores = np.einsum("bgsd,bgtd->bgst", q.reshape(len(x), OWN, -1, SIZE), keys) / np.sqrt(SIZE)
  p = np.exp(scores - scores.max(-1, keepdims=True))
  y = np.einsum("bgst,bgtd->bgsd", p / p.sum(-1, keepdims=True), values)
  return y.reshape(len(x), -1), k, v


class Shared:
  """A session whose cache is one buffer, on the stream of the GPU; ``set`` gives it other inputs."""

  def __init__(self, gpu, model, feeds, make=None):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    provider = ("CUDAExecutionProvider", {"user_compute_stream": str(gpu.stream_address)})
    self.session = (make or ort.InferenceSession)(model, options, providers=[provider])
    if self.session.get_providers()[0] != "CUDAExecutionProvider":
      raise RuntimeError("onnxruntime fell back to the CPU")
    self.binding = self.session.io_binding()
    named = {i.name for i in self.session.get_inputs()}
    value = ort.OrtValue.ortvalue_from_numpy
    self.at = {n: value(x, *(() if n == "total" else ("cuda", 0))) for n, x in feeds.items() if n in named}
    for name, x in self.at.items():
      self.binding.bind_ortvalue_input(name, x)
    batch = len(feeds["qkv"])
    self.y = value(np.zeros((batch, 1, HEADS * SIZE), np.float16), "cuda", 0)
    self.binding.bind_ortvalue_output("y", self.y)
    for n in "kv":
      self.binding.bind_ortvalue_output(f"present_{n}", self.at[f"past_{n}"])
    self.options = ort.RunOptions()
    self.options.add_run_config_entry("disable_synchronize_execution_providers", "1")

  def __call__(self):
    self.session.run_with_iobinding(self.binding, self.options)

  def set(self, feeds):
    for name, x in self.at.items():
      x.update_inplace(feeds[name])

  def results(self, length):
    rows = (self.at[f"past_{n}"].numpy()[:, :, length - 1] for n in "kv")
    return self.y.numpy()[:, 0], *rows


def measured(gpu, batch, room, lengths, seconds, predicted=False):
  """Rows of the record; ``predicted``: no kernels are chosen by measuring."""
  began = time.monotonic()
  model, tables = model_of(batch, room)
  name = gpu.target.name
  chosen, made = {}, {}
  ways = {"predicted": {"target": name, "margin": -20.0}}
  ways |= {} if predicted else {"measured": {"target": "local"}}
  for n, (how, options) in enumerate(ways.items()):
    budget_s = (began + seconds - time.monotonic()) / (len(ways) - n)
    found = mirage_onnx.optimize(model, budget_s=budget_s, **options)
    rows = found.report["regions"]
    keys = ("status", "reason", "reason_text", "predicted_us", "measured_us", "baseline_us")
    chosen[how] = [{k: r.get(k) for k in keys} | {"ugraph": (r["ugraph"] or "")[:400]} for r in rows]
    left = [n for n in found.model.graph.node if n.op_type == "GroupQueryAttention"]
    print(batch, how, f"{time.monotonic() - began:.1f} s", json.dumps(chosen[how], default=str), flush=True)
    if not left:
      made[how] = found.model
  rows = []
  with gpu.scope():
    for length in lengths:
      feeds = drawn(batch, room, length)
      want = exact(feeds, tables, length)
      row = {"batch": batch, "room": room, "length": length, "error": {}}
      arms = {}
      sessions = [(how, own, mirage_onnx.InferenceSession) for how, own in made.items()]
      for name, own, make in (*sessions, ("ort", model, None)):
        run = Shared(gpu, own.SerializeToString(), feeds, make)
        run.set(feeds)
        run()
        gpu.wait()
        row["error"][name] = [
          float(f"{relative_error(a, b):.3g}") for a, b in zip(run.results(length), want, strict=True)
        ]
        if make and not all(mirage_onnx.launches(run.session).values()):
          raise RuntimeError("a kernel of ours did not run")
        for _ in range(3):
          run()
        gpu.wait()
        arms[name] = (gpu.capture(run), run)
      arms["read"] = (streaming_limit(gpu, 2 * batch * OWN * length * SIZE * 2)[0], None)
      row["kernels"] = {n: kernel_times(run, gpu.wait)[:8] for n, (_, run) in arms.items() if run}
      calls = [a for a, _ in arms.values()]
      row["cold_us"] = dict(
        zip(arms, np.median(gpu.time_us(calls, SAMPLES), axis=1).round(2).tolist(), strict=True)
      )
      row["warm_us"] = dict(zip(arms, (round(x, 2) for x in warm_us(gpu, calls, SAMPLES)), strict=True))
      rows.append(row)
      print(json.dumps(row), flush=True)
      del arms, calls
  return rows, chosen


def layer(gpu, length, seconds):
  """A whole LLaMA-3-8B layer of ONNX Runtime's fused operators, and with our kernels in their place."""
  case = llama_layer(HEADS, OWN, SIZE, 14336, length)
  model, feeds = fused_layer(case, HEADS, OWN)
  began = time.monotonic()
  found = mirage_onnx.optimize(model, target="local", budget_s=seconds)
  ours = [n.op_type for n in found.model.graph.node]
  keys = ("ops", "status", "reason", "reason_text", "measured_us", "baseline_us")
  regions = [{k: r.get(k) for k in keys} for r in found.report["regions"]]
  row = {
    "length": length,
    "optimize_s": round(time.monotonic() - began, 1),
    "nodes": ours,
    "regions": regions,
  }
  print(json.dumps(row, default=str), flush=True)
  provider = ("CUDAExecutionProvider", {"user_compute_stream": str(gpu.stream_address)})
  want, row["error"], arms = [np.squeeze(x) for x in case.exact().values()], {}, {}
  with gpu.scope():
    for name, own, make in (("ours", found.model, mirage_onnx.InferenceSession), ("ort", model, None)):
      call, result = fused_session(own.SerializeToString(), feeds, [provider], "cuda", make)
      got = [np.squeeze(x) for x in result()]
      row["error"][name] = [float(f"{relative_error(a, b):.3g}") for a, b in zip(got, want, strict=True)]
      arms[name] = gpu.capture(call)
    row["cold_us"] = dict(
      zip(arms, np.median(gpu.time_us(list(arms.values()), SAMPLES), axis=1).round(2), strict=True)
    )
    row["warm_us"] = dict(
      zip(arms, (round(x, 2) for x in warm_us(gpu, list(arms.values()), SAMPLES)), strict=True)
    )
  print(json.dumps({k: row[k] for k in ("error", "cold_us", "warm_us")}, default=float), flush=True)
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
  parser.add_argument("--seconds", type=float, default=150.0)
  parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
  parser.add_argument("--room", type=int, default=4096)
  parser.add_argument("--lengths", type=int, nargs="*", default=[128, 1000, 4096])
  parser.add_argument("--predicted", action="store_true", help="choose by the cost model alone (an H200's)")
  parser.add_argument("--layer", type=int, default=0, help="the length of the cache of a whole layer")
  args = parser.parse_args()
  end = time.monotonic() + args.seconds
  gpu, rows, chosen = gpu_of(present_target()), [], {}
  record = {"facts": facts(), "rows": rows, "chosen": chosen}
  if args.layer:
    try:
      record["layer"] = layer(gpu, args.layer, args.seconds * 0.6)
    except Exception as error:
      record.setdefault("failed", []).append(f"layer: {type(error).__name__}: {str(error)[:500]}")
      print(record["failed"][-1], flush=True)
    write_text(args.out / "decode_attention.json", json.dumps(record, indent=1, default=str) + "\n")
  for k, batch in enumerate(args.batch):
    share = (end - time.monotonic()) / (len(args.batch) - k)
    try:
      own, chosen[str(batch)] = measured(gpu, batch, args.room, args.lengths, share * 0.6, args.predicted)
      rows += own
    except Exception as error:
      record.setdefault("failed", []).append(f"{batch}: {type(error).__name__}: {str(error)[:500]}")
      print(record["failed"][-1], flush=True)
    write_text(args.out / "decode_attention.json", json.dumps(record, indent=1, default=str) + "\n")


if __name__ == "__main__":
  main()
