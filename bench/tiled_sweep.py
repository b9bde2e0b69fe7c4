"""Kernels at many numbers on the GPU: how well the cost model ranks them.

    python3 bench/tiled_sweep.py [--out DIR] [--seconds 140] [--points 20] [--all] [NAME ...]

For each tiled kernel (--all: each kernel) of the golden programs (tests/support/golden_graphs.py)
at full size: a third of the points the model's best ones, the rest drawn from those within ``FAR``
of the best. Emitted and compiled on all cores, timed cold (``Gpu.time_us``) on data that repeats.
Writes DIR/tiled_sweep.json and prints, per kernel, the rank correlation and the time of the model's
first choice, of the best of its first eight, and of the fastest. Right or wrong is not asked here:
``golden_kernels.py`` does.
"""

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from protocol import facts, print_table, write_text
from scipy.stats import spearmanr

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from golden_graphs import NAMES, golden_graph
from search_programs import PROGRAMS

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import KernelParams, UGraph, ugraph_extents
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.superopt.solved import solved, solver
from mirage_onnx.target import H200
from mirage_onnx.tune.measure import gpu_of

FAR, SAMPLES = 2.5, 7
#: Of a row of the record, times in us.
COLUMNS = ("params", "predicted_us", "us")


@dataclass(frozen=True)
class Point:
  """One kernel of a program with numbers; ``extents`` with those of its part axes."""

  program: str
  kernel: int
  graph: UGraph
  extents: dict[str, int]
  params: KernelParams
  predicted_us: float


def points_of(program, count, families):
  """The points of the kernels of ``families``; every kernel before has its best numbers."""
  graph, region = golden_graph(program), PROGRAMS[program]()
  tensors = {t.name: t for t in graph.tensors}
  best = []
  for n, kernel in enumerate(graph.kernels):
    family = lay_out(kernel, tensors, tiled=True).family
    # Part axes of the kernels from here on have no numbers yet: the solvers assume some.
    rest = [KernelParams((1 << 30,) * len(k.grid)) for k in graph.kernels[n:]]
    extents = ugraph_extents(graph, [*best, *rest], region.extents)
    first = solved(family, kernel, tensors, extents, H200, keep=1)
    if first is None:
      return
    if family in families:
      every = solver(family)(kernel, tensors, extents, H200, keep=3000)
      near = [(c.time_us, p) for c, p in every if c.time_us <= FAR * first[0]]
      drawn = random.Random(f"{program}{n}")
      top, others = near[: count // 3], near[count // 3 :]
      for us, p in top + drawn.sample(others, min(len(others), count - len(top))):
        own = ugraph_extents(graph, [*best, p, *rest[1:]], region.extents)
        yield Point(program, n, graph, own, p, us)
    best.append(first[1][0])


def build(point):
  """The compiled kernel, or the code of the refusal."""
  kernel = replace(point.graph.kernels[point.kernel], name="k")
  try:
    source = emit_kernel(point.graph, kernel, point.params, point.extents, H200)
    return source, compile_cubin(source.text, H200, name="k")
  except RejectionError as error:
    return error.rejection.code


def timed(point, source, cubin):
  """Median cold time, us."""
  gpu, rng = gpu_of(H200), np.random.default_rng(0)
  with gpu.scope():
    at = {}
    for name in source.args:
      tensor = point.graph.tensor(name)
      count = int(np.prod([point.extents[a] for a in tensor.axes]))
      values = rng.standard_normal(min(count, 1 << 20)) * 0.1
      at[name] = gpu.put(np.resize(values.astype(tensor.dtype.numpy), count))
    function = gpu.load(cubin, source.name, source.smem_bytes)
    replay = gpu.capture(lambda: gpu.launch_source(function, source, at))
    return float(np.median(gpu.time_us([replay], SAMPLES)[0]))


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--seconds", type=float, default=140.0)
  parser.add_argument("--points", type=int, default=20, help="of every kernel")
  parser.add_argument("--all", action="store_true", help="kernels of every family")
  parser.add_argument("names", nargs="*")
  options = parser.parse_args()
  deadline = time.monotonic() + options.seconds
  families = tuple(Family) if options.all else (Family.TILED,)
  points = [p for n in options.names or NAMES for p in points_of(n, options.points, families)]
  random.Random(0).shuffle(points)
  kernels = {}
  refused = {}
  with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
    for point, built in zip(points, pool.map(build, points, chunksize=2), strict=True):
      if isinstance(built, str):
        refused[built] = refused.get(built, 0) + 1
        continue
      if time.monotonic() > deadline:
        break
      us = timed(point, *built)
      kernels.setdefault(f"{point.program}/k{point.kernel}", []).append(
        (point.params.to_text(), round(point.predicted_us, 2), round(us, 2))
      )
    pool.shutdown(wait=False, cancel_futures=True)
  write_text(
    options.out / "tiled_sweep.json",
    json.dumps(facts() | {"refused": refused, "columns": COLUMNS, "kernels": kernels}) + "\n",
  )
  rows = []
  for name, found in sorted(kernels.items()):
    found.sort(key=lambda row: row[1])
    _, predicted, us = zip(*found, strict=True)
    rank = spearmanr(predicted, us)[0] if len(us) > 2 else np.nan
    rows.append((name, str(len(us)), f"{rank:.2f}", f"{us[0]:.1f}", f"{min(us[:8]):.1f}",
                 f"{min(us):.1f}"))  # fmt: skip
  head = ("kernel", "points", "rank", "first us", "of eight", "fastest")
  print_table("Tiled kernels at many numbers", head, rows)
  return 0


if __name__ == "__main__":
  sys.exit(main())
