"""Kernels of the replay as several trees write them, on the present GPU: equal bit for bit, and their times.

    python bench/kernel_replay.py --write OLD      in the tree before, then NEW in the tree behind
    python3 bench/replay_texts.py --out FILE.json [--seconds 200] OLD NEW ...

Kernels whose texts differ between the folders, in an order by chance (the same each time), as many as the
time allows. All of a kernel's texts run on the same tensors, what they write is filled with other bytes
before, and they are timed in turns, in rows of launches behind a flush of the L2. A text that is refused
(spills) is named with the reason. Exit 1 if a result differs. ``--dry``: built only, without a GPU.
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
COLUMNS = ("kernel", "params", "equal", "us", "registers")


def differing(folders, entries):
  """(entry, kernel, its texts) wherever every folder has one, and they are not all the same."""
  for entry in entries:
    for at in range(len(entry.made) if not entry.runtime else 0):
      files = [file_of(folder, entry, at) for folder in folders]
      texts = [f.read_text() for f in files if f.exists()]
      if len(texts) == len(folders) and len(set(texts)) > 1 and all("KERNEL(" in t for t in texts):
        yield entry, at, texts


def built(target_name, work):
  """(name, µGraph, extents, launch, functions' names and images, numbers); a text if one is refused."""
  entry, at, texts = work
  name = f"{entry.name}.k{at}"
  try:
    target, graph = get_target(target_name), parse_ugraph(entry.graph)
    numbers = [KernelParams.from_text(p) for p in entry.params]
    extents = ugraph_extents(graph, numbers, entry.extents)
    source = emit_kernel(graph, graph.kernels[at], numbers[at], extents, target)
    functions = [re.search(r"KERNEL\([^)]*\)\s+(\w+)\(", text)[1] for text in texts]
    images = [compile_cubin(t, target, name=f) for t, f in zip(texts, functions, strict=True)]
  except (MirageError, RejectionError) as refused:
    return f"{name}: {refused}"
  return name, graph, extents, source, list(zip(functions, images, strict=True)), numbers[at].to_text()


def compared(gpu, pool, graph, extents, source, images):
  """(whether all results are equal, µs of each); None if the tensors are too large."""
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
    return equal, timed_in_turns(gpu, given, source, functions)


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
  parser.add_argument("--dry", action="store_true")
  options = parser.parse_args()
  end = time.monotonic() + options.seconds
  works = list(differing(options.folders, read_record()))
  random.Random(0).shuffle(works)
  print(f"{len(works)} kernels differ")
  target = "h100" if options.dry else present_target().name
  gpu = None if options.dry else gpu_of(present_target())
  about = {} if options.dry else facts()
  pool, rows, left = Pool(gpu), [], []
  with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as builders:
    for made in builders.map(built, [target] * len(works), works):
      if time.monotonic() > end:
        break
      if isinstance(made, str):
        left.append(made)
        continue
      name, graph, extents, source, images, params = made
      registers = [image.registers for _, image in images]
      found = (None, []) if options.dry else compared(gpu, pool, graph, extents, source, images)
      if found is None:
        left.append(f"{name}: its tensors are too large")
        continue
      rows.append([name, params, found[0], [round(us, 2) for us in found[1]], registers])
      print(*rows[-1], flush=True)
      write_text(options.out, record_of(about, len(works), rows, left))
    builders.shutdown(wait=False, cancel_futures=True)
  raise SystemExit(any(r[2] is False for r in rows))


if __name__ == "__main__":
  main()
