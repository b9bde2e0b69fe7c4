"""Whole models for every architecture: of each region a program that compiles, fits and runs right reduced.

    python bench/every_gpu_models.py [--jobs 8] [--seconds 500] [--partition 80] [--search 4]
                                     [--state DIR] [--out OUT.json] [NAME ...]

Models of models/architectures/real.tar.xz, those of ../shared/whole if none is named. Each is partitioned
for an H200 with all its regions, as if ONNX Runtime had no kernels: what verifies is replaced, however slow.
Then, for every region that differs and every architecture's slowest row: the search, the first of what it
finds that compiles (a kernel that spills does not), its shared memory and registers, and a run in the
emulator, all checks on, at sizes reduced (``tune/emulated.py``), or, where that is too much, with small
numbers of the same program. What is in DIR is not done again, unless it was done by other source; a search
that found nothing in its time is. Models of OUT.json that are not named stay there, beside the run that
they are of. Exit 1 where anything is wrong, or a region has nothing that compiles.
"""

import argparse
import json
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from multiprocessing import Pool
from multiprocessing import TimeoutError as Late
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker is one core's work
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [
  str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "bench"), str(ROOT / "models" / "architectures")
]  # fmt: skip

import real_archive
from every_gpu import TRIED, WORK, first, is_badly_made, made_by, target_of
from facts import facts

from mirage_onnx import pipeline
from mirage_onnx.events import silent
from mirage_onnx.importer import load_model
from mirage_onnx.superopt.result import SearchBound, Stop
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import H200
from mirage_onnx.targets import ARCHITECTURES
from mirage_onnx.tune import emulated
from mirage_onnx.tune.emulated import EMULATED
from mirage_onnx.verify.prover import prover

#: The most seconds of a partition, which one core searches, and of a region's search for an architecture.
PARTITION_S, SEARCH_S = 80.0, 4.0


def regions_of(name):
  """The regions that differ of a model, as its partition for an H200 has them, by key; and how often."""
  with tempfile.TemporaryDirectory() as folder:
    options = pipeline.Options(H200, budget_s=PARTITION_S, workers=1, every=True, streamed=True)
    run = pipeline.run(load_model(real_archive.make(name, Path(folder))), options, silent)
  return {o.region.key: o.region for _, o in run.chosen}, run.counts()


def chosen(region, arch):
  """What is chosen of a region for an architecture, and how it runs."""
  target = target_of(arch)
  prove = prover(region, derived=True)
  found = search(region, target, prove, bound=SearchBound(), space=space_of(region), budget_s=SEARCH_S)
  candidates = [v.candidate for v in found.candidates][:TRIED]
  if not candidates and found.report.stop is Stop.BUDGET:
    return {"late": True}
  return first(region, candidates, target) | {"found": len(candidates)}


def answer(job):
  """The row of a job, however it ends."""
  name, arch, region = job
  row = {"region": name, "arch": arch, "source": made_by("golden")}
  try:
    return row | chosen(region, arch)
  except Exception:
    return row | {"crash": traceback.format_exc()[-1500:]}


def partition(name):
  """(name, regions and counts, or why there are none)."""
  try:
    return name, regions_of(name)
  except Exception:
    return name, traceback.format_exc()[-1500:]


def partitions(names, folder, pool, deadline):
  """Of each model its regions, those in the folder as they are."""
  path = folder / "regions.pkl"
  known = pickle.loads(path.read_bytes()) if path.is_file() else {}
  with suppress(Late):
    todo = pool.imap_unordered(partition, [n for n in names if n not in known])
    for _ in [n for n in names if n not in known]:
      name, found = todo.next(max(1.0, deadline - time.monotonic()))
      if isinstance(found, str):
        print(f"{name}: {found}", file=sys.stderr)
        continue
      known[name] = found
      path.write_bytes(pickle.dumps(known))
  return {n: known[n] for n in names if n in known}


def is_wrong(row):
  return "crash" in row or row["chosen"] is None or is_badly_made(row)


def summary(models, rows):
  """By model and architecture, what became of its regions."""
  table = {}
  for name, (regions, counts) in models.items():
    table[name] = {"regions": len(regions), "places": sum(counts[k] for k in regions), "rows": {}}
    for arch in ARCHITECTURES:
      own = [rows[k, arch] for k in regions if (k, arch) in rows]
      made = [r for r in own if r.get("chosen")]
      table[name]["rows"][arch] = {
        "done": len(own), "chosen": len(made),
        "reduced": sum(r["ran"] == EMULATED for r in made), "small": sum("small" in r for r in made),
        "not_run": sum("not_run" in r for r in made),
        "most_smem_bytes": max((r["smem_bytes"] for r in made), default=0),
        "most_registers": max((r["registers"] for r in made), default=0),
        "refused_before": dict(sum((Counter(r["refused"]) for r in own if "refused" in r), Counter())),
        "wrong": sum(map(is_wrong, own)),
      }  # fmt: skip
  return table


def beside(record, older):
  """A record with the models of an older one that are not in it, and the runs that those are of."""
  left = {n: m for n, m in older["by_model"].items() if n not in record["by_model"]}
  if not left:
    return record
  bad = any(c["wrong"] for m in left.values() for c in m["rows"].values())
  runs = [*older.get("earlier", ()), {k: older[k] for k in ("date", "command", "commit", "by_source")}]
  return record | {
    "earlier": runs, "by_model": left | record["by_model"],
    "wrong": (older["wrong"] if bad else []) + record["wrong"],
  }  # fmt: skip


def totals(by_model):
  """What a record says in short: regions of several models count once in each."""
  rows = [c for m in by_model.values() for c in m["rows"].values()]
  regions = sum(m["regions"] for m in by_model.values())
  return {
    "models": len(by_model), "regions": regions, "jobs": regions * len(ARCHITECTURES),
    "done": sum(c["done"] for c in rows), "chosen": sum(c["chosen"] for c in rows),
    "reduced": sum(c["reduced"] for c in rows), "small": sum(c["small"] for c in rows),
    "not_run": sum(c["not_run"] for c in rows), "wrong_rows": sum(c["wrong"] for c in rows),
  }  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
  parser.add_argument("--seconds", type=float, default=1e9)
  parser.add_argument("--partition", type=float, default=PARTITION_S, metavar="S", help="more where others")
  parser.add_argument("--search", type=float, default=SEARCH_S, metavar="S", help="take the cores")
  parser.add_argument("--state", type=Path, default=ROOT / "build" / "every_gpu_models")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "every_gpu_models.json")
  parser.add_argument(
    "--other-sources", action="store_true", help="rows made by other source stay, and are counted"
  )
  parser.add_argument("names", nargs="*")
  options = parser.parse_args()
  deadline = time.monotonic() + options.seconds
  vars(emulated).update(WORK)  # which workers inherit, as they do the seconds
  globals().update(PARTITION_S=options.partition, SEARCH_S=options.search)
  options.state.mkdir(parents=True, exist_ok=True)
  state = options.state / "rows.jsonl"
  kept = map(json.loads, state.read_text().splitlines()) if state.exists() else ()
  of_any = options.other_sources
  rows = {(r["region"], r["arch"]): r for r in kept if of_any or r["source"] == made_by("golden")}
  names = options.names or [n for n in real_archive.names() if n.startswith("whole_")]
  with Pool(options.jobs) as pool:
    models = partitions(names, options.state, pool, deadline)
    regions = {k: r for own, _ in models.values() for k, r in own.items()}
    jobs = [(k, a, r) for k, r in regions.items() for a in ARCHITECTURES if (k, a) not in rows]
    with suppress(Late), state.open("a") as file:
      answers = pool.imap_unordered(answer, jobs)  # at the end of the block what still runs is ended
      for _ in jobs:
        row = answers.next(max(1.0, deadline - time.monotonic()))
        if "late" not in row:
          rows[row["region"], row["arch"]] = row
          print(json.dumps(row), file=file, flush=True)
  wrong = [r for k, r in rows.items() if k[0] in regions and is_wrong(r)]
  record = {
    **facts(("numpy", "onnx", "nvidia-cuda-nvrtc")),
    "by_source": Counter(r["source"][:12] for k, r in rows.items() if k[0] in regions),
    "by_model": summary(models, rows), "wrong": wrong,
  }  # fmt: skip
  if options.out.is_file():
    record = beside(record, json.loads(options.out.read_text()))
  record |= totals(record["by_model"]) | {"of_models": len({*names, *record["by_model"]})}
  options.out.parent.mkdir(parents=True, exist_ok=True)
  options.out.write_text(json.dumps(record, indent=1) + "\n")
  print(json.dumps({k: v for k, v in record.items() if k != "by_model"}, indent=1))
  return int(bool(record["wrong"]) or record["done"] < record["jobs"])


if __name__ == "__main__":
  sys.exit(main())
