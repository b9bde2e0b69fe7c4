"""What the host takes for an operator: ours against ONNX Runtime's own, a chain of small products.

    python3 bench/host_time.py OUT.json [--nodes 16] [--runs 600]

``MatMulNBits`` of 512 by 512, one row, each a node of ours in the other session: so small that the GPU waits
for the host. CPU time of the thread that starts a run (launches included; the GPU is waited for in between)
and the clock's, interleaved, per node. On an H200: the kernels are what the cost model chooses.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from protocol import facts, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import mirage_onnx
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

MS, SIZE, BLOCK = "com.microsoft", 512, 128


def chain(nodes, seed=0):
  """A model of so many products, one behind the other."""
  rng = np.random.default_rng(seed)
  made, weights, x = [], [], "x"
  for i in range(nodes):
    b = rng.integers(0, 256, (SIZE, SIZE // BLOCK, BLOCK // 2), np.uint8)
    scale = (rng.uniform(0.5, 1.5, (SIZE, SIZE // BLOCK)) * 0.2 / SIZE**0.5).astype(np.float16)
    weights += [numpy_helper.from_array(b, f"b{i}"), numpy_helper.from_array(scale, f"s{i}")]
    how = {"domain": MS, "K": SIZE, "N": SIZE, "bits": 4, "block_size": BLOCK}
    made.append(helper.make_node("MatMulNBits", [x, f"b{i}", f"s{i}"], [f"y{i}"], name=f"y{i}", **how))
    x = f"y{i}"
  given, result = (helper.make_tensor_value_info(n, TensorProto.FLOAT16, (1, SIZE)) for n in ("x", x))
  graph = helper.make_graph(made, "chain", [given], [result], weights)
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
  return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def runner(model, stream, make=None):
  """The session of a model and a run of it that does not wait for the GPU."""
  import onnxruntime as ort

  options = ort.SessionOptions()
  options.log_severity_level, options.intra_op_num_threads = 3, 1
  provider = ("CUDAExecutionProvider", {"user_compute_stream": str(stream)})
  session = (make or ort.InferenceSession)(model.SerializeToString(), options, providers=[provider])
  binding = session.io_binding()
  value = ort.OrtValue.ortvalue_from_numpy
  binding.bind_ortvalue_input("x", value(np.ones((1, SIZE), np.float16), "cuda", 0))
  y = value(np.zeros((1, SIZE), np.float16), "cuda", 0)
  binding.bind_ortvalue_output(session.get_outputs()[0].name, y)
  own = ort.RunOptions()
  own.add_run_config_entry("disable_synchronize_execution_providers", "1")
  return session, y, lambda: session.run_with_iobinding(binding, own)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("out", type=Path)
  parser.add_argument("--nodes", type=int, default=16)
  parser.add_argument("--runs", type=int, default=600)
  args = parser.parse_args()
  target = present_target()
  gpu, model = gpu_of(target), chain(args.nodes)
  own = mirage_onnx.optimize(model, target=target.name, margin=-20.0, budget_s=60).model
  if any(not n.op_type.startswith("MuGraph") for n in own.graph.node):
    raise RuntimeError(f"not every node is ours: {[n.op_type for n in own.graph.node]}")
  with gpu.scope():
    arms = {"ort": runner(model, gpu.stream_address)}
    arms["ours"] = runner(own, gpu.stream_address, mirage_onnx.InferenceSession)
    us = {name: ([], []) for name in arms}
    for n in range(args.runs + 20):
      for name, (_, _, run) in arms.items():
        gpu.wait()
        began, own_began = time.perf_counter_ns(), time.thread_time_ns()
        run()
        if n >= 20:
          us[name][0].append(time.thread_time_ns() - own_began)
          us[name][1].append(time.perf_counter_ns() - began)
    gpu.wait()
    if not all(mirage_onnx.launches(arms["ours"][0]).values()):
      raise RuntimeError("a kernel of ours did not run")
    results = [y.numpy().astype(np.float64) for _, y, _ in arms.values()]
  row = {}
  for name, times in us.items():
    own_us, clock_us = (round(float(np.median(t)) / 1e3 / args.nodes, 2) for t in times)
    row[name] = {"cpu_us": own_us, "clock_us": clock_us}
  row["differ"] = float(np.abs(results[0] - results[1]).max() / np.abs(results[0]).max())
  print(json.dumps(row), flush=True)
  write_text(args.out, json.dumps({"facts": facts(), "nodes": args.nodes, "a_node": row}, indent=1) + "\n")


if __name__ == "__main__":
  main()
