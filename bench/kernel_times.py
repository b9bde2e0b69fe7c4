"""Each kernel of the replay's corpus on the present GPU: its time, what was predicted, what its threads do.

    python3 bench/kernel_times.py [--out DIR] [--seconds 400] [--points 2] [GROUP ...]

A cost model is fitted to such a record, and judged by it: measured over predicted, per kind of thread
graph. Beside the times stand the counts of the thread graph (``cost/counts.py``). ``--points``: each kernel
also with so many other numbers, further and further from what the model likes. Kernels are emitted and
compiled for the present GPU on all cores, timed cold (``Gpu.time_us``) alone in a CUDA graph, on data that
repeats; right or wrong is not asked here. Writes DIR/kernel_times.json.
"""

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from protocol import PROTOCOL, facts, print_table, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from replay_record import FOLDER, read_group

from mirage_onnx.codegen import compile_cubin, emit_kernel
from mirage_onnx.codegen.emit import touched_bytes
from mirage_onnx.cost.counts import BlockCounts, counts_of
from mirage_onnx.cost.model import features, kernel_cost
from mirage_onnx.cost.tiled_expected import expected_tiled_us
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.layouts import Family, assign_layouts
from mirage_onnx.superopt.numbers import solve
from mirage_onnx.superopt.tiled_numbers import solve_tiled, tiled_cost
from mirage_onnx.target import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

SAMPLES = 5
#: Memory of a kernel's tensors beyond which it is left out.
MOST_BYTES = 8 << 30
#: Places in the model's order between the numbers that ``--points`` takes.
APART = 12
COLUMNS = (
  "kernel", "kind", "params", "us", "counted_us", "expected_us", "dram_bytes", "registers",
  "spill_bytes", *BlockCounts.names(),
)  # fmt: skip


def every_kernel(groups, points):
  """(entry, number of the kernel, point), each text once: entries whose sizes a run knows are left out."""
  seen = set()
  for group in groups:
    for entry in read_group(FOLDER / f"{group}.jsonl"):
      for at, line in enumerate(entry.made):
        if not entry.runtime and line[:64].isalnum() and line[:64] not in seen:
          seen.add(line[:64])
          same = (entry.graph, at, *entry.extents.items())
          more = points if same not in seen else 0
          seen.add(same)
          yield from ((entry, at, point) for point in range(more + 1))


def other_numbers(kernel, tensors, extents, target, point):
  """The numbers that stand ``point * APART`` places behind the best, or none where there are not so many."""
  family, _ = assign_layouts(kernel, tensors, tiled=True)
  solver = solve_tiled if family is Family.TILED else solve
  found = solver(kernel, tensors, extents, target, keep=point * APART + 1)
  return found[-1][1] if len(found) > point * APART else None


def predicted(graph, kernel, params, extents, target):
  """(what the model that ranks says, what generated kernels are expected to take) in us."""
  tensors = {t.name: t for t in graph.tensors}
  family, _ = assign_layouts(kernel, tensors, tiled=True)
  if family is not Family.TILED:
    us = kernel_cost(features(kernel, tensors, extents), params, target).time_us
    return us, us
  cost = tiled_cost(kernel, tensors, extents, params, target)
  return cost.time_us if cost else None, expected_tiled_us(kernel, tensors, extents, params, target)


def build(target, work):
  """A kernel compiled for the GPU at hand, with what is known of it; or why there is none."""
  entry, at, point = work
  target = get_target(target)
  graph = parse_ugraph(entry.graph)
  numbers = [KernelParams.from_text(p) for p in entry.params]
  extents = ugraph_extents(graph, numbers, entry.extents)
  kernel = replace(graph.kernels[at], name="k")
  try:
    if point:
      tensors = {t.name: t for t in graph.tensors}
      params = other_numbers(graph.kernels[at], tensors, extents, target, point)
      if params is None:
        return "no other numbers"
      numbers[at] = params
      extents = ugraph_extents(graph, numbers, entry.extents)
    params = numbers[at]
    source = emit_kernel(graph, kernel, params, extents, target)
    threads = lowered(graph, kernel, params, extents, target)
    us = predicted(graph, graph.kernels[at], params, extents, target)
    moved = touched_bytes(graph, graph.kernels[at], extents)
    cubin = compile_cubin(source.text, target, name="k")
  except RejectionError as error:
    return str(error.rejection.code)
  except ZeroDivisionError:  # numbers that no solver gives
    return "no prediction"
  name = f"{entry.name}.k{at}" + f".p{point}" * bool(point)
  counts = asdict(counts_of(threads)).values()
  compiled = cubin.registers, cubin.spill_bytes
  row = (name, type(threads).__name__, params.to_text(), *us, moved, *compiled, *counts)
  return graph, extents, source, cubin, row


def timed(gpu, graph, extents, source, cubin):
  """Median cold time, us; None if its tensors are too large."""
  shapes = {n: int(np.prod([extents[a] for a in graph.tensor(n).axes])) for n in source.args}
  if sum(graph.tensor(n).dtype.bytes_of(count) for n, count in shapes.items()) > MOST_BYTES:
    return None
  rng, at = np.random.default_rng(0), {}
  with gpu.scope():
    for name, count in shapes.items():
      dtype = graph.tensor(name).dtype
      if dtype.is_packed:
        at[name] = gpu.put(np.zeros(dtype.bytes_of(count), np.uint8))
        continue
      values = rng.standard_normal(min(count, 1 << 20)) * 0.1
      at[name] = gpu.put(np.resize(values.astype(dtype.numpy), count))
    function = gpu.load(cubin, source.name, source.smem_bytes)
    replay = gpu.capture(lambda: gpu.launch_source(function, source, at))
    return float(np.median(gpu.time_us([replay], SAMPLES)[0]))


def summary(rows):
  """Of each kind: kernels, measured over expected (geometric mean), and within which factor 95 % are."""
  for kind in sorted({r[1] for r in rows}):
    ratio = np.log([r[3] / r[5] for r in rows if r[1] == kind and r[5]])
    if ratio.size:
      spread = np.quantile(np.abs(ratio), 0.95)
      yield kind, str(ratio.size), f"{np.exp(ratio.mean()):.2f}", f"{np.exp(spread):.2f}"


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--seconds", type=float, default=400.0)
  parser.add_argument("--points", type=int, default=0)
  parser.add_argument("groups", nargs="*")
  options = parser.parse_args()
  deadline, target = time.monotonic() + options.seconds, present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  gpu = gpu_of(target)
  work = list(every_kernel(options.groups or ("speed", "goldens", "programs", "models"), options.points))
  random.Random(0).shuffle(work)
  rows, left_out = [], {}
  with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
    for built in pool.map(partial(build, target.name), work, chunksize=2):
      if time.monotonic() > deadline:
        left_out["time"] = len(work) - len(rows) - sum(left_out.values())
        break
      try:
        us = built if isinstance(built, str) else timed(gpu, *built[:4]) or "too large"
      except Exception as error:  # of the driver: nothing more can be timed
        left_out[f"{built[4][0]}: {error}"] = len(work) - len(rows) - sum(left_out.values())
        break
      if isinstance(us, str):
        left_out[us] = left_out.get(us, 0) + 1
        continue
      name, kind, params, *rest = built[4]
      rows.append((name, kind, params, round(us, 3), *(round(x, 3) if x else x for x in rest)))
    pool.shutdown(wait=False, cancel_futures=True)
  rows.sort()
  record = facts() | {"protocol": PROTOCOL, "left_out": left_out, "columns": COLUMNS}
  lines = ",\n  ".join(json.dumps(r) for r in rows)
  text = json.dumps(record, indent=1)[:-2] + f',\n "kernels": [\n  {lines}\n ]\n}}\n'
  write_text(options.out / "kernel_times.json", text)
  head = ("kind", "kernels", "measured / expected", "95 % within")
  print_table("Kernels of the replay's corpus", head, list(summary(rows)))
  return 0


if __name__ == "__main__":
  sys.exit(main())
