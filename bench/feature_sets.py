"""Programs lowered with the limits and features of other architectures, on the present GPU: right, how long.

    python3 bench/feature_sets.py --out OUT.json [--arch sm_80 --arch sm_89] [--seconds 140] [NAME ...]
    python3 bench/feature_sets.py --without-gpu h100 --prepared FILE [NAME ...]      (search, compilation)
    python3 bench/feature_sets.py --prepared FILE --out OUT.json      (what that left in FILE is only timed)

For each program of tests/support/search_programs.py and each architecture the search runs with its limits
and features (shared memory, threads, no clusters, no dependent launch, no warpgroup products) and the
present GPU's size and rates; the best programs found and the golden one are compiled for the present GPU
without its own instructions, compared with float64, and timed beside what the search finds for the GPU
itself, all interleaved (``protocol.py``). Programs that stream most come first; those that OUT.json has
already, made by the same source, are not timed again. Exit 1 where one is wrong.
"""

import argparse
import json
import lzma
import os
import pickle
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from math import prod
from multiprocessing import Pool
from multiprocessing import TimeoutError as Late
from pathlib import Path

import numpy as np
from golden_kernels import numbered, usual_weights
from protocol import facts, print_table, statistics, streaming_limit, write_text

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from golden_graphs import NAMES, golden_graph
from search_programs import PROGRAMS

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.source_digest import SEARCH_SOURCES, source_digest
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search import search
from mirage_onnx.superopt.space import space_of
from mirage_onnx.target import get_target
from mirage_onnx.targets import ARCHITECTURES
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.prover import prover

#: Candidates that are timed of each set of features: of the search, and of the golden program.
SEARCHED, GOLDEN, SAMPLES = 4, 1, 9
#: Candidates that are compiled until so many do, and the seconds of a search.
TRIED, SEARCH_S = 30, 8.0
#: A program streams whose bytes take at least this share of its time on the GPU's own features.
STREAMS = 0.5
#: Bytes from which on reading them is most of a program's time.
MUCH = 16e6
#: In which the others are to be at most so many times slower.
GOAL = 1.35


def with_features(target, arch):
  """``target`` as a GPU of another architecture would be, compiled for what it is."""
  a = ARCHITECTURES[arch]
  plain = f"sm_{target.capability[0]}{target.capability[1]}"
  return replace(
    target, name=f"{target.name}_as_{arch}", arch=plain, sm_threads=a.sm_threads, sm_blocks=a.sm_blocks,
    smem_bytes=a.smem_bytes, smem_per_sm_bytes=a.smem_per_sm_bytes, has_clusters=a.has_clusters,
    max_cluster=a.max_cluster, has_pdl=a.has_pdl, instructions=a.instructions,
  )  # fmt: skip


def bytes_of(region):
  tensors = (*region.inputs, *region.outputs)
  return sum(prod(region.extents[a] for a in t.axes) * t.dtype.size_bytes for t in tensors)


def order(name):
  """Programs that read much first, those soonest whose inputs are soonest drawn."""
  size = bytes_of(PROGRAMS[name]())
  return (0, size) if size >= MUCH else (1, -size)


def candidates_of(name, target):
  """What the search finds for a target, best first, and the golden program with the best numbers."""
  region = PROGRAMS[name]()
  prove, space = prover(region, derived=True), space_of(region)
  found = search(region, target, prove, bound=SearchBound(), space=space, budget_s=SEARCH_S)
  searched = [v.candidate for v in found.candidates][:TRIED]
  graph = golden_graph(name)
  golden = [Candidate(graph, params, us) for us, params in numbered(graph, region, target, TRIED)]
  return searched, golden


def made(name, target):
  """Of each kind as many kernels as are timed, compiled, and the refusals: a process's work."""
  done, refused = [], []
  for candidates, keep in zip(candidates_of(name, target), (SEARCHED, GOLDEN), strict=True):
    some, bad = compile_candidates(PROGRAMS[name](), candidates, target, keep=keep)
    done += some
    refused += [f"{r.code}: {r.reason}" for r in bad]
  return done, refused


def prepared(path, jobs, of_any):
  """Jobs that an earlier run left, by program and set of features; written by ``keep``."""
  if path is None or not path.is_file():
    return {}
  kept = pickle.loads(lzma.decompress(path.read_bytes()))
  return {
    job: found
    for job, found in kept["made"].items()
    if job in jobs and (of_any or kept["source"] == _source())
  }


def keep(path, found):
  """A pickle of what was made, for ``prepared`` of the same source: never of a stranger's file."""
  path.write_bytes(lzma.compress(pickle.dumps({"source": _source(), "made": found}), preset=1))


def _source():
  return source_digest("codegen", "instructions", *SEARCH_SOURCES)


def point(compiled):
  return {
    "params": " | ".join(p.to_text() for p in compiled.candidate.params),
    "kernels": len(compiled.sources),
    "predicted_us": round(compiled.candidate.predicted_us, 2),
    "registers": [c.registers for c in compiled.cubins],
    "smem_bytes": [s.smem_bytes for s in compiled.sources],
  }


def drawn(name):
  region = PROGRAMS[name]()
  return draw(region, usual_weights(region), np.random.default_rng(0))


def measured(gpu, region, sets, values):
  """Times and errors of the compiled programs of each set of features: name of the set -> points."""
  data, oracle = values
  arms, points, found = [], [], {}
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    for which, compiled in sets.items():
      found[which] = []
      for c in compiled:
        replay, outputs = prepare(gpu, region, c, inputs)
        errors = oracle.errors(gpu, replay, outputs)
        worst = max(errors.values(), key=lambda e: e[0] - e[1])
        found[which].append(point(c) | {"error": worst, "right": bool(worst[0] <= worst[1])})
        arms.append(replay)
        points.append(found[which][-1])
    limit, _ = streaming_limit(gpu, bytes_of(region))
    times = gpu.time_us([limit, *arms], SAMPLES)
  for p, samples in zip(points, times[1:], strict=True):
    p |= statistics(samples)
  return {"limit_us": statistics(times[0])["us"], "sets": found}


def best_of(result):
  """The least time of each set of features; None where nothing compiled."""
  return {w: min((p["us"] for p in ps), default=None) for w, ps in result["sets"].items()}


def row_of(result):
  best = best_of(result)
  own = best["own"]
  result["streams"] = own is not None and result["limit_us"] >= STREAMS * own
  result["best_us"] = best
  result["slower"] = {w: round(us / own, 3) for w, us in best.items() if own and us}
  wrong = sum(not p["right"] for ps in result["sets"].values() for p in ps)
  cells = [f"{us:.1f}" if us else "-" for us in best.values()]
  shares = [f"{result['slower'].get(w, float('nan')):.2f}" for w in best if w != "own"]
  return [result["program"], "yes" if result["streams"] else "", f"{result['limit_us']:.1f}", *cells, *shares,
          str(wrong)]  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--out", type=Path, default=Path("feature_sets.json"))
  parser.add_argument("--arch", action="append", choices=ARCHITECTURES)
  parser.add_argument("--seconds", type=float, default=140.0)
  parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
  parser.add_argument("--without-gpu", metavar="TARGET", help="no GPU: search and compile for this one")
  parser.add_argument("--prepared", type=Path, metavar="FILE", help="what was searched and compiled before")
  parser.add_argument(
    "--other-sources", action="store_true", help="what other source has prepared is timed, too"
  )
  parser.add_argument("names", nargs="*")
  options = parser.parse_args()
  options.deadline = time.monotonic() + options.seconds
  target = get_target(options.without_gpu) if options.without_gpu else present_target()
  if target is None:
    sys.exit("there is no GPU here that kernels are made for")
  arches = options.arch or ["sm_80", "sm_89"]
  targets = {"own": target} | {a: with_features(target, a) for a in arches}
  names = sorted(options.names or NAMES, key=order)
  wanted = {(n, t) for n in names for t in targets.values()}
  kept = prepared(options.prepared, wanted, options.other_sources)
  if options.without_gpu:
    return prepare_only(names, targets, kept, options)
  return timed(names, targets, kept, options)


def prepare_only(names, targets, kept, options):
  """Writes what can be made in the time; 1 where that is not all."""
  todo = [(n, t) for n in names for t in targets.values() if (n, t) not in kept]
  with Pool(options.jobs) as pool, suppress(Late):  # at the end of the block what still runs is ended
    answers = pool.imap_unordered(_made, todo)
    for _ in todo:
      job, found = answers.next(max(1.0, options.deadline - time.monotonic()))
      kept[job] = found
  keep(options.prepared, kept)
  for (name, target), (done, refused) in kept.items():
    print(name, target.name, len(done), "kernels", *(point(c)["params"] for c in done[:1]), refused[:1])
  print(f"{len(kept)} of {len(names) * len(targets)} made")
  return int(len(kept) < len(names) * len(targets))


def _made(job):
  return job, made(*job)


def timed(names, targets, kept, options):
  """Writes and prints the table; 1 where a kernel is wrong."""
  arches = [w for w in targets if w != "own"]
  record = facts() | {"arches": arches, "source": _source(), "programs": []}
  if options.out.is_file() and (old := json.loads(options.out.read_text())).get("source") == _source():
    record["programs"] = [p for p in old["programs"] if set(p["sets"]) == set(targets)]
    record["earlier"] = [{k: old[k] for k in ("date", "commit", "gpu")}, *old.get("earlier", [])]
  there = {p["program"] for p in record["programs"]}
  names, gpu = [n for n in names if n not in there], gpu_of(targets["own"])
  with ProcessPoolExecutor(options.jobs) as pool, ThreadPoolExecutor(3) as threads:
    todo = [(n, t) for n in names for t in targets.values() if (n, t) not in kept]
    jobs = {job: pool.submit(made, *job) for job in todo}
    values = {n: threads.submit(drawn, n) for n in names}
    for name in names:
      if time.monotonic() > options.deadline:
        record.setdefault("left_out", []).append(name)
        continue
      both = {w: kept.get((name, t)) or jobs[name, t].result() for w, t in targets.items()}
      result = {"program": name, "refused": {w: r for w, (_, r) in both.items()}}
      try:
        found = {w: done for w, (done, _) in both.items()}
        result |= measured(gpu, PROGRAMS[name](), found, values.pop(name).result())
      except RejectionError as error:
        record.setdefault("not_measured", {})[name] = f"{error.rejection.code}: {error.rejection.reason}"
        continue
      print("  ".join(row_of(result)), flush=True)
      record["programs"].append(result)
      write_text(options.out, json.dumps(record, indent=1) + "\n")
    for job in (*jobs.values(), *values.values()):
      job.cancel()
  write_text(options.out, json.dumps(record, indent=1) + "\n")
  rows = [row_of(p) for p in record["programs"]]
  head = ("program", "streams", "limit", *targets, *(f"{a}/own" for a in arches), "wrong")
  print_table("Features of other architectures, us", head, rows)
  beyond = [(p["program"], p["slower"]) for p in record["programs"]
            if p["streams"] and max(p["slower"].values()) > GOAL]  # fmt: skip
  print(f"beyond {GOAL}x among those that stream: {beyond or 'none'}")
  return int(any(r[-1] != "0" for r in rows))


if __name__ == "__main__":
  sys.exit(main())
