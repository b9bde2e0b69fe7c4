"""Measure ONNX Runtime's own kernels on this GPU: the table that predicts what a region costs.

    python bench/baseline_table.py OUT.json [SECONDS [OP ...]]

Each operator is timed as the slope between a long and a short chain of itself, in the CUDA
execution provider with a CUDA graph, so launch and session overheads cancel and what remains is
the operator's share of a replayed graph. ORT's graph optimizer is off: single kernels are measured.
Contractions with a weight of 0.2 MB or more use a different one in every link and a replay begins
with a sweep of L2, so that their weights come from memory. Random data throughout, results must
stay finite, and the table is written after every operator, so a failure costs only what it is
about. Named operators are measured again, or added: the rest of OUT.json stays. Needs torch, whose
CUDA libraries ONNX Runtime loads.
"""

import datetime
import json
import os
import subprocess
import sys
import time
from functools import partial

import torch  # isort: skip  (before onnxruntime, which needs the CUDA libraries that it loads)
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
NUMPY = {F16: np.float16, F32: np.float32}

ROWS = ((8, 64), (8, 1024), (8, 4096), (64, 4096), (512, 4096), (4096, 4096))
OPS = (
  "Add", "AddRow", "Sub", "Mul", "Div", "Cast", "Pow", "Sqrt", "Reciprocal", "Sigmoid", "Exp",
  "Erf", "Tanh", "Relu", "Gelu", "ReduceMean", "LayerNormalization", "Softmax", "Neg", "Concat",
)  # fmt: skip
BINARY = {"Add": 0.01, "Sub": 0.01, "Mul": 1.0, "Div": 1.0}  # what the second operand holds
IN_F32 = ("Pow", "ReduceMean", "Sqrt", "Reciprocal")  # as in the norms of a model in half precision
# Every link reads the graph's input: a chain would not stay finite, or (Cast, in both directions)
# ORT would shorten it even with its optimizer off.
# Concat puts 7 parts of 8 in front of one, as a cache: parts of unequal sizes take longer.
PARALLEL = ("Cast", "Exp", "ReduceMean", "Concat")
LINKS = (40, 120)

WEIGHTS = (
  (64, 64), (64, 128), (256, 256), (768, 768), (768, 3072), (1024, 1024), (4096, 4096),
  (4096, 14336),
)  # fmt: skip
BATCHES = (1, 2, 8, 16, 64, 256)
COLD_ELEMENTS = 100_000  # weights of more elements come from memory
SWEEP_ELEMENTS = 1 << 26  # 128 MiB read and as much written: L2 holds nothing else afterwards


class Replay:
  """A session of a model with its inputs on the GPU and its CUDA graph captured."""

  def __init__(self, model, feeds):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    self.session = ort.InferenceSession(
      model.SerializeToString(), options,
      providers=[("CUDAExecutionProvider", {"enable_cuda_graph": "1"})],
    )  # fmt: skip
    assert self.session.get_providers()[0] == "CUDAExecutionProvider"
    self.binding = self.session.io_binding()
    for name, value in feeds.items():
      self.binding.bind_ortvalue_input(name, value)
    for out in self.session.get_outputs():
      dtype = np.float16 if out.type == "tensor(float16)" else np.float32
      value = ort.OrtValue.ortvalue_from_shape_and_type(list(out.shape), dtype, "cuda", 0)
      self.binding.bind_ortvalue_output(out.name, value)

  def once_us(self):
    start = time.perf_counter()
    self.session.run_with_iobinding(self.binding)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6

  def check(self):
    for value in self.binding.get_outputs():
      if not np.isfinite(value.numpy()).all():
        raise ValueError("the result is not finite")


def slope_us(make, feeds, short, long, repeats=41):
  """Time of one more link, and what a replay costs beside its links (both in us)."""
  a, b = Replay(make(short), feeds), Replay(make(long), feeds)
  started = time.perf_counter()
  for i in range(200):  # the first three run, capture and replay; the rest raise the clocks
    a.once_us()
    b.once_us()
    if i >= 5 and time.perf_counter() - started > 0.04:
      break
  times = np.array([(a.once_us(), b.once_us()) for _ in range(repeats)])  # drift hits both
  a.check()
  b.check()
  at_short, at_long = np.median(times, axis=0)
  slope = float(at_long - at_short) / (long - short)
  return slope, float(at_short) - short * slope


def make_model(nodes, inputs, output, weights):
  graph = helper.make_graph(
    nodes, "chain", [helper.make_tensor_value_info(*i) for i in inputs],
    [helper.make_tensor_value_info(*output)], weights,
  )  # fmt: skip
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def dtype_of(op):
  return F32 if op in IN_F32 else F16


def parts(op, shape):
  """The inputs of the first operand's element type, and their shapes."""
  if op != "Concat":
    return [("x", shape)]
  return [("x", (shape[0] * 7 // 8, shape[1])), ("y", (shape[0] // 8, shape[1]))]


def chain(length, *, op, shape):
  """x -> op -> op -> ... ; a second operand is the same in every link."""
  dtype = dtype_of(op)
  rng = np.random.default_rng(0)
  weights = {
    "axes": np.array([-1], np.int64),
    "p0": np.array(2.0, NUMPY[dtype]),  # a square and its root, or values would run away
    "p1": np.array(0.5, NUMPY[dtype]),
    "row": rng.standard_normal(shape[-1]).astype(NUMPY[dtype]),
    "scale": rng.standard_normal(shape[-1]).astype(NUMPY[dtype]),
  }
  nodes, value, used = [], "x", set()
  for i in range(length):
    kind, source, attributes = op, "x" if op in PARALLEL else value, {}
    more = []
    if op == "Cast":
      source, attributes = ("y", {"to": F16}) if i % 2 else ("x", {"to": F32})
    elif op in BINARY:
      more = ["y"]
    elif op == "Concat":
      more, attributes = ["y"], {"axis": 0}
    elif op == "AddRow":
      kind, more = "Add", ["row"]
    elif op == "Pow":
      more = [f"p{i % 2}"]
    elif op == "ReduceMean":
      more = ["axes"]
    elif op == "LayerNormalization":
      more = ["scale", "row"]
    value = f"v{i}"
    nodes.append(helper.make_node(kind, [source, *more], [value], **attributes))
    used.update(more)
  inputs = [(name, dtype, own) for name, own in parts(op, shape)]
  if op in BINARY or op == "Cast":
    inputs.append(("y", F32 if op == "Cast" else dtype, shape))
  out_shape = (*shape[:-1], 1) if op == "ReduceMean" else shape
  constants = [numpy_helper.from_array(v, n) for n, v in weights.items() if n in used]
  return make_model(nodes, inputs, (value, dtype, out_shape), constants)


def make_weights(k, n, count):
  """Alternately (k, n) and (n, k): one random sequence, begun at another place for each."""
  values = np.random.default_rng(0).standard_normal(k * n, np.float32)
  found = []
  for i in range(count):
    rows, columns = (n, k) if i % 2 else (k, n)
    rolled = np.roll(values, -7919 * i) * np.float32(rows**-0.5)
    weight = rolled.astype(np.float16).reshape(rows, columns)
    found.append(numpy_helper.from_array(weight, f"w{i}"))
  return found


def matmuls(length, *, m, k, n, weights, cold):
  """(m,k)x(k,n), (m,n)x(n,k), ...: with ``cold`` a sweep of L2 and a weight for every link."""
  used = weights[: length if cold else 2]
  nodes, inputs, value = [], [("x", F16, (m, k))], "x"
  if cold:
    nodes.append(helper.make_node("Neg", ["sweep"], ["swept"]))
    inputs.append(("sweep", F16, (SWEEP_ELEMENTS,)))
  for i in range(length):
    nodes.append(helper.make_node("MatMul", [value, f"w{i % len(used)}"], [f"v{i}"]))
    value = f"v{i}"
  return make_model(nodes, inputs, (value, F16, (m, n if length % 2 else k)), used)


def links_of(k, n):
  """Short and long chain: enough links to time, no more weights than a model file can hold."""
  if k * n <= COLD_ELEMENTS:
    return LINKS
  return (2, 8) if k * n > 4e7 else (4, 16) if k * n > 4e6 else (10, 40)


def put(values):
  return ort.OrtValue.ortvalue_from_numpy(values, "cuda", 0)


def driver_version():
  query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
  try:
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]
  except (OSError, subprocess.CalledProcessError, IndexError) as error:
    return f"unknown ({error})"


class Table:
  """The results so far, in a file."""

  def __init__(self, path, seconds):
    self.path = path
    self.end = time.monotonic() + seconds
    self.facts = {
      "ort": ort.__version__,
      "gpu": torch.cuda.get_device_name(0),
      "driver": driver_version(),
      "torch": torch.__version__,
      "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
      "command": " ".join(["python3", sys.argv[0], os.path.basename(sys.argv[1]), *sys.argv[2:]]),
    }
    self.ops = {}
    self.matmul = []
    self.failed = []

  def measure(self, what, job):
    """The time of a link, or None (and a note in the table) where it cannot be had."""
    if time.monotonic() > self.end:
      self.failed.append(f"{what}: no time left")
      return None
    started = time.monotonic()
    try:
      us, rest = job()
    except Exception as error:  # the table says what is missing; the rest goes on
      self.failed.append(f"{what}: {type(error).__name__}: {str(error)[:300]}")
      print("FAILED", self.failed[-1], flush=True)
      return None
    took = time.monotonic() - started
    print(f"{what:40} {us:9.3f} us (beside {rest:7.1f}; {took:.1f} s)", flush=True)
    return round(us, 3)

  def add_to(self, known, ops):
    """Go on from a table: its rows but those of ``ops``."""
    self.facts = {
      **{k: v for k, v in known.items() if k not in ("ops", "matmul", "failed")},
      "added": {"ops": ops, **{k: self.facts[k] for k in ("ort", "gpu", "driver", "date")}},
    }
    self.ops = {k: v for k, v in known["ops"].items() if k not in ops}
    self.matmul = known["matmul"]

  def write(self):
    lines = [f" {json.dumps(k)}: {json.dumps(v)}," for k, v in self.facts.items()]
    lines += [' "ops": {']
    lines += [",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in self.ops.items())]
    lines += [" },", ' "matmul": [']
    by_weight = {}
    for row in self.matmul:
      by_weight.setdefault((row[1], row[2]), []).append(json.dumps(row))
    lines += [",\n".join("  " + ", ".join(rows) for rows in by_weight.values())]
    lines += [" ],", f' "failed": {json.dumps(self.failed)}']
    with open(self.path + ".partial", "w") as file:
      file.write("\n".join(["{", *lines, "}"]) + "\n")
    os.replace(self.path + ".partial", self.path)


def main():
  table = Table(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 300.0)
  if only := sys.argv[3:]:
    with open(sys.argv[1]) as file:
      table.add_to(json.load(file), only)
  table.write()
  rng = np.random.default_rng(1)
  for op in only or OPS:
    for shape in ROWS:
      np_type = NUMPY[dtype_of(op)]
      feeds = {
        name: put((np.abs(rng.standard_normal(own)) * 0.5 + 0.5).astype(np_type))
        for name, own in parts(op, shape)
      }
      if op in BINARY:
        feeds["y"] = put(np.full(shape, BINARY[op], np_type))
      if op == "Cast":
        feeds["y"] = put(rng.standard_normal(shape, np.float32))
      make = partial(chain, op=op, shape=shape)
      us = table.measure(f"{op} {shape}", partial(slope_us, make, feeds, *LINKS))
      if us is not None:
        table.ops.setdefault(op, []).append([shape[0] * shape[1], us])
    table.write()
  if only:
    return
  sweep = put(rng.standard_normal(SWEEP_ELEMENTS, np.float32).astype(np.float16))
  for k, n in WEIGHTS:
    short, long = links_of(k, n)
    cold = k * n > COLD_ELEMENTS
    weights = make_weights(k, n, long if cold else 2)
    for m in BATCHES:
      feeds = {"x": put(rng.standard_normal((m, k)).astype(np.float16))}
      if cold:
        feeds["sweep"] = sweep
      make = partial(matmuls, m=m, k=k, n=n, weights=weights, cold=cold)
      us = table.measure(f"MatMul {m} {k} {n}", partial(slope_us, make, feeds, short, long))
      if us is not None:
        table.matmul.append([m, k, n, us])
      table.write()


if __name__ == "__main__":
  main()
