"""What ONNX Runtime's operators take on this machine's GPU, over a grid of sizes: lines of OUT.jsonl.

    python3 bench/operator_times.py OUT.jsonl [--seconds 300] [--types fp16 bf16 fp32] [--kinds product ...]

A line is a point: ``kind``, ``type``, ``sizes``, ``us``, below the facts of its run. Points that OUT has
already are passed over, so the same command goes on; what cannot be run says why (``refused``). A time is
that of a CUDA graph of several runs, without what a first kernel takes longer, over their number: the
operator's part of a replayed model, its launch included. Activations are those of the run before, as in a
model, and weights come from memory: each of the nodes of a product has its own, and a replay begins with an
empty L2. Random data; ONNX Runtime's own optimizer as it comes.
``python bench/operator_table.py`` makes the tables of ``mirage_onnx/targets/tables`` of it.
"""

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from itertools import product
from math import prod
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

TYPES = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "fp32": TensorProto.FLOAT}
#: Runs (or nodes with a weight each) in one graph, at most, and for so many microseconds or bytes about.
MOST_RUNS, LONG_US, LARGE_BYTES = 16, 600.0, 1 << 27
SAMPLES = 5
#: FLOP/s and bytes/s that tell about how long a point takes.
ABOUT_FLOPS, ABOUT_BYTES = 4e14, 3e12
DRAWN = 1 << 20

ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
SIDES = (64, 256, 768, 1024, 3072, 4096, 14336)
WIDE = 163840
LENGTHS = (64, 128, 256, 512, 1024, 2048)
KEYS = (512, 1024, 2048, 4096, 8192)
BATCHES = (8, 32, 96, 384)
ELEMENTS = (512, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
SCORES = 1 << 28
NORM_ROWS = (1, 16, 128, 1024, 4096, 16384)
COLUMNS = (64, 128, 768, 1024, 4096, 8192)
#: Of the types other than fp16: one of so many.
FEWER = {"rows": 2, "sides": 3, "batch": 2, "elements": 2, "norm": 2}
SAME = ("Add", "Sub", "Mul", "Div")
UNARY = (
  "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Gelu", "Sqrt", "Reciprocal", "IsNaN", "Cast", "Cos",
  "Clip", "QuickGelu",
)  # fmt: skip
OTHERS = (
  "Pow", "Where", "Transpose", "Turned", "Slice", "Concat", "Append", "Expand", "Gather", "Split",
)  # fmt: skip
NORMS = (
  "LayerNormalization", "SkipLayerNormalization", "Softmax", "BiasSoftmax", "ReduceMean", "RMSNormalization",
)  # fmt: skip
#: Operators of ONNX Runtime's own domain, which its optimizer makes of others.
OWN = ("SkipLayerNormalization", "BiasSoftmax", "QuickGelu", "FusedMatMul")


def points(types, kinds):
  """(kind, type, sizes), the most useful first."""
  for t in types:
    for kind, sizes in all_points(t):
      if not kinds or kind in kinds:
        yield kind, t, sizes


def all_points(t):
  some = (lambda what, xs: xs) if t == "fp16" else (lambda what, xs: xs[:: FEWER[what]])
  rows, sides = some("rows", ROWS), some("sides", SIDES)
  for m, k, n in product(rows, sides, sides):
    if min(k, n) > 64 or max(k, n) <= 1024:
      yield "MatMul", (m, k, n)
  for m, n in product(ROWS, (256, 1024, 4096)):  # what a bias takes depends on the rows and columns
    yield "Gemm", (m, 1024, n)
  for depth, s, b in product((32, 64, 128), some("batch", LENGTHS), some("batch", BATCHES)):
    if b * s * s <= SCORES:
      yield "scores", (b, s, depth, s)
      yield "values", (b, s, s, depth)
  for depth, keys, b in product((64, 128), some("batch", KEYS), (8, 32, 128)):
    yield "scores", (b, 1, depth, keys)
    yield "values", (b, 1, keys, depth)
  for s, away, b in product((128, 256, 512, 1024, 2048), (1, 2, 4), (12, 192)):  # no multiples of 8
    if b * s * s <= SCORES and t == "fp16":
      yield "scores", (b, s - away, 64, s - away)
      yield "values", (b, s - away, s - away, 64)
  for r, c in product(some("norm", NORM_ROWS), some("norm", COLUMNS)):
    for op in NORMS:
      yield op, (r, c)
  for r, c in (*product((65536, 1 << 18), (128, 512, 1024)), (65536, 4096)):
    if r * c <= SCORES:
      yield "Softmax", (r, c)
      yield "BiasSoftmax", (r, c)
  for e in some("elements", ELEMENTS):
    for op in SAME:
      yield op, (e,)
      yield f"{op}Scalar", (e,)
    for op in ("Add", "Mul"):
      yield f"{op}Row", (e,)
      yield f"{op}Column", (e,)
      yield f"{op}Middle", (e,)
    for op in (*UNARY, *OTHERS):
      yield op, (e,)
  for m, k in ((1, 1024), (1, 4096), (16, 4096)):  # as the last one of a decoder
    yield "MatMul", (m, k, WIDE)


def node_of(kind, sizes, of):
  """(operator, inputs: shape and type, constants, outputs: shape and type, attributes) of a point."""
  one, i64, flag = TensorProto, TensorProto.INT64, TensorProto.BOOL
  if kind in ("MatMul", "Gemm"):
    m, k, n = sizes
    bias = [((n,), of)] if kind == "Gemm" else []
    return kind, [((m, k), of), ((k, n), of), *bias], [], [((m, n), of)], {}
  if kind == "scores":  # as the optimizer makes it of a scale and a transpose before the product
    b, m, k, n = sizes
    fused = {"transB": 1, "alpha": 0.125}
    return "FusedMatMul", [((b, m, k), of), ((b, n, k), of)], [], [((b, m, n), of)], fused
  if kind == "values":
    b, m, k, n = sizes
    return "MatMul", [((b, m, k), of), ((b, k, n), of)], [], [((b, m, n), of)], {}
  if len(sizes) == 2:
    rows, columns = sizes
    x, scale = ((rows, columns), of), np.ones(columns)
    if kind == "Softmax":
      return kind, [x], [], [x], {"axis": -1}
    if kind == "ReduceMean":
      return kind, [x], [np.array([1])], [((rows, 1), of)], {"keepdims": 1}
    if kind == "RMSNormalization":
      return "SimplifiedLayerNormalization", [x], [scale], [x], {"axis": -1, "epsilon": 1e-5}
    if kind == "SkipLayerNormalization":
      return kind, [x, x], [scale, scale], [x], {"epsilon": 1e-5}
    if kind == "BiasSoftmax":  # a mask for all heads
      heads = 8 if rows % 8 == 0 else 1
      parts = (1, heads, rows // heads, columns)
      whole = (parts, of)
      return kind, [whole, ((1, 1, *parts[2:]), of)], [], [whole], {"axis": 3, "is_inner_broadcast": 0}
    return kind, [x], [scale, scale], [x], {"axis": -1, "epsilon": 1e-5}
  (e,) = sizes
  columns = min(1024, e)
  rows = e // columns
  x = ((rows, columns), of)
  for op in SAME:
    if kind == op:
      return op, [x, x], [], [x], {}
    if kind == f"{op}Scalar":
      return op, [x], [np.float64(0.5)], [x], {}
    if kind == f"{op}Row":
      return op, [x, ((columns,), of)], [], [x], {}
    if kind == f"{op}Column":
      return op, [x, ((rows, 1), of)], [], [x], {}
    if kind == f"{op}Middle":  # a mask over heads, or cosines over heads
      parts = (1, min(8, rows), max(1, rows // 8), columns)
      return op, [(parts, of), ((1, 1, *parts[2:]), of)], [], [(parts, of)], {}
  if kind == "Pow":
    return kind, [x], [np.float64(2.0)], [x], {}
  if kind == "Where":
    return kind, [((rows, columns), flag), x], [np.float64(0.0)], [x], {}
  if kind == "Cast":
    to = one.FLOAT if of != one.FLOAT else one.FLOAT16
    return kind, [x], [], [((rows, columns), to)], {"to": to}
  if kind == "IsNaN":
    return kind, [x], [], [((rows, columns), flag)], {}
  if kind == "Clip":
    return kind, [x], [np.float64(-1.0), np.float64(1.0)], [x], {}
  if kind == "Transpose":  # heads and rows
    heads = min(16, max(1, e // 512))
    shape = (1, e // heads // 64, heads, 64) if e >= 64 * heads else (1, 1, heads, e // heads)
    return kind, [(shape, of)], [], [((1, heads, shape[1], shape[3]), of)], {"perm": [0, 2, 1, 3]}
  if kind == "Turned":  # the last two axes
    heads = min(16, max(1, e // 512))
    shape = (heads, e // heads // 64, 64) if e >= 64 * heads else (heads, 1, e // heads)
    return "Transpose", [(shape, of)], [], [((heads, shape[2], shape[1]), of)], {"perm": [0, 2, 1]}
  if kind == "Slice":
    half = columns // 2
    ends = [np.array([0]), np.array([half]), np.array([1])]
    return kind, [((2 * rows, columns), of)], ends, [((2 * rows, half), of)], {}
  if kind == "Split":
    half = ((rows, columns // 2), of)
    return kind, [x], [np.array([columns // 2] * 2)], [half, half], {"axis": 1}
  if kind == "Concat":
    half = ((rows, columns // 2), of)
    return kind, [half, half], [], [x], {"axis": 1}
  if kind == "Append":  # a row to a cache
    heads, width = (8, 128) if e >= 2048 else (1, 128)
    length = e // heads // width
    parts = [((1, heads, n, width), of) for n in (length - 1, 1, length)]
    return "Concat", parts[:2], [], parts[2:], {"axis": 2}
  if kind == "Expand":  # keys of a group of heads
    parts = (4, 1, max(1, rows // 16), columns) if rows >= 16 else (1, 1, 1, columns)
    whole = (parts[0], 4 if rows >= 16 else 1, *parts[2:])
    return kind, [(parts, of)], [np.array(whole)], [(whole, of)], {}
  if kind == "Gather":
    picks = np.random.default_rng(0).integers(0, 4096, rows)
    return kind, [((4096, columns), of), ((rows,), i64, picks)], [], [x], {"axis": 0}
  return kind, [x], [], [x], {}


def model_of(op, inputs, constants, outputs, attributes, of, nodes=1):
  """A model of one node, or of several with a second input each; and what a run gives it."""
  from mirage_onnx.tune.operator_table import nodes_model

  drawn = np.random.default_rng(0).uniform(0.5, 1.0, DRAWN).astype(np.float32)

  def values(shape, dtype, given=None):
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    return (
      np.resize(drawn > 0.75 if dtype == TensorProto.BOOL else drawn.astype(kind), shape)
      if given is None
      else given
    )

  domain, half = "com.microsoft" if op in OWN else "", helper.tensor_dtype_to_np_dtype(of)
  held = {
    f"c{k}": np.asarray(c).astype(np.int64 if c.dtype.kind == "i" else half) for k, c in enumerate(constants)
  }
  feeds, made, graph = {}, {}, []
  for node in range(nodes):
    names = [f"x{k}" if k == 0 or nodes == 1 else f"x{k}_{node}" for k in range(len(inputs))]
    feeds.update({n: values(*x) for n, x in zip(names, inputs, strict=True) if n not in feeds})
    outs = {f"y{k}_{node}": (dtype, shape) for k, (shape, dtype) in enumerate(outputs)}
    graph.append(helper.make_node(op, [*names, *held], [*outs], domain=domain, **attributes))
    made |= outs
  return nodes_model(graph, feeds, held, made), feeds


class Clock:
  """Times of points on the present GPU."""

  def __init__(self, locks):
    from mirage_onnx.tune.device import Gpu, present_gpu

    self.gpu, self.locks, self.first_us = Gpu(present_gpu().target), locks, None

  def us(self, kind, t, sizes):
    """Microseconds of one more run, or of one more node with weights of its own."""
    import onnxruntime as ort

    from mirage_onnx.tune.machine import gpu_alone
    from mirage_onnx.tune.ort_run import OrtRun

    gpu, of = self.gpu, TYPES[t]
    spec = node_of(kind, sizes, of)
    weights = kind in ("MatMul", "Gemm")
    count = counts_of(spec, sizes)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    cuda = ("CUDAExecutionProvider", {"user_compute_stream": str(gpu.stream_address)})
    model, feeds = model_of(*spec, of, count if weights else 1)
    session = ort.InferenceSession(model, options, providers=[cuda])  # beside the times of other processes
    with gpu_alone(self.locks), gpu.scope():
      run = OrtRun(gpu, b"", feeds, make=lambda *a, **more: session)
      arm = gpu.capture(partial(_several, run, 1 if weights else count))
      if self.first_us is None:
        self.first_us = self._first_us()
      took = float(np.median(gpu.time_us([arm], SAMPLES)))
    return max(0.0, took - self.first_us) / count

  def _first_us(self):
    """What the first kernel of a graph takes longer than those behind it."""
    from mirage_onnx.tune.rates import _loaded

    kernel = _loaded(self.gpu, 'extern "C" __global__ void nop() {}', "nop")

    def several(count):
      return lambda: [self.gpu.launch(kernel, (1, 1, 1), 32, []) for _ in range(count)]

    one, many = np.median(self.gpu.time_us([self.gpu.capture(several(n)) for n in (1, 41)], 9), axis=1)
    return float(one - (many - one) / 40)


def _several(run, count):
  for _ in range(count):
    run()


def bytes_of(spec):
  tensors = [(s, d) for s, d, *_ in (*spec[1], *spec[3])]
  return sum(prod(s) * helper.tensor_dtype_to_np_dtype(d).itemsize for s, d in tensors)


def counts_of(spec, sizes):
  """Runs, or nodes, in one graph: fewer where one takes long, or its tensors are large."""
  moved = bytes_of(spec)
  flops = 2 * prod(sizes) if len(sizes) > 2 else 0
  us = 1e6 * max(flops / ABOUT_FLOPS, moved / ABOUT_BYTES)
  return int(max(2, min(MOST_RUNS, LONG_US / max(us, 1e-9), LARGE_BYTES / moved)))


def ask(todo, end, out, locks):
  """Times of points, a line each, in a process of its own."""
  import torch  # noqa: F401  (loads the libraries that onnxruntime needs)

  clock = Clock(locks)
  with out.open("a") as file:
    for kind, t, sizes in todo:
      if time.monotonic() > end:
        break
      row = {"kind": kind, "type": t, "sizes": sizes}
      try:
        row["us"] = round(clock.us(kind, t, sizes), 3)
      except Exception as error:
        row |= {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
      file.write(json.dumps(row) + "\n")
      file.flush()


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("out", type=Path)
  add("--seconds", type=float, default=300.0)
  add("--types", nargs="+", default=list(TYPES))
  add("--kinds", nargs="+", default=[])
  add("--jobs", type=int, default=4, help="processes that make sessions; one of them times at a time")
  add("--count", action="store_true", help="how many points there are; no GPU is asked")
  o = parser.parse_args()
  end = time.monotonic() + o.seconds
  lines = o.out.read_text().splitlines() if o.out.is_file() else []
  known = {(r["kind"], r["type"], tuple(r["sizes"])) for r in map(json.loads, lines) if "kind" in r}
  todo = [p for p in points(o.types, o.kinds) if p not in known]
  print(f"{len(known)} points are known, {len(todo)} are asked", flush=True)
  if o.count:
    return 0
  from protocol import facts

  from mirage_onnx.superopt.cache_folders import cache_folder

  with o.out.open("a") as file:  # above the points of every run
    file.write(json.dumps(facts()) + "\n")
  with tempfile.TemporaryDirectory() as folder:
    locks = cache_folder("locks") or Path(folder)  # that of every optimize beside it
    made = get_context("spawn")
    processes = [made.Process(target=ask, args=(todo[n :: o.jobs], end, o.out, locks)) for n in range(o.jobs)]
    for p in processes:
      p.start()
    for p in processes:
      p.join()
  done = len(o.out.read_text().splitlines()) - len(lines) - 1
  print(f"{done} of {len(todo)} points", flush=True)
  return 0 if done == len(todo) else 1


if __name__ == "__main__":
  sys.exit(main())
