"""Kernels of the replay as several trees write them, on the present GPU: equal bit for bit, and their times.

    python bench/kernel_replay.py --write OLD      in the tree before, then NEW in the tree behind
    python3 bench/replay_texts.py --out FILE.json [--seconds 200] [--first FILE] [--part I/N] OLD NEW ...

Kernels whose texts differ between the folders, as many as the time allows: those named in ``--first`` (a line
each), then group by group, in an order by chance (the same each time). What FILE.json has is not timed again.
All of a kernel's texts run on the same tensors, what they write is filled with other bytes before, and they
are timed in turns, in rows of launches behind a flush of the L2; where one is slower or faster by more than
``APART`` twice more, and ``us`` is the least. A text that is refused (spills) has no time. Exit 1 if a result
differs. ``--dry``: built only, without a GPU.
"""

import argparse
import json
import os
import random
import re
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from kernel_replay import file_of
from kernel_times import Pool, in_a_row, timed_in_turns
from protocol import facts, write_text
from replay_record import read_record

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler import compile_cubin
from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.target import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

#: What stands in outputs before each run: no result of a kernel that has written nothing.
POISON = 0xAB
COLUMNS = ("kernel", "params", "equal", "us", "registers", "again")
#: Those of whole models before those by chance.
GROUPS = ("goldens", "models", "graphs", "speed", "programs", "hopper", "random")
APART = 1.04


def differing(folders, entries):
  """(name, entry, kernel, its texts) wherever every folder has one, and they are not all the same."""
  for entry in entries:
    for at in range(len(entry.made) if not entry.runtime else 0):
      files = [file_of(folder, entry, at) for folder in folders]
      texts = [f.read_text() for f in files if f.exists()]
      if len(texts) == len(folders) and len(set(texts)) > 1 and all("KERNEL(" in t for t in texts):
        yield f"{entry.name}.k{at}", entry, at, texts


def in_order(works, first, part):
  """Those to be timed: named ones, then by groups; of ``part`` "1/2" every second one, from the second on."""
  random.Random(0).shuffle(works)
  named = {name: n for n, name in enumerate(first)}
  works.sort(key=lambda w: (named.get(w[0], len(named)), GROUPS.index(w[1].group)))
  mine, parts = map(int, part.split("/"))
  return works[mine::parts]


def image_of(text, target):
  """(its function's name, the image), or the reason why there is none."""
  function = re.search(r"KERNEL\([^)]*\)\s+(\w+)\(", text)[1]
  try:
    return function, compile_cubin(text, target, name=function)
  except (MirageError, RejectionError) as refused:
    return str(refused)


def built(target_name, work):
  """(name, µGraph, extents, launch, image of each text, numbers); a text if none is possible."""
  name, entry, at, texts = work
  try:
    target, graph = get_target(target_name), parse_ugraph(entry.graph)
    numbers = [KernelParams.from_text(p) for p in entry.params]
    extents = ugraph_extents(graph, numbers, entry.extents)
    source = emit_kernel(graph, graph.kernels[at], numbers[at], extents, target)
  except (MirageError, RejectionError) as refused:
    return f"{name}: {refused}"
  images = {text: image_of(text, target) for text in dict.fromkeys(texts)}
  return name, graph, extents, source, [images[t] for t in texts], numbers[at].to_text()


def compared(gpu, pool, graph, extents, source, images):
  """(whether all results are equal, µs of each, further µs of each); None if the tensors are too large."""
  with in_a_row(gpu, pool, graph, extents, source) as given:
    if given is None:
      return None
    functions = [gpu.load(image, function, source.smem_bytes) for function, image in images]
    tensors = [graph.tensor(n) for n in source.args]
    written = [(t.name, t.bytes(extents)) for t in tensors if t.role in ("output", "temp")]
    results = []
    for function in functions:
      for name, size in written:
        gpu.write(given[0][name], np.full(size, POISON, np.uint8))
      gpu.launch_source(function, source, given[0])
      gpu.wait()
      results.append([gpu.get(given[0][name], (size,), np.dtype(np.uint8)) for name, size in written])
    equal = all(np.array_equal(a, b) for r in results[1:] for a, b in zip(results[0], r, strict=True))
    times = [timed_in_turns(gpu, given, source, functions)]
    if max(times[0]) > APART * min(times[0]):
      times += [timed_in_turns(gpu, given, source, functions) for _ in range(2)]
    return equal, [min(t) for t in zip(*times, strict=True)], times[1:]


def record_of(about, differ, rows, left):
  """The text of a record, a kernel a line."""
  head = json.dumps(about | {"differ": differ, "columns": COLUMNS, "left": left}, indent=1)
  lines = ",\n  ".join(json.dumps(r) for r in sorted(rows))
  return head[:-2] + f',\n "kernels": [\n  {lines}\n ]\n}}\n'


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folders", nargs="+", type=Path)
  parser.add_argument("--out", type=Path, required=True)
  parser.add_argument("--seconds", type=float, default=200)
  parser.add_argument("--first", type=Path)
  parser.add_argument("--part", default="0/1")
  parser.add_argument("--dry", action="store_true")
  options = parser.parse_args()
  end = time.monotonic() + options.seconds
  first = options.first.read_text().split() if options.first else []
  works = in_order(list(differing(options.folders, read_record())), first, options.part)
  kept = json.loads(options.out.read_text()) if options.out.exists() else {"kernels": [], "left": []}
  rows, left, differ = kept["kernels"], kept["left"], len(works)
  works = [w for w in works if w[0] not in {r[0] for r in rows}]
  print(f"{len(works)} of {differ} kernels that differ are left")
  target = "h100" if options.dry else present_target().name
  gpu = None if options.dry else gpu_of(present_target())
  about = {} if options.dry else facts()
  pool = Pool(gpu)
  builders = ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"))
  for made in builders.map(built, [target] * len(works), works):
    if time.monotonic() > end:
      break
    if isinstance(made, str):
      left.append(made)
      continue
    name, graph, extents, source, images, params = made
    left += [f"{name}: {i}" for i in images if isinstance(i, str)]
    different = list(dict.fromkeys(i for i in images if not isinstance(i, str)))
    if not different:
      continue
    registers = [None if isinstance(i, str) else i[1].registers for i in images]
    found = (None, [], []) if options.dry else compared(gpu, pool, graph, extents, source, different)
    if found is None:
      left.append(f"{name}: its tensors are too large")
      continue
    equal, *times = found

    def each(us, different=different, images=images):
      by = dict(zip(different, us, strict=False))
      return [None if i not in by else round(by[i], 2) for i in images]

    rows.append([name, params, equal, each(times[0]), registers, [each(t) for t in times[1]]])
    print(*rows[-1], flush=True)
    write_text(options.out, record_of(about, differ, rows, left))
  builders.shutdown(wait=False, cancel_futures=True)
  raise SystemExit(any(r[2] is False for r in rows))


if __name__ == "__main__":
  main()
