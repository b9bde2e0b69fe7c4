"""Up to how many rows kernels are ahead, kind by kind: chains of layers, whole sessions on this GPU.

    python3 bench/kinds.py [--type fp16] [--kinds NAME ...] [--rows 64 256 ...] [--total 540] [--out DIR]

As ``bash bench/h200.sh kinds``. Every chain is optimized with default flags for the H200, but for the
limits of ``targets/tables/h200_known.json``, which this is to find: what a prediction chooses where nothing
limits it. Weights of a chain are more than L2 holds. DIR/kinds.jsonl gets a line per chain; times and
``ratio`` are as ``whole.py`` says. No custom nodes: the prediction itself leaves it. A kind at some rows
is ahead if the interval of its ratio lies above 1.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
#: The weights of a chain, in bytes, and its links at least and at most.
BYTES, LEAST, MOST = 100 << 20, 2, 10
TYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32}


class Net:
  """Writes a graph in one element type; any other attribute is an operator of that name."""

  def __init__(self, dtype):
    self.nodes, self.weights, self.inputs, self.rng = [], [], [], np.random.default_rng(0)
    self.dtype, self.kind = dtype, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

  def __getattr__(self, op):
    def add(*inputs, **attributes):
      name = f"v{len(self.nodes)}"
      self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{len(self.nodes)}", **attributes))
      return name

    return add

  def constant(self, value):
    self.weights.append(numpy_helper.from_array(value, f"w{len(self.weights)}"))
    return self.weights[-1].name

  def weight(self, *shape):
    size = int(np.prod(shape))
    x = self.rng.standard_normal(min(size, 1 << 20), np.float32) * shape[0] ** -0.5
    x = x if len(shape) > 1 else x * 0.1 + 1
    return self.constant(np.resize(x.astype(self.dtype), size).reshape(shape))

  def input(self, *shape):
    """numpy has no bfloat16: such a chain is one of fp32 inputs and outputs, cast at its ends."""
    kind = TensorProto.FLOAT if self.kind == TensorProto.BFLOAT16 else self.kind
    self.inputs.append(helper.make_tensor_value_info(f"x{len(self.inputs)}", kind, shape))
    name = self.inputs[-1].name
    return name if kind == self.kind else self.Cast(name, to=self.kind)

  def model(self, output, shape):
    kind = self.inputs[0].type.tensor_type.elem_type
    output = output if kind == self.kind else self.Cast(output, to=kind)
    value = helper.make_tensor_value_info(output, kind, shape)
    graph = helper.make_graph(self.nodes, "chain", self.inputs, [value], self.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

  def layer_norm(self, x, width):
    return self.LayerNormalization(x, self.weight(width), self.weight(width), axis=-1)

  def rms_norm(self, x, width):
    wide = self.Cast(x, to=TensorProto.FLOAT)
    mean = self.ReduceMean(self.Pow(wide, self.constant(np.float32(2))), self.constant(np.array([-1])))
    root = self.Reciprocal(self.Sqrt(self.Add(mean, self.constant(np.float32(1e-5)))))
    return self.Mul(self.weight(width), self.Cast(self.Mul(wide, root), to=self.kind))

  def linear(self, x, k, n):
    return self.Add(self.MatMul(x, self.weight(k, n)), self.weight(n))


def norm_linear(net, x, rows, width):
  return net.MatMul(net.rms_norm(x, width), net.weight(width, width))


def linear_residual(net, x, rows, width):
  return net.layer_norm(net.Add(x, net.linear(x, width, width)), width)


def mlp(net, x, rows, width):
  inner = net.Gelu(net.linear(x, width, 4 * width))
  return net.layer_norm(net.Add(net.linear(inner, 4 * width, width), x), width)


def gated_mlp(net, x, rows, width):
  normed = net.rms_norm(x, width)
  gate, up = (net.MatMul(normed, net.weight(width, 3 * width)) for _ in range(2))
  inner = net.Mul(net.Mul(gate, net.Sigmoid(gate)), up)
  return net.Add(x, net.MatMul(inner, net.weight(3 * width, width)))


def residual_norm(net, x, rows, width):
  return net.layer_norm(net.Add(x, net.Tanh(x)), width)


def rms(net, x, rows, width):
  return net.rms_norm(net.Add(x, net.Tanh(x)), width)


def activation(net, x, rows, width):
  return net.Mul(net.Mul(x, net.Sigmoid(x)), net.Add(x, net.weight(width)))


def softmax(net, x, rows, width):
  return net.Add(
    net.Softmax(net.Add(net.Mul(x, net.constant(np.array(0.125, net.dtype))), net.weight(width)), axis=-1), x
  )


#: Kind -> its layer, the widths and rows of its chains, and bytes of weights per element of width squared.
LINEAR, OTHER = (1, 16, 32, 64, 128, 256), (16, 128, 512, 4096)
KINDS = {
  "norm_linear": (norm_linear, (768, 2048, 4096), LINEAR, 2),
  "linear_residual": (linear_residual, (768, 2048), LINEAR, 2),
  "mlp": (mlp, (768, 2048), LINEAR, 16),
  "gated_mlp": (gated_mlp, (1024, 2048), LINEAR, 18),
  "residual_norm": (residual_norm, (768, 4096), OTHER, 0),
  "rms": (rms, (768, 4096), OTHER, 0),
  "activation": (activation, (768, 4096), OTHER, 0),
  "softmax": (softmax, (128, 512, 2048), OTHER, 0),
}


def cases_of(kinds, only_rows):
  found = []
  for kind in kinds or KINDS:
    _, widths, rows, _ = KINDS[kind]
    found += [(kind, r, w) for r in rows if not only_rows or r in only_rows for w in widths]
  return found


def chain(kind, rows, width, dtype):
  layer, _, _, per = KINDS[kind]
  links = int(np.clip(BYTES / (per * width * width), LEAST, MOST)) if per else MOST
  net = Net(dtype)
  x = net.input(rows, width)
  for _ in range(links):
    x = layer(net, x, rows, width)
  return net.model(x, (rows, width)), links


def optimize(folder, case, dtype):
  import mirage_onnx
  from mirage_onnx import pipeline
  from mirage_onnx.tune.known_sizes import Unpredicted

  pipeline.unpredicted_at = lambda *_: Unpredicted()
  model, links = chain(*case, dtype)
  source, path = folder / "model.onnx", folder / "h200.onnx"
  onnx.save(model, source)
  report = mirage_onnx.optimize(source, path, target="h200", workers=1, budget_s=120).report
  keep = ("count", "ops", "baseline_us", "predicted_us")
  replaced = [{k: r[k] for k in keep} for r in report["regions"] if r["status"] == "replaced"]
  nodes = onnx.load(path, load_external_data=False).graph.node
  custom = sum(n.domain.startswith("ai.mirage") for n in nodes)
  return {"links": links, "custom_nodes": custom, "other_nodes": len(nodes) - custom, "replaced": replaced}


def measure(folder, rounds, cpu):
  from whole_arms import Arms, ratio_of, worst_difference

  arms = Arms(folder / "model.onnx", folder / "h200.onnx", cpu=cpu)
  times, host = arms.times(rounds)
  outputs = arms.outputs()
  ratio, interval = ratio_of(times)
  us, host_us = ([round(float(x), 2) for x in np.median(t, axis=1)] for t in (times, host))
  return {
    "us": us, "host_us": host_us, "ratio": ratio, "ratio_95": interval, "graph": int(arms.graph),
    "error": worst_difference(outputs[1], outputs[0]), "launched": all(arms.launches().values()),
  }  # fmt: skip


def name_of(case):
  return "{}_{}x{}".format(*case)


def child(o):
  """A stage for the cases on the command line: a RESULT line each."""
  if not o.cpu:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)
  for text in o.cases:
    case, folder = json.loads(text), o.work / name_of(json.loads(text))
    folder.mkdir(parents=True, exist_ok=True)
    try:
      found = (
        optimize(folder, case, TYPES[o.type]) if o.stage == "optimize" else measure(folder, o.rounds, o.cpu)
      )
    except Exception as error:
      found = {"failed": f"{o.stage}: {type(error).__name__}: {str(error)[:300]}"}
    print("RESULT", json.dumps(found), flush=True)


def run_child(o, stage, cases, end):
  """The results of a stage for ``cases``; of one that ends the process the rest goes on without it."""
  found = []
  while len(found) < len(cases) and (left := end - time.monotonic()) > 2:
    rest = [json.dumps(c) for c in cases[len(found) :]]
    command = [sys.executable, __file__, "--stage", stage, "--cases", *rest, "--work", str(o.work)]
    command += ["--type", o.type, "--rounds", str(o.rounds), *(["--cpu"] if o.cpu else [])]
    try:
      done = subprocess.run(command, capture_output=True, text=True, timeout=left)
      out, why = done.stdout, f"{stage}: exit {done.returncode}: {done.stderr.strip()[-300:]}"
    except subprocess.TimeoutExpired as late:
      out, why = (late.stdout or b"").decode(), f"{stage}: out of time"
    found += [json.loads(line[7:]) for line in out.splitlines() if line.startswith("RESULT ")]
    if len(found) < len(cases):
      found.append({"failed": why})
  return found + [{"failed": f"{stage}: no time left"}] * (len(cases) - len(found))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--type", choices=TYPES, default="fp16", help="element type of the chains")
  add("--kinds", nargs="+", choices=KINDS, default=[])
  add("--rows", nargs="+", type=int, default=[])
  add("--total", type=float, default=540.0, help="seconds of this call")
  add("--rounds", type=int, default=41)
  add("--jobs", type=int, default=os.cpu_count() or 1)
  add("--out", type=Path, default=Path("out"))
  add("--work", type=Path, default=Path("/tmp/kinds"))
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--stage", help=argparse.SUPPRESS)
  add("--cases", nargs="+", default=[], help=argparse.SUPPRESS)
  o = parser.parse_args()
  if o.stage:
    child(o)
    return 0
  from whole import facts_of

  end, facts, failed = time.monotonic() + o.total, facts_of(o), 0
  o.out.mkdir(parents=True, exist_ok=True)
  cases = cases_of(o.kinds, o.rows)
  with ThreadPoolExecutor(o.jobs) as pool:  # half of the time at most, so that some are measured
    half = time.monotonic() + o.total / 2
    made = list(pool.map(lambda c: run_child(o, "optimize", [c], half)[0], cases))
  todo = [i for i, row in enumerate(made) if row.get("custom_nodes")]
  for i, row in zip(todo, run_child(o, "measure", [cases[i] for i in todo], end), strict=True):
    made[i] |= row
  with (o.out / "kinds.jsonl").open("a") as file:
    for (kind, rows, width), row in zip(cases, made, strict=True):
      failed += "failed" in row
      said = row.get("failed") or (
        f"{row['ratio']} {row['ratio_95']} {row['us']}" if "ratio" in row else "left"
      )
      print(f"{kind:16} {rows:5} x {width:5} {row.get('custom_nodes', 0):3} nodes: {said}", flush=True)
      file.write(json.dumps({"kind": kind, "type": o.type, "rows": rows, "width": width, **row}) + "\n")
    file.write(json.dumps({"facts": facts}) + "\n")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
