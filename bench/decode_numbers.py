"""Numbers of the first kernel of decode attention, timed: what a step of grouped attention could take.

    python3 bench/decode_numbers.py OUT.json [BATCHxROOM ...] [--seconds 120] [--dry]

The operator of ``decode_attention.py`` (32 and 8 heads of 128, fp16), its attending part: of the program that
the search finds with a loop over the keys, and without, the first kernel at many numbers, compiled on all
cores. A program is timed once it agrees with the float64 oracle of ``optimize``, its cache full. Cold, in a
row: ``Gpu.time_us``, beside a plain read of as many bytes.
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

import numpy as np
from decode_attention import OWN, SIZE, model_of
from protocol import facts, streaming_limit, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from mirage_onnx.compiler import compile_cubin
from mirage_onnx.compiler.candidates import Compiled, emit_candidate
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.gpu_arrays import gpu_arrays
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import hard_draws
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import sample_weights

#: Keys of an iteration, warps; (batch, room) -> keys of a block, of an iteration (0: no loop), warps, stages.
STEPS = [(32, 2), (64, 2), (64, 4), (128, 4), (128, 8), (256, 8)]
FEW = [(t, k, w, s) for s in (2, 3, 4) for k, w in STEPS[:5] for t in (128, 256, 512) if t >= k * s]
CASES = {
  (1, 32768): [(t, k, w, s) for s in (2, 3, 4) for k, w in STEPS for t in (1024, 2048, 512)],
  (1, 4096): FEW + [(t, 0, w, 1) for t in (128, 256) for w in (4, 8)],
  (8, 4096): [(t, k, w, s) for s in (2, 3) for k, w in STEPS for t in (1024, 2048, 512)],
  (32, 4096): [(4096, k, w, s) for s in (2, 3) for k, w in STEPS[:5]],
}
SAMPLES = 9


def attending(case):
  """The model of a case, and the region of its attending part."""
  loaded = load_model(model_of(*case)[0])
  found = find_candidates(import_model(loaded), replace(TIMED, reductions=True), None).candidates
  return loaded, next(c.region for c in found if any(n.endswith("attended") for n in c.nodes))


def candidates(job):
  """The programs of a case at its numbers."""
  case, target = job
  _, region = attending(case)
  result = search(region, get_target(target), prover(region), space=space_of(region))
  every = [c.candidate for c in result.candidates]
  firsts = [(c, c.ugraph.kernels[0]) for c in every]
  looped = next((c for c, k in firsts if k.loop in k.grid), None) or next(c for c, k in firsts if k.loop)
  flat = next((c for c, k in firsts if not k.loop), None)
  found = {}
  for keys, step, warps, stages in CASES[case]:
    c = looped if step else flat
    if c is None:
      continue
    kernel, first = c.ugraph.kernels[0], c.params[0]
    along = looped.ugraph.kernels[0].loop
    tile = tuple(keys if a == along else n for a, n in zip(kernel.grid, first.tile, strict=True))
    own = replace(first, tile=tile, cluster=1, loop_tile=step, warps=warps, stages=stages)
    rest = tuple(replace(p, tile=tuple(min(n, 32) for n in p.tile), warps=4) for p in c.params[1:])
    found[bool(step), own] = Candidate(c.ugraph, (own, *rest))
  return list(found.values())


def built(job):
  """A program's texts and images, or why there are none."""
  candidate, extents, target = job
  try:
    sources = emit_candidate(candidate, extents, get_target(target), "decode")
    images = [compile_cubin(s.text, get_target(target), name=s.name) for s in sources]
  except RejectionError as error:
    return str(error)[:200]
  return Compiled(candidate, sources, tuple(images))


def measured(case, target, programs):
  """The row of a case."""
  gpu = gpu_of(get_target(target))
  loaded, region = attending(case)
  draws = hard_draws(region, sample_weights(loaded, region), np.random.default_rng(0), gpu_arrays() or np)
  data, oracle = draws[0]
  arms, wrong = [], []
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    for c in programs:
      replay, outputs = prepare(gpu, region, c, inputs)
      numbers = [p.to_text() for p in c.candidate.params]
      if complaint := oracle.complaint(gpu, replay, outputs):
        wrong.append([*numbers, str(complaint)[:200]])
      else:
        arms.append((numbers, replay))
    read = streaming_limit(gpu, 2 * case[0] * OWN * case[1] * SIZE * 2)[0]
    us = np.median(gpu.time_us([*(a for _, a in arms), read], SAMPLES), axis=1).round(2)
  rows = sorted([float(t), *numbers] for t, (numbers, _) in zip(us, arms, strict=False))
  return {"case": case, "read_us": float(us[-1]), "rows": rows, "wrong": wrong}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("out", type=Path)
  parser.add_argument("cases", nargs="*")
  parser.add_argument("--seconds", type=float, default=120.0)
  parser.add_argument("--dry", action="store_true", help="search, emit and compile two of each only")
  args = parser.parse_args()
  begin = time.monotonic()
  target = "h200" if args.dry else present_target().name
  cases = [tuple(map(int, c.split("x"))) for c in args.cases] or [*CASES]
  record, waiting = [], []
  workers = min(16, len(os.sched_getaffinity(0)))
  with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
    for case, own in zip(cases, pool.map(candidates, [(c, target) for c in cases]), strict=True):
      extents = attending(case)[1].extents
      own = own[:2] if args.dry else own
      waiting.append((case, [pool.submit(built, (c, extents, target)) for c in own]))
    for case, futures in waiting:
      found = [f.result() for f in futures]
      programs = [c for c in found if isinstance(c, Compiled)]
      print(case, f"{len(programs)} of {len(found)} after {time.monotonic() - begin:.0f} s", flush=True)
      if args.dry:
        continue
      if time.monotonic() - begin > args.seconds:
        break
      record.append(measured(case, target, programs))
      write_text(args.out, json.dumps({"facts": facts(), "cases": record}, indent=1) + "\n")
      print(record[-1]["read_us"], record[-1]["wrong"], *record[-1]["rows"][:8], sep="\n  ", flush=True)


if __name__ == "__main__":
  main()
