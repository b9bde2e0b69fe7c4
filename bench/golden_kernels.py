"""Every golden µGraph of the generator at full size on the GPU: right, and how long.

    python3 bench/golden_kernels.py [--out DIR] [--seconds 300] [--points 6] [NAME ...]

For each program of tests/support/search_programs.py: its golden µGraph with the best numbers of the
cost model, kernel by kernel, compiled, compared with float64 and timed (``protocol.py``). Writes
DIR/goldens.json; exits 1 if a kernel is wrong.
"""

import argparse
import json
import os
import sys
import time
from math import prod
from pathlib import Path

import numpy as np
from protocol import facts, print_table, statistics, streaming_limit, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from golden_graphs import NAMES, golden_graph
from search_programs import PROGRAMS

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Candidate, part_axis
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.superopt.solved import solver
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import draw

#: Sets of numbers that are compiled until enough do: the model does not know what spills.
SAMPLES, TRIED = 9, 60


def numbered(graph, region, target, most):
  """The best numbers of every kernel, combined; (predicted us, numbers), best first.

  Those of a later kernel are the best for the parts that those of the earlier ones leave it.
  """
  tensors = {t.name: t for t in graph.tensors}
  each = most if len(graph.kernels) == 1 else max(2, round(most ** (1 / len(graph.kernels))))
  sets = [(0.0, (), dict(region.extents))]
  for k in graph.kernels:
    family = lay_out(k, tensors).family
    parts = {part_axis(a, k.name): 1 for a in k.grid}
    assumed = {} if family is Family.TILED else parts
    found = []
    for us, numbers, extents in sets:
      for cost, own in solver(family)(k, tensors, {**assumed, **extents}, target, keep=each):
        made = {part_axis(a, k.name): -(-extents[a] // t) for a, t in zip(k.grid, own.tile, strict=True)}
        found.append((us + cost.time_us, (*numbers, own), {**extents, **made}))
    sets = sorted(found, key=lambda s: s[0])[:most]
  return [(us, numbers) for us, numbers, _ in sets]


def usual_weights(region):
  """Weights as training begins with them: products with them are of the size of what they read.

  With weights of N(0, 1) a whole MLP overflows fp16, and a softmax sees scores of 1000.
  """
  rng, found = np.random.default_rng(1), {}
  for i in region.inputs:
    shape = region.shape(i.source)
    if i.is_weight and i.dtype.is_float and len(shape) > 1:
      found[i.source.name] = rng.standard_normal(shape) / np.sqrt(max(shape))
  return found


def measure(name, region, graph, options):
  """One program."""
  gpu, target = options.gpu, options.gpu.target
  result = {"program": name, "points": [], "refused": []}
  sets = numbered(graph, region, target, TRIED)
  candidates = [Candidate(graph, params, predicted) for predicted, params in sets]
  compiled, refused = compile_candidates(
    region, candidates, target, keep=options.points, workers=os.cpu_count() or 1
  )
  result["refused"] = [f"{r.code}: {r.reason}" for r in refused]
  if not compiled:
    return result
  try:
    data, oracle = draw(region, usual_weights(region), np.random.default_rng(0))
  except RejectionError as error:
    result["refused"].append(f"{error.rejection.code}: {error.rejection.reason}")
    return result
  size = sum(
    prod(region.extents[a] for a in t.axes) * t.dtype.size_bytes for t in (*region.inputs, *region.outputs)
  )
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    prepared = [prepare(gpu, region, c, inputs) for c in compiled]
    errors = [oracle.errors(gpu, *p) for p in prepared]
    limit, _ = streaming_limit(gpu, size)
    times = gpu.time_us([limit, *(p[0] for p in prepared)], SAMPLES)
  result["limit"] = statistics(times[0])
  for c, error, samples in zip(compiled, errors, times[1:], strict=True):
    result["points"].append({
      "params": " | ".join(p.to_text() for p in c.candidate.params),
      "predicted_us": round(c.candidate.predicted_us, 2), **statistics(samples),
      "registers": [i.registers for i in c.cubins],
      "smem_bytes": [s.smem_bytes for s in c.sources],
      "nvrtc_s": [round(i.seconds, 2) for i in c.cubins],
      "error": max((e for e in error.values()), key=lambda e: e[0] - e[1]),
    })  # fmt: skip
  return result


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--seconds", type=float, default=300.0)
  parser.add_argument("--points", type=int, default=6, help="sets of numbers per program")
  parser.add_argument("names", nargs="*")
  options = parser.parse_args()
  target = present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  options.gpu = gpu_of(target)
  deadline = time.monotonic() + options.seconds
  found = facts() | {"programs": []}
  wrong, rows = [], []
  for name in options.names or PROGRAMS:
    if name not in NAMES:
      continue
    if time.monotonic() > deadline:
      found.setdefault("left_out", []).append(name)
      continue
    result = measure(name, PROGRAMS[name](), golden_graph(name), options)
    found["programs"].append(result)
    bad = [p for p in result["points"] if not p["error"][0] <= p["error"][1]]
    wrong += [f"{name}: {p['params']} {p['error']}" for p in bad]
    best = min(result["points"], key=lambda p: p["us"], default=None)
    refused = f"{len(result['refused'])}" + (f" {result['refused'][0][:60]}" if not best else "")
    rows.append([
      name, *(
        (f"{best['us']:.1f}", f"{best['predicted_us']:.1f}", f"{result['limit']['us']:.1f}",
         f"{len(bad)}/{len(result['points'])}", best["params"]) if best else [""] * 5
      ), refused,
    ])  # fmt: skip
    print("  ".join(rows[-1]), flush=True)
    write_text(options.out / "goldens.json", json.dumps(found, indent=1) + "\n")
  head = ("program", "us", "predicted", "limit", "wrong", "numbers", "refused")
  print_table("Golden µGraphs at full size", head, rows)
  print("\n".join(wrong))
  return 1 if wrong else 0


if __name__ == "__main__":
  sys.exit(main())
