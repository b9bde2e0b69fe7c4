"""Products with weights of 4 and 8 bits on this GPU, against ONNX Runtime's own and fp16 cuBLAS.

    python3 bench/packed.py [--out DIR] [--seconds 140] [--rows 1 8 16] [--points 24] [--fpa] [NAME ...]

Of every case (``CASES``, at each number of rows) the µGraph that the search puts first, at ``points``
numbers around what the cost model likes, of many rows as many by wgmma, compiled on all cores. A kernel is
timed once it agrees with a float64 oracle on hard inputs. Arms of one process, interleaved: the fastest
numbers, ONNX Runtime's nodes of the same region (--fpa: with its other kernel too), and the same product in
fp16 by ONNX Runtime (cuBLAS). Cold: ``Gpu.time_us``; warm: replays one after the other.
Writes DIR/packed.json.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from protocol import facts, print_table, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler import compile_cubin
from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import KernelParams
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.superopt.numbers import tile_choices
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.widened_numbers import widened_points
from mirage_onnx.targets import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import hard_draws
from mirage_onnx.tune.ort_run import OrtRun
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import sample_weights

MS = "com.microsoft"
#: name: (K, N, bits, block, what else: "norm" before it, a "pair" gated behind one, a "gate" alone, "fp8"
#: for weights that are such floats with a scale a column, "fp8 op" for those of com.microsoft's operator, or
#: all of it in "fp32").
CASES = {
  "4096x4096 b32": (4096, 4096, 4, 32, ""),
  "4096x4096 b128": (4096, 4096, 4, 128, ""),
  "4096x14336 b32": (4096, 14336, 4, 32, ""),
  "4096x14336 b128": (4096, 14336, 4, 128, ""),
  "14336x4096 b128": (14336, 4096, 4, 128, ""),
  "norm 4096x4096 b32": (4096, 4096, 4, 32, "norm"),
  "norm 4096x14336 pair b128": (4096, 14336, 4, 128, "pair"),
  "4096x14336 gate b128": (4096, 14336, 4, 128, "gate"),
  "4096x14336 8 bits b128": (4096, 14336, 8, 128, ""),
  "4096x14336 fp8": (4096, 14336, 8, 0, "fp8"),
  "4096x14336 fp8 op": (4096, 14336, 8, 4096, "fp8 op"),
  "4096x14336 fp8 op b128": (4096, 14336, 8, 128, "fp8 op"),
  "fp32 4096x14336 b32": (4096, 14336, 4, 32, "fp32"),
  "fp32 14336x4096 b32": (14336, 4096, 4, 32, "fp32"),
  "fp32 4096x4096 8 bits b128": (4096, 4096, 8, 128, "fp32"),
}
SWEPT, SAMPLES, REPLAYS = 5, 21, 16
COLUMNS = [(w, a) for w in ("cold_us", "warm_us") for a in ("ours", "ort", "fp16")]


def model_of(k, n, bits, block, kind, rows, fp16=False):
  """The model of a case; ``fp16``: with weights of the activations' type in its place."""
  dtype = np.float32 if kind == "fp32" else np.float16
  rng = np.random.default_rng(0)
  nodes, weights = [], []

  def constant(name, x):
    weights.append(numpy_helper.from_array(x, name))
    return name

  def product(x, name):
    if fp16:
      w = np.resize(rng.standard_normal(1 << 20).astype(dtype) * dtype(k**-0.5), (k, n))
      nodes.append(helper.make_node("MatMul", [x, constant(f"{name}w", w)], [name], name=name))
      return name
    if kind == "fp8":
      few = rng.standard_normal(1 << 20).astype(ml_dtypes.float8_e4m3fn)
      scale = (rng.uniform(0.5, 1.5, n) * k**-0.5).astype(dtype)
      given = [constant(f"{name}q", np.resize(few, (k, n))), constant(f"{name}s", scale)]
      nodes.append(helper.make_node("DequantizeLinear", given, [f"{name}w"], name=f"{name}w", axis=1))
      nodes.append(helper.make_node("MatMul", [x, f"{name}w"], [name], name=name))
      return name
    if kind == "fp8 op":
      few = rng.standard_normal(1 << 20).astype(ml_dtypes.float8_e4m3fn)
      scale = (rng.uniform(0.5, 1.5, (n, k // block)) * k**-0.5).astype(np.float32)
      given = [x, constant(f"{name}q", np.resize(few, (n, k))), constant(f"{name}s", scale)]
      op = "MatMulBlockQuantizedFp8Weight"
      nodes.append(helper.make_node(op, given, [name], name=name, domain=MS, block_size=block))
      return name
    shape = (n, k // block)
    b = constant(f"{name}b", rng.integers(0, 256, (*shape, block * bits // 8), np.uint8))
    scale = rng.uniform(0.5, 1.5, shape) * (2.0 ** (4 - bits)) * 0.2 / k**0.5
    inputs = [x, b, constant(f"{name}s", scale.astype(dtype))]
    how = {"domain": MS, "K": k, "N": n, "bits": bits, "block_size": block}
    nodes.append(helper.make_node("MatMulNBits", inputs, [name], name=name, **how))
    return name

  x = "x"
  if kind in ("norm", "pair"):
    gamma = constant("gamma", (1 + 0.1 * rng.standard_normal(k)).astype(dtype))
    nodes.append(helper.make_node("SimplifiedLayerNormalization", ["x", gamma], ["h"], name="norm", axis=-1))
    x = "h"
  y = product(x, "y")
  if kind in ("pair", "gate"):
    up = product(x, "up")
    nodes.append(helper.make_node("Sigmoid", [y], ["s"], name="s"))
    nodes.append(helper.make_node("Mul", [y, "s"], ["silu"], name="silu"))
    nodes.append(helper.make_node("Mul", ["silu", up], ["z"], name="z"))
    y = "z"
  info, given_type = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
  given, made = (info(name, given_type, (rows, size)) for name, size in (("x", k), (y, n)))
  graph = helper.make_graph(nodes, "packed", [given], [made], weights)
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
  return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def loaded_region(case, rows):
  loaded = load_model(model_of(*CASES[case], rows))
  found = find_candidates(import_model(loaded)).candidates
  return loaded, max(found, key=lambda c: (len(c.nodes), len(c.outputs))).region


def points(kernel, extents, first, count, target):
  """Numbers around ``first``: products of what the text can have, those of few registers first."""
  step = 4 * kernel.lane_depth
  steps = extents[kernel.loop] // step
  rows = first.tile[1:] if len(first.tile) > 1 else ()
  found = []
  columns, _ = tile_choices(kernel, extents, get_target(target))
  for tile in columns[0]:
    for warps in (2, 4, 8, 16):
      for stages in (1, 2, 3, 4, 8):
        for cluster in (1, 2):
          each = steps / (warps * stages * cluster)
          if each < 1 or tile * stages > 144 or warps * stages * tile > 1024:
            continue
          uneven = each != int(each)
          if uneven and steps % (warps * cluster):
            continue
          flight = warps * stages * tile // 16 * min(2, extents[kernel.grid[0]] / tile / 132)
          params = KernelParams((tile, *rows), cluster, step * warps, warps, stages)
          found.append((uneven, abs(np.log2(flight / 40)), params))
  found.sort(key=lambda f: (f[0], f[1], f[2].to_text()))
  return [first, *(p for *_, p in found if p != first)][:count]


def searched(job):
  """(region, µGraph, points) of a case."""
  case, rows, count, target = job
  _, region = loaded_region(case, rows)
  result = search(region, get_target(target), prover(region))
  best = next((c.candidate for c in result.candidates if len(c.candidate.ugraph.kernels) == 1), None)
  if best is None:
    return None, [], region.extents
  kernel, tensors = best.ugraph.kernels[0], {t.name: t for t in best.ugraph.tensors}
  wide = widened_points(kernel, tensors, region.extents, get_target(target), 400)
  kinds = {(p.tile, p.cluster, p.loop_tile): p for _, p in reversed(wide)}
  wide = sorted([(us, p) for us, p in wide if p in kinds.values()], key=lambda f: f[0])[:count]
  near = points(kernel, region.extents, best.params[0], count // 2 if wide else count, target)
  return best.ugraph, [*near, *(p for _, p in wide)], region.extents


def built(job):
  graph, params, extents, target = job
  try:
    source = emit_kernel(graph, graph.kernels[0], params, extents, get_target(target))
    return source, compile_cubin(source.text, get_target(target), name=source.name)
  except RejectionError as error:
    return error.rejection.code


def warm_us(gpu, arms, samples):
  """Microseconds of replays one after the other, whose weights L2 keeps if they fit."""
  found = []
  for arm in arms:
    times = []
    start, end = gpu.d.cuEventCreate(0)[1], gpu.d.cuEventCreate(0)[1]
    for _ in range(samples):
      gpu.d.cuEventRecord(start, gpu.stream)
      for _ in range(REPLAYS):
        arm()
      gpu.d.cuEventRecord(end, gpu.stream)
      gpu.wait()
      times.append(1e3 * gpu.d.cuEventElapsedTime(start, end)[1] / REPLAYS)
    found.append(float(np.median(times)))
  return found


def drawn(job):
  """Region and model of a case, hard inputs and the oracle of them, which keeps the outputs only."""
  loaded, region = loaded_region(*job)
  data, oracle = hard_draws(region, sample_weights(loaded, region), np.random.default_rng(0))[0]
  kept = [{o.tensor.name: x[o.tensor.name] for o in region.outputs} for x in (oracle.exact, oracle.rounded)]
  model = loaded.proto.SerializeToString()
  return region, model, data, replace(oracle, exact=kept[0], rounded=kept[1])


def measured(gpu, case, rows, found, draw, other=False):
  """A row of the record."""
  graph, _, kernels = found
  region, model, data, oracle = draw
  k, n, bits, block, kind = CASES[case]
  row = {"case": case, "rows": rows, "wrong": [], "swept": []}
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    arms = []
    for params, (source, cubin) in kernels:
      c = Compiled(Candidate(graph, (params,)), (source,), (cubin,))
      replay, outputs = prepare(gpu, region, c, inputs)
      if complaint := oracle.complaint(gpu, replay, outputs):
        row["wrong"].append([params.to_text(), complaint])
        continue
      arms.append((params, replay, outputs))
    us = gpu.time_us([a[1] for a in arms], SWEPT)
    times = [float(np.median(t)) for t in us]
    row["swept"] = sorted([round(t, 2), a[0].to_text()] for t, a in zip(times, arms, strict=True))
    best = arms[int(np.argmin(times))]
    peers = {"ours": best[1]}
    feeds = {"x": data["x"]}
    peers["ort"] = OrtRun(gpu, model, feeds).captured()
    if other:
      try:
        os.environ["ORT_FPA_INTB_GEMM"] = "1"
        peers["ort_fpa_intb"] = OrtRun(gpu, model, feeds).captured()
      except Exception as error:
        row["ort_fpa_intb_error"] = str(error)[:200]
      os.environ.pop("ORT_FPA_INTB_GEMM", None)
    plain = model_of(k, n, bits, block, kind, rows, fp16=True).SerializeToString()
    peers["fp16"] = OrtRun(gpu, plain, feeds).captured()
    cold = gpu.time_us(list(peers.values()), SAMPLES)
    warm = warm_us(gpu, list(peers.values()), SAMPLES)
    for name, c, w in zip(peers, cold, warm, strict=True):
      low, mid, high = np.percentile(c, [25, 50, 75])
      row[name] = {"cold_us": round(float(mid), 2), "q": [round(float(low), 2), round(float(high), 2)],
                   "warm_us": round(w, 2)}  # fmt: skip
    row["params"] = best[0].to_text()
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--seconds", type=float, default=140.0)
  parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 16])
  parser.add_argument("--points", type=int, default=24)
  parser.add_argument("--dry", action="store_true", help="search, emit and compile only")
  parser.add_argument(
    "--fpa", action="store_true", help="time ONNX Runtime's other kernel too (ORT_FPA_INTB_GEMM)"
  )
  parser.add_argument("names", nargs="*")
  options = parser.parse_args()
  begin = time.monotonic()
  target = "h100" if options.dry else present_target().name
  jobs = [(c, r) for c in options.names or CASES for r in options.rows]
  rows, refused = [], {}
  with ProcessPoolExecutor(max(1, min(12, os.cpu_count() - 1)), get_context("spawn")) as pool:
    graphs = list(pool.map(searched, [(c, r, options.points, target) for c, r in jobs]))
    print(f"searched after {time.monotonic() - begin:.0f} s", flush=True)
    flat = [(g, p, extents, target) for g, params, extents in graphs for p in params]
    draws = [] if options.dry else list(pool.map(drawn, jobs))
    print(f"drawn after {time.monotonic() - begin:.0f} s", flush=True)
    images = iter(list(pool.map(built, flat, chunksize=2)))
    print(f"{len(flat)} kernels after {time.monotonic() - begin:.0f} s", flush=True)
    found = {}
    for job, (graph, params, _) in zip(jobs, graphs, strict=True):
      kernels = [(p, next(images)) for p in params]
      for _, image in kernels:
        if isinstance(image, str):
          refused[image] = refused.get(image, 0) + 1
      found[job] = graph, params, [(p, i) for p, i in kernels if not isinstance(i, str)]
    if options.dry:
      print({j: len(f[2]) for j, f in found.items()}, refused)
      return 0
    gpu = gpu_of(get_target(target))
    for job, draw in zip(jobs, draws, strict=True):
      if not found[job][2]:
        print(f"{job}: no program of one kernel", flush=True)
        continue
      if time.monotonic() - begin > options.seconds:
        break
      try:
        rows.append(measured(gpu, *job, found[job], draw, options.fpa))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "swept"}), flush=True)
      except Exception as error:
        rows.append({"case": job[0], "rows": job[1], "error": f"{type(error).__name__}: {error}"[:400]})
        print(rows[-1], flush=True)
      record = facts() | {"refused": refused, "cases": rows}
      write_text(options.out / "packed.json", json.dumps(record, indent=1) + "\n")
  head = ("case", "rows", "ours cold", "ort", "fp16", "warm: ours", "ort", "fp16", "numbers")
  print_table("Weights of few bits, us", head, [
    (r["case"], str(r["rows"]), *(f"{r[a][w]:.1f}" for w, a in COLUMNS), r["params"])
    for r in rows if "ours" in r
  ])  # fmt: skip
  return 0


if __name__ == "__main__":
  sys.exit(main())
