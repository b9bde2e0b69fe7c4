"""The clock of looks (``tune/graph_clock.py``) beside calls one by one, and with less to empty the L2.

    python3 bench/clocks.py OUT.json

The same arms by each: streaming reads, empty kernels, products of onnxruntime. ``us``: of each the median
and 1.48 times the median deviation of 15 samples, ``s`` what all took together. ``busy``: threads that
compute in Python meanwhile. ``child``: which arms' graphs can be part of another graph.
"""

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
SAMPLES, BUSY = 15, 2
#: Megabytes of a flush, and how often they are read.
FLUSHES = ((256, 2), (256, 1), (192, 1), (128, 2), (128, 1), (96, 1), (64, 2), (64, 3))
PRODUCTS = ((1, 4096, 4096), (1, 4096, 14336), (128, 768, 3072), (4096, 768, 3072))


def arms_of(gpu):
  """Replays by name."""
  from mirage_onnx.tune.rates import _loaded, streaming_limit

  made = {f"read {mb} MB": streaming_limit(gpu, mb << 20)[0] for mb in (1, 4, 12, 25, 50, 100, 256)}
  kernel = _loaded(gpu, 'extern "C" __global__ void nop() {}', "nop")
  for n in (1, 4):
    made[f"{n} empty"] = gpu.capture(lambda n=n: [gpu.launch(kernel, (132, 1, 1), 128, []) for _ in range(n)])
  return made | {f"onnxruntime {m}x{k}x{n}": product(gpu, m, k, n) for m, k, n in PRODUCTS}


def product(gpu, m, k, n):
  """onnxruntime's MatMul and Relu of fp16."""
  from onnx import TensorProto, helper

  from mirage_onnx.tune.ort_run import OrtRun

  shapes = {"a": [m, k], "b": [k, n], "y": [m, n]}
  a, b, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT16, s) for name, s in shapes.items())
  nodes = [helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
  graph = helper.make_graph(nodes, "product", [a, b], [y])
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
  rng = np.random.default_rng(0)
  feeds = {x: (rng.standard_normal(shapes[x], np.float32) * 0.1).astype(np.float16) for x in "ab"}
  return OrtRun(gpu, model.SerializeToString(), feeds).captured()


def with_flush(gpu, arms, mb, times):
  """Looks with another flush."""
  from mirage_onnx.tune import graph_clock

  def flush():
    for _ in range(times):
      grid, given = (
        (8 * gpu.target.multiprocessors, 1, 1),
        [gpu._flush_data, (mb << 20) // 16, gpu._flush_out],
      )
      gpu.launch(gpu._flush, grid, 256, given)

  replay = gpu.capture(flush)
  alone = graph_clock.flush_sample(gpu, replay)
  fresh = [graph_clock.Replay(a.graph, a.launch, a.work) for a in arms]

  def looked(samples):
    before, gpu.looked = gpu.looked, replay
    try:
      return graph_clock._of_graphs(gpu, alone, fresh, samples)
    finally:
      gpu.looked = before

  return looked


def timed(look, names, label, busy):
  """A row of the record."""
  from mirage_onnx.tune.realise import quick_turns

  ended = []

  def compute():
    while not ended:
      sum(i * i for i in range(2000))

  threads = [threading.Thread(target=compute, daemon=True) for _ in range(busy)]
  for t in threads:
    t.start()
  try:
    with quick_turns():
      look(2)
      start = time.monotonic()
      us = look(SAMPLES)
      seconds = time.monotonic() - start
  finally:
    ended.append(True)
    for t in threads:
      t.join()
  medians = np.median(us, axis=1)
  apart = 1.4826 * np.median(abs(us - medians[:, None]), axis=1)
  both = {n: [round(float(m), 2), round(float(d), 2)] for n, m, d in zip(names, medians, apart, strict=True)}
  return {"clock": label, "busy": busy, "s": round(seconds, 3), "us": both}


def main():
  import torch  # noqa: F401  (loads the libraries that onnxruntime needs)
  from protocol import facts

  from mirage_onnx.errors import MirageError
  from mirage_onnx.tune import graph_clock
  from mirage_onnx.tune.device import Gpu, present_target

  gpu = Gpu(present_target())
  found = {**facts(), "child": {}, "rows": []}
  with gpu.scope():
    made = arms_of(gpu)
    arms = list(made.values())
    for name, arm in made.items():
      try:
        graph_clock.sample_graph(gpu, gpu.looked.graph, arm.graph)
        found["child"][name] = "yes"
      except MirageError as error:
        found["child"][name] = str(error)
    one_by_one = lambda samples: gpu.time_us(arms, samples)  # noqa: E731
    looks = lambda samples: graph_clock._of_graphs(gpu, gpu.flushes, arms, samples)  # noqa: E731
    asked = [("one by one", one_by_one, 0), ("graphs", looks, 0)]
    asked += [(f"graphs, {mb} MB x {n}", with_flush(gpu, arms, mb, n), 0) for mb, n in FLUSHES]
    asked += [("one by one", one_by_one, 0), ("graphs", looks, 0)]
    asked += [("graphs", looks, BUSY), ("one by one", one_by_one, BUSY)]
    for label, look, busy in asked:
      found["rows"].append(timed(look, made, label, busy))
      Path(sys.argv[1]).write_text(json.dumps(found, indent=1))
      print(json.dumps(found["rows"][-1]), flush=True)


if __name__ == "__main__":
  main()
