"""Tiled kernels at many numbers on a GPU: how well the search's cost and the formula rank them.

    python bench/tiled_sweep.py --list POINTS.json [--keep 24] [--programs FILE.jsonl] [GROUP ...]
    python3 bench/tiled_sweep.py --time OUT.json [--seconds 400] POINTS.json ...     (on a GPU)
    python bench/tiled_sweep.py --judge RECORD.json ...                               (by this tree's costs)

``--list``: of each tiled kernel of the replay's corpus (numbers with wgmma are of ``picks.py``) the numbers
that the search's cost (``cost/tiled.py``) puts first, those that the formula of thread graphs
(``cost/kernel_time.py``) does, and some others. ``--programs``: a file of programs with numbers (entries
of the replay), all of whose kernels are timed, too. ``--time``: compiled on all cores, timed in a row of a
CUDA graph (``kernel_times.py``), the first of every list first, until the seconds have passed; what OUT.json
has is not timed again. ``--judge``: of the kernels with several times how much longer the first of each
ranking took than the fastest, and how far times are off. Right or wrong is not asked here:
``golden_kernels.py`` does.
"""

import argparse
import json
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from math import exp, inf, log, sqrt
from multiprocessing import get_context
from pathlib import Path

from kernel_times import Pool, hides_steps
from kernel_times import timed as in_a_row
from protocol import facts, print_table, write_text
from replay_record import FOLDER, read_group
from scipy.stats import spearmanr

from mirage_onnx.codegen import emit_kernel
from mirage_onnx.compiler import compile_cubin
from mirage_onnx.cost.kernel_time import lowered_us
from mirage_onnx.cost.model import features, kernel_cost
from mirage_onnx.errors import RejectionError
from mirage_onnx.instructions import MMA
from mirage_onnx.ir import KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.lower.choice import lowered
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.superopt.tiled_numbers import solve_tiled, tiled_cost
from mirage_onnx.target import H100, get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import gpu_of

GROUPS = ("goldens", "speed", "programs", "models")
#: Of a kernel: points that the search's cost puts first, and of those up to ``FAR`` times as long so many
#: others, that the formula ranks; points of neither list.
RANKED, FAR, OTHERS = 300, 4.0, 8


def tiled_kernels(groups):
  """Name -> what is known of a tiled kernel of the corpus, each once."""
  found, seen = {}, set()
  for group in groups:
    for entry in read_group(FOLDER / f"{group}.jsonl"):
      graph = parse_ugraph(entry.graph)
      tensors = {t.name: t for t in graph.tensors}
      for at, kernel in enumerate(graph.kernels):
        same = (entry.graph, at, *sorted(entry.extents.items()))
        tiled = lay_out(kernel, tensors).family is Family.TILED
        by_mma = KernelParams.from_text(entry.params[at]).instruction == MMA.name
        if not entry.runtime and tiled and by_mma and same not in seen:
          seen.add(same)
          found[f"{entry.name}.k{at}"] = kernel_of(entry.graph, at, entry.extents, entry.params)
  return found


def kernel_of(graph, at, extents, numbers):
  return {"graph": graph, "at": at, "extents": dict(extents), "numbers": list(numbers), "lists": {}}


def placed(own, text):
  """(graph, its kernel, extents, numbers) of a kernel that is known, with other numbers."""
  graph = parse_ugraph(own["graph"])
  numbers = [KernelParams.from_text(p) for p in own["numbers"]]
  numbers[own["at"]] = params = KernelParams.from_text(text)
  return graph, graph.kernels[own["at"]], ugraph_extents(graph, numbers, own["extents"]), params


def formula_us(own, text, target=H100):
  graph, kernel, extents, params = placed(own, text)
  try:
    return lowered_us(graph, kernel, extents, params, target)
  except ZeroDivisionError:
    return inf


def search_us(own, text, target=H100):
  """What the search says; infinite where it says that these numbers do not fit."""
  graph, kernel, extents, params = placed(own, text)
  tensors = {t.name: t for t in graph.tensors}
  if lay_out(kernel, tensors).family is Family.TILED:
    cost = tiled_cost(kernel, tensors, extents, params, target)
    return cost.time_us if cost else inf
  return kernel_cost(features(kernel, tensors, extents), params, target).time_us


def points_of(keep, job):
  """A kernel with its lists: by the search, by the formula, others."""
  name, own = job
  graph, kernel, extents, _ = placed(own, own["numbers"][own["at"]])
  tensors = {t.name: t for t in graph.tensors}
  every = solve_tiled(kernel, tensors, extents, H100, keep=3000)
  near = [p.to_text() for c, p in every if c.time_us <= FAR * every[0][0].time_us]
  drawn, rest = random.Random(name), near[RANKED:]
  ranked = near[:RANKED] + drawn.sample(rest, min(len(rest), RANKED))
  said = {p: formula_us(own, p) for p in ranked}
  best = sorted((p for p in ranked if said[p] < inf), key=lambda p: (said[p], p))
  first, formula = near[:keep], best[:keep]
  others = [p for p in best if p not in {*first, *formula}]
  lists = {"search": first, "formula": formula, "others": drawn.sample(others, min(len(others), OTHERS))}
  return name, own | {"lists": lists}


def listed(groups, keep, programs):
  """Every kernel with its lists; those of ``programs`` with their own numbers."""
  found = {}
  for path in programs:
    for entry in read_group(path):
      for at, text in enumerate(entry.params):
        own = kernel_of(entry.graph, at, entry.extents, entry.params)
        found[f"{entry.name}.k{at}"] = own | {"lists": {"program": [text]}}
  with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
    found |= pool.map(partial(points_of, keep), tiled_kernels(groups).items())
  return found


def build(target, job):
  """A kernel with numbers, compiled; or why not."""
  name, own, text = job
  try:
    graph, kernel, extents, params = placed(own, text)
    kernel, target = replace(kernel, name="k"), get_target(target)
    if hides_steps(lowered(graph, kernel, params, extents, target)):
      return name, text, "a mask's data", None, None, None
    source = emit_kernel(graph, kernel, params, extents, target)
    return name, text, source, compile_cubin(source.text, target, name="k"), graph, extents
  except RejectionError as error:
    return name, text, str(error.rejection.code), None, None, None
  except Exception as error:  # numbers that no solver gives
    return name, text, type(error).__name__, None, None, None


def jobs_of(kernels, done):
  """(name, kernel, numbers): programs first, then the first of every list, then the second ones."""
  lists = ((n, texts) for n, own in kernels.items() for texts in own["lists"].values() if texts)
  columns = [[(n, text) for text in texts] for n, texts in lists]
  columns.sort(key=lambda column: "program" not in "".join(kernels[column[0][0]]["lists"]))
  seen = set()
  for name, text in (job for turn in zip_longest(*columns) for job in turn if job):
    own = kernels[name]
    parts = *own["extents"].items(), *own["numbers"][: own["at"]]
    same = (own["graph"], own["at"], *parts, text)
    if same not in seen and text not in done.get(name, {}):
      seen.add(same)
      yield name, own, text


def time_all(out, lists, seconds):
  """Kernel -> numbers -> us or why there is no time, written as it grows."""
  deadline, target = time.monotonic() + seconds, present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  known = read(out) if out.exists() else {}
  found = {name: own.pop("us") for name, own in known.items()}
  kernels = {}
  for path in lists:
    for name, own in json.loads(path.read_text()).items():
      lists_of = {f"{path.stem}.{k}": v for k, v in own["lists"].items()}
      before = kernels.setdefault(name, own | {"lists": known.get(name, {}).get("lists", {})})
      before["lists"] = before["lists"] | lists_of
  gpu, jobs = gpu_of(target), list(jobs_of(kernels, found))
  memory, left, written = Pool(gpu), 0, time.monotonic()
  with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
    for n, (name, text, source, cubin, *where) in enumerate(pool.map(partial(build, target.name), jobs)):
      if time.monotonic() > deadline:
        left = len(jobs) - n
        break
      us = source
      try:
        if cubin is not None:
          us = in_a_row(gpu, memory, *where, source, cubin)
      except Exception as error:  # of the driver: nothing more can be timed by this process
        us, deadline = f"fault: {error}"[:60], 0.0
      found.setdefault(name, {})[text] = round(us, 3) if isinstance(us, float) else us
      if time.monotonic() > written + 30:
        written = time.monotonic()
        save(out, known | kernels, found, len(jobs) - n)
    pool.shutdown(wait=False, cancel_futures=True)
  save(out, known | kernels, found, left)
  if deadline == 0.0:
    print(f"a fault at {name}: {text}; the next run goes on without it")
  return 2 * (deadline == 0.0)


def save(out, kernels, us, left):
  """A kernel a line."""
  head = json.dumps(facts() | {"left": left}, indent=1)[:-2]
  lines = (f"  {json.dumps(n)}: {json.dumps(own | {'us': us.get(n, {})})}" for n, own in kernels.items())
  write_text(out, head + ',\n "kernels": {\n' + ",\n".join(lines) + "\n }\n}\n")


def read(path):
  """Name -> a kernel of a record, with its times under ``us``; what a kept record lacks, the corpus has."""
  kernels = json.loads(path.read_text())["kernels"]
  if any("graph" not in own for own in kernels.values()):
    corpus = tiled_kernels((*GROUPS, "hopper"))
    kernels = {n: corpus[n] | own for n, own in kernels.items() if n in corpus}
  return kernels


def judged(job):
  """(name, {numbers: us}, what the search says of them, what the formula does)."""
  name, own = job
  us = {p: t for p, t in own["us"].items() if isinstance(t, float) and t > 0}
  return name, us, {p: search_us(own, p) for p in us}, {p: formula_us(own, p) for p in us}


def off(us, said):
  """(first over fastest, rank correlation, logarithms of measured over said) of a kernel."""
  some = [p for p in us if said[p] < inf]
  if not some:
    return inf, -1.0, []
  first = min(some, key=lambda p: (said[p], p))
  rank = spearmanr([said[p] for p in some], [us[p] for p in some])[0] if len(some) > 2 else 1.0
  return us[first] / min(us.values()), rank, [log(us[p] / said[p]) for p in some]


def judge(paths, names):
  """Prints how both rankings do."""
  kernels = {f"{p.stem}/{n}": own for p in paths for n, own in read(p).items() if len(own["us"]) > 1}
  jobs = [(n, own) for n, own in kernels.items() if not names or any(x in n for x in names)]
  with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
    every = [(n, us, off(us, a), off(us, b)) for n, us, a, b in pool.map(judged, jobs) if len(us) > 1]
  rows = [
    [n, str(len(us)), f"{min(us.values()):.1f}", *(f"{x:.2f}" for ranking in rankings for x in ranking[:2])]
    for n, us, *rankings in sorted(every, key=lambda e: -e[2][0])
  ]
  head = ("kernel", "points", "fastest", "search: first", "rank", "formula: first", "rank")
  print_table("Tiled kernels at many numbers", head, rows)
  for at, name in ((2, "search"), (3, "formula")):
    firsts = [log(e[at][0]) for e in every if e[at][0] < inf]
    logs = [x for e in every for x in e[at][2]]
    spread = exp(sqrt(sum(x * x for x in logs) / len(logs)))
    mean, worst = exp(sum(firsts) / len(firsts)), exp(max(firsts))
    print(f"{name}: first over fastest {mean:.3f} of {len(firsts)} kernels, worst {worst:.2f}", end="; ")
    print(f"measured over said {exp(sum(logs) / len(logs)):.3f}, off {spread:.2f} of {len(logs)} points")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--list", type=Path)
  parser.add_argument("--keep", type=int, default=24)
  parser.add_argument("--programs", type=Path, action="append", default=[])
  parser.add_argument("--time", type=Path)
  parser.add_argument("--seconds", type=float, default=400.0)
  parser.add_argument("--judge", action="store_true")
  parser.add_argument("names", nargs="*")
  options = parser.parse_args()
  if options.list:
    found = listed(options.names or GROUPS, options.keep, options.programs)
    options.list.write_text(json.dumps(found) + "\n")
    print(f"{len(found)} kernels, {sum(len(t) for o in found.values() for t in o['lists'].values())} points")
  elif options.time:
    return time_all(options.time, list(map(Path, options.names)), options.seconds)
  elif options.judge:
    paths = [Path(n) for n in options.names if n.endswith(".json")]
    judge(paths, [n for n in options.names if not n.endswith(".json")])
  return 0


if __name__ == "__main__":
  sys.exit(main())
