"""The rows of the speed table with limits and features of older GPUs, on the present one: right, how slow.

    python3 bench/streaming_rows.py --prepare FILE [--target h100] [--seconds 900] [ROW ...]      (no GPU)
    python3 bench/streaming_rows.py FILE --out OUT.json [--seconds 180] [ROW ...]

``--prepare``: of every row (``cases.py``; ``llama_mlp.b1``) the regions that are replaced for the target, and
of each, searched with its own features and with those of sm_80 and sm_89 (``feature_sets.py``), the best
programs, as text. Nothing of a FILE is believed: regions are made of the row's model again, and programs that
are not proven for theirs are left out. What remains is compiled for the present GPU, for the others without
its own instructions, compared with float64 and timed, all interleaved. A row takes what its regions' best
programs take together. Rows that OUT.json has, made by the same source, are not timed again. Exit 1 where a
program is wrong, or a row that streams took more than ``GOAL`` times as long as with the GPU's own features.
"""

import argparse
import json
import lzma
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pool
from multiprocessing import TimeoutError as Late
from pathlib import Path

import numpy as np
import onnx
from cases import ROWS
from feature_sets import GOAL, SEARCH_S, best_of, bytes_of, measured, with_features
from protocol import facts, print_table, write_text

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import Candidate, KernelParams, parse_ugraph, print_ugraph
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import PREDICTED
from mirage_onnx.pipeline import HOPELESS, Options, run
from mirage_onnx.source_digest import SEARCH_SOURCES, source_digest
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.gpu_arrays import gpu_arrays
from mirage_onnx.tune.measure import gpu_of
from mirage_onnx.tune.oracle import draw
from mirage_onnx.tune.predict import expected_us
from mirage_onnx.verify.equivalence import Proof
from mirage_onnx.verify.prover import prover
from mirage_onnx.verify.weights import sample_weights

ARCHES = ("sm_80", "sm_89")
#: Programs of a set of features that are kept, that are timed (as many as ``optimize`` tries of a region);
#: seconds of a row's partition.
KEPT, TIMED, PARTITION_S = 12, 8, 40.0
#: Rows of many queries: their time is products, not reading. They are timed last, and not held to the goal.
MANY_QUERIES = ("attention.q256", "qknorm.q64")
#: Sizes that the table names come before those that nothing was tuned for.
NAMES = [f"{r}.{label}" for nearby in (False, True) for r, row in ROWS.items()
         for label in (row.nearby if nearby else row.sizes)]  # fmt: skip
NAMES.sort(key=MANY_QUERIES.__contains__)


def case_of(name):
  row, label = name.split(".")
  return ROWS[row].make(**(ROWS[row].sizes | ROWS[row].nearby)[label])


def loaded_of(case):
  return load_model(onnx.ModelProto.FromString(case.model.SerializeToString()))


def targets_of(target):
  """Sets of features by name, the GPU's own first."""
  return {"own": target} | {a: with_features(target, a) for a in ARCHES}


def partition(name, target):
  """Key -> region of what is replaced in a row's model, by prediction; key -> how often.

  Where that is little of what the row reads: of what would be timed, which is more of it.
  """
  case = case_of(name)
  options = Options(target, budget_s=PARTITION_S, workers=1)
  runs = [run(loaded_of(case), replace(options, margin=m)) for m in (0.0, HOPELESS)]
  predicted, all_timed = (sum(bytes_of(o.region) for _, o in r.chosen) for r in runs)
  found = runs[0] if 2 * predicted >= all_timed else runs[1]
  return {o.region.key: o.region for _, o in found.chosen}, found.counts()


def regions_again(loaded, keys):
  """The regions of these keys, made of the model."""
  found = {c.region.key: c.region for c in find_candidates(import_model(loaded), PREDICTED).candidates}
  return {k: found[k] for k in keys}


def programs(region, target):
  """The best programs for a region and a target, as text: by predictions and by the search, in turn."""
  prove, space = prover(region, derived=True), space_of(region)
  found = search(region, target, prove, bound=SearchBound(), space=space, budget_s=SEARCH_S)
  ranked = [v.candidate for v in found.candidates]
  expected = sorted(ranked, key=lambda c: expected_us(region, c, target))
  kept = list(dict.fromkeys(c for pair in zip(expected, ranked, strict=True) for c in pair))[:KEPT]
  return [
    {"ugraph": print_ugraph(c.ugraph), "params": [p.to_text() for p in c.params], "us": c.predicted_us}
    for c in kept
  ]


def prepared_row(name, target):
  """What is timed of a row."""
  regions, counts = partition(name, target)
  return [
    {
      "key": key, "count": counts[key], "nodes": list(region.nodes),
      "sets": {w: programs(region, t) for w, t in targets_of(target).items()},
    }
    for key, region in regions.items()
  ]  # fmt: skip


def _prepared(job):
  return job[0], prepared_row(*job)


def prepare(path, target, names, deadline, jobs):
  """Adds rows to a file until the deadline; 1 where some are missing."""
  kept = read(path) if path.is_file() else {"target": target.name, "rows": {}}
  if kept["target"] != target.name:
    sys.exit(f"{path} is for {kept['target']}")
  todo = [n for n in names if n not in kept["rows"]]
  with Pool(min(jobs, len(todo) or 1)) as pool, suppress(Late):  # at its end what still runs is ended
    rows = pool.imap_unordered(_prepared, [(n, target) for n in todo])
    for _ in todo:
      name, row = rows.next(max(1.0, deadline - time.monotonic()))
      kept["rows"][name] = row
      path.write_bytes(lzma.compress(json.dumps(kept).encode()))
      found = [f"{len(r['nodes'])} nodes: {[len(p) for p in r['sets'].values()]}" for r in row]
      print(name, *found, flush=True)
  missing = [n for n in names if n not in kept["rows"]]
  print(f"{len(kept['rows'])} rows; missing: {missing or 'none'}")
  return int(bool(missing))


def read(path):
  return json.loads(lzma.decompress(path.read_bytes()))


def candidates_of(region, entries):
  """The programs of a file that are proven for a region."""
  prove = prover(region, derived=True)
  made = [
    Candidate(parse_ugraph(e["ugraph"]), tuple(map(KernelParams.from_text, e["params"])), e["us"])
    for e in entries
  ]
  return [c for c in made if isinstance(prove(region, c.ugraph, c.params), Proof)]


def compiled_of(job):
  """Regions of a row with what is timed of each: key -> name of the set -> compiled; the refusals."""
  name, entries, target = job
  loaded = loaded_of(case_of(name))
  regions, found, refused = regions_again(loaded, [e["key"] for e in entries]), {}, Counter()
  for e in entries:
    region = regions[e["key"]]
    found[e["key"]] = {}
    for which, t in targets_of(target).items():
      candidates = candidates_of(region, e["sets"][which])
      done, bad = compile_candidates(region, candidates, t, keep=TIMED)
      found[e["key"]][which] = done
      refused.update(r.code for r in bad)
  return regions, found, dict(refused)


def drawn_of(name, regions):
  """Inputs of every region with its oracle."""
  loaded, xp = loaded_of(case_of(name)), gpu_arrays() or np
  return {k: draw(r, sample_weights(loaded, r), np.random.default_rng(0), xp) for k, r in regions.items()}


def timed_row(gpu, name, entries, made, values):
  """The record of a row."""
  regions, compiled, refused = made
  row = {"row": name, "refused": refused, "regions": []}
  for e in entries:
    found = measured(gpu, regions[e["key"]], compiled[e["key"]], values[e["key"]])
    best = best_of(found)
    row["regions"].append({k: e[k] for k in ("key", "count", "nodes")} | {"best_us": best, **found})
  parts = row["regions"]
  total = lambda of: round(sum(p["count"] * of(p) for p in parts), 3)  # noqa: E731
  row["limit_us"] = total(lambda p: p["limit_us"])
  row["us"] = {w: total(lambda p, w=w: p["best_us"][w] or np.inf) for w in ("own", *ARCHES)}
  row["slower"] = {a: round(row["us"][a] / row["us"]["own"], 3) for a in ARCHES}
  row["wrong"] = sum(not p["right"] for r in parts for ps in r["sets"].values() for p in ps)
  return row


def line(row):
  cells = [f"{us:.1f}" for us in (row["limit_us"], *row["us"].values())]
  return [row["row"], *cells, *(f"{x:.2f}" for x in row["slower"].values()), str(row["wrong"])]


def timed(path, out, names, deadline, jobs):
  """Times rows until the deadline, and writes and prints the table."""
  target = present_target()
  if target is None:
    sys.exit("there is no GPU here that kernels are made for")
  kept, source = read(path)["rows"], source_digest("codegen", "instructions", *SEARCH_SOURCES)
  record = facts() | {"goal": GOAL, "source": source, "rows": []}
  if out.is_file() and (old := json.loads(out.read_text()))["source"] == source:
    record["rows"] = old["rows"]
  there = {r["row"] for r in record["rows"]}
  todo, gpu = [n for n in names if n in kept and n not in there], gpu_of(target)
  with ProcessPoolExecutor(jobs) as pool, ThreadPoolExecutor(2) as threads:
    made = {n: pool.submit(compiled_of, (n, kept[n], target)) for n in todo}
    values = {n: threads.submit(lambda n=n: drawn_of(n, made[n].result()[0])) for n in todo}
    for name in todo:
      if time.monotonic() > deadline:
        record.setdefault("left_out", []).append(name)
        continue
      try:
        row = timed_row(gpu, name, kept[name], made[name].result(), values.pop(name).result())
      except (RejectionError, KeyError) as error:
        record.setdefault("not_measured", {})[name] = f"{type(error).__name__}: {error}"
        continue
      print("  ".join(line(row)), flush=True)
      record["rows"].append(row)
      write_text(out, json.dumps(record, indent=1) + "\n")
    for job in (*made.values(), *values.values()):
      job.cancel()
  write_text(out, json.dumps(record, indent=1) + "\n")
  head = ("row", "limit", "own", *ARCHES, *(f"{a}/own" for a in ARCHES), "wrong")
  print_table("Rows with the features of other architectures, us", head, [line(r) for r in record["rows"]])
  held = [r for r in record["rows"] if r["row"] not in MANY_QUERIES]
  beyond = [r["row"] for r in held if max(r["slower"].values()) > GOAL]
  print(f"beyond {GOAL}x: {beyond or 'none'}")
  return int(bool(beyond) or any(r["wrong"] for r in record["rows"]))


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("file", type=Path)
  parser.add_argument("--prepare", action="store_true", help="write FILE: needs no GPU")
  parser.add_argument("--target", default="h100", help="with --prepare: whose rates")
  parser.add_argument("--out", type=Path, default=Path("streaming_rows.json"))
  parser.add_argument("--seconds", type=float, default=180.0)
  parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
  parser.add_argument("rows", nargs="*", metavar="ROW")
  options = parser.parse_args()
  deadline, names = time.monotonic() + options.seconds, options.rows or NAMES
  if options.prepare:
    return prepare(options.file, get_target(options.target), names, deadline, options.jobs)
  return timed(options.file, options.out, names, deadline, options.jobs)


if __name__ == "__main__":
  sys.exit(main())
