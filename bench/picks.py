"""What two trees take of the numbers with wgmma, timed in one run: kernels in a row of a CUDA graph.

    python bench/picks.py --list POINTS.json [--keep 4]        what this tree takes, best first
    python3 bench/picks.py --time OUT.json POINTS.json ...     on a Hopper GPU: those of all lists

Of every case of ``warpgroup_products.py``, ``warpgroup_attention.py`` (none whose mask hides iterations: the
data here is no mask's), ``one_launch.py`` (``wide``: numbers for all columns together, in one launch), and of
products of packed weights at real sizes. Printed of each list: its first over the fastest of all (geometric
mean).
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from math import exp, log
from multiprocessing import get_context
from pathlib import Path

import one_launch
from kernel_times import Pool, hides_steps
from kernel_times import timed as in_a_row
from protocol import PROTOCOL, facts
from rankings import CHAINS, PRODUCTS, graph_of
from replay_record import FOLDER, read_group

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler import compile_cubin
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.superopt.warpgroup_numbers import warpgroup_points
from mirage_onnx.superopt.widened_numbers import widened_points
from mirage_onnx.target import H100
from mirage_onnx.tune.measure import gpu_of

#: Entries of the group hopper, and rows, depth and columns that they are given.
PACKED = ("4 bits", "zero points", "8 bits", "residual")
SIZES = ((64, 4096, 4096), (128, 4096, 14336), (512, 4096, 4096), (512, 14336, 4096))


@cache
def case_of(name):
  """(µGraph, its extents, those that numbers are looked for with)."""
  kind, _, name = name.partition("/")
  if kind == "packed":
    entry, _, sizes = name.rpartition(" ")
    rows, depth, columns = map(int, sizes.split("x"))
    graphs = {e.name: e.graph for e in read_group(FOLDER / "hopper.jsonl")}
    sizes = {"a0": columns, "a1": depth, "a2": rows}
    return parse_ugraph(graphs[f"hopper/{entry}.0"]), sizes, sizes
  if kind == "kernel":
    return *graph_of(name), graph_of(name)[1]
  rows, depth, columns, count = one_launch.CASES[name]
  sizes = {"a0": rows, "a1": depth, **{f"c{n}": columns for n in range(count)}}
  return one_launch.graph_of(count), sizes, {**sizes, "c0": columns * count}


def cases():
  packed = (f"packed/{name} {'x'.join(map(str, sizes))}" for name in PACKED for sizes in SIZES)
  kernels = (f"kernel/{n}" for n in (*PRODUCTS, *CHAINS))
  return [*kernels, *(f"wide/{n}" for n in one_launch.CASES), *packed]


def listed(keep):
  """Case -> numbers, best first."""
  found = {}
  for name in cases():
    graph, _, sizes = case_of(name)
    points = chained_points if name.partition("/")[2] in CHAINS else warpgroup_points
    points = widened_points if name.startswith("packed/") else points
    best = points(graph.kernels[0], {t.name: t for t in graph.tensors}, sizes, H100, keep)
    found[name] = [p.to_text() for _, p in best]
  return found


def build(job):
  """A case with numbers, compiled; or why not."""
  name, text = job
  graph, sizes, _ = case_of(name)
  params = KernelParams.from_text(text)
  extents = ugraph_extents(graph, (params,) * len(graph.kernels), sizes)
  try:
    if name.startswith("wide/"):
      beside = tuple(replace(params, beside=n > 0) for n in range(len(graph.kernels)))
      (source,) = emit_candidate(Candidate(graph, beside), sizes, H100, "k")
    else:
      if hides_steps(lowered(graph, graph.kernels[0], params, extents, H100)):
        return name, text, "a mask's data", None, None
      source = emit_kernel(graph, replace(graph.kernels[0], name="k"), params, extents, H100)
    return name, text, extents, source, compile_cubin(source.text, H100, name=source.name)
  except RejectionError as error:
    return name, text, str(error.rejection.code), None, None


def timed(lists):
  """Case -> numbers -> us, or why there is no time."""
  jobs = dict.fromkeys((name, text) for points in lists for name in points for text in points[name])
  found, gpu = {}, gpu_of(H100)
  pool = Pool(gpu)
  with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as workers:
    for name, text, extents, source, cubin in workers.map(build, jobs, chunksize=1):
      us = extents
      if source is not None:
        us = in_a_row(gpu, pool, case_of(name)[0], extents, source, cubin)
      found.setdefault(name, {})[text] = round(us, 3) if isinstance(us, float) else us
  return found


def first_over_fastest(points, times):
  """Of the first of each list that has a time, over the fastest of its case; 0 is none (nothing ran)."""
  logs = []
  for name, texts in points.items():
    known = {t: us for t, us in times.get(name, {}).items() if isinstance(us, float) and us > 0}
    first = next((known[t] for t in texts if t in known), None)
    if first is not None:
      logs.append(log(first / min(known.values())))
  return exp(sum(logs) / len(logs))


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--list", type=Path)
  parser.add_argument("--keep", type=int, default=4)
  parser.add_argument("--time", type=Path)
  parser.add_argument("lists", nargs="*", type=Path)
  options = parser.parse_args()
  if options.list:
    options.list.write_text(json.dumps(listed(options.keep), indent=1) + "\n")
  if options.time:
    lists = {p.stem: json.loads(p.read_text()) for p in options.lists}
    times = timed(lists.values())
    ratios = {n: round(first_over_fastest(points, times), 4) for n, points in lists.items()}
    record = facts() | {"protocol": PROTOCOL, "first_over_fastest": ratios, "lists": lists, "us": times}
    options.time.write_text(json.dumps(record, indent=1) + "\n")
    print(ratios)
  return 0


if __name__ == "__main__":
  sys.exit(main())
