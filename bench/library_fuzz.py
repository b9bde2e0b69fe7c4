"""Damaged plans, bundles, nodes, images and graph types against the custom-op library under sanitizers.

    python bench/library_fuzz.py [--odd] [--files 100000] [--graphs 2000] [--jobs 1] [--out bench/results]

Plans, bundles and nodes are judged by Python too, and both must say the same. Files and graphs are made by
tests/support/damaged_files.py and graph_types.py from their seeds; with --odd by odd_files.py, and the
structure of graphs is another. Writes library_fuzz.json (odd_library_fuzz.json), prints it, and exits 1 where
anything crashed, hung for 2 s, took memory (fuzz_main.cc says how much it may) or was judged differently.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "bench")]

import damaged_files
import odd_files
from damaged_files import accepted, corpus, judged
from facts import facts
from graph_types import ODD
from sanitized import build, build_fuzzer, build_ops, preload

BATCH = 5000
#: Graphs that one process runs.
SHARE = 100


def judge(program, kind, seeds, folder, odd):
  """Of one batch: accepted, seeds judged differently, seconds of the slowest file, the largest peak."""
  made = (odd_files if odd else damaged_files).made
  files = [(kind, made(kind, seed)) for seed in seeds]
  path = folder / f"corpus{kind}{seeds[0]}"
  path.write_bytes(corpus(files))
  done = subprocess.run([str(program), "judge", str(path)], capture_output=True)
  path.unlink()
  if done.returncode:
    return 0, [f"{kind} {seeds[0]}..: {done.stderr.decode(errors='replace')[-400:]}"], 0.0, 0
  said = [line.removeprefix("bundle: ") for line in done.stdout.decode("latin-1").split("\n")[:-1]]
  ours = [judged(kind, data) for _, data in files]
  wrong = [
    f"{kind} {seed}: {a!r} / {b!r}"
    for seed, a, b in zip(seeds, said, ours, strict=True)
    if b not in (None, a)
  ]
  _, _, longest, _, _, peak = done.stderr.split()
  return accepted(said), wrong, float(longest), int(peak)


def graphs(libraries, count, first):
  """Of so many graphs: right, refused when made, refused in the run, most milliseconds; faults."""
  library, driver = libraries
  script = str(ROOT / "tests" / "support" / "graph_types.py")
  ours = {"LD_PRELOAD": preload(), "ASAN_OPTIONS": "detect_leaks=0"}
  command = [sys.executable, script, str(first), str(count), str(library), str(driver)]
  done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ours})
  if done.returncode:
    return (0, 0, 0, 0), [f"graphs: {done.stdout} {done.stderr[-400:]}"]
  return tuple(map(int, done.stdout.split())), []


def all_graphs(pool, libraries, count, first):
  """One row of all of them, in shares; faults."""
  shares = [pool.submit(graphs, libraries, min(SHARE, count - k), first + k) for k in range(0, count, SHARE)]
  counted, wrong = zip(*(a.result() for a in shares), strict=True)
  right, creation, in_run, longest = zip(*counted, strict=True)
  row = {"right": sum(right), "refused_at_creation": sum(creation), "refused_in_run": sum(in_run)}
  return {"files": count, **row, "longest_s": max(longest) / 1000}, [w for found in wrong for w in found]


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--odd", action="store_true")
  parser.add_argument("--files", type=int, default=100_000, metavar="N", help="of each kind")
  parser.add_argument("--graphs", type=int, default=2000, metavar="N")
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  arguments = parser.parse_args()
  found, faults = {}, []
  with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(arguments.jobs) as pool:
    folder = Path(name)
    program = build_fuzzer(folder)
    every = range(arguments.files)
    batches = [every[first : first + BATCH] for first in range(0, len(every), BATCH)]
    kinds = {"P": "plans", "B": "bundles", "N": "nodes", "I": "images"}
    asked = {k: [pool.submit(judge, program, k, b, folder, arguments.odd) for b in batches] for k in kinds}
    for kind, what in kinds.items():
      row = {
        "files": arguments.files,
        "accepted": 0,
        "longest_s": 0.0,
        "largest_peak_bytes": 0,
      }
      for taken, wrong, seconds, peak in (a.result() for a in asked[kind]):
        row["accepted"] += taken
        row["longest_s"] = max(row["longest_s"], seconds)
        row["largest_peak_bytes"] = max(row["largest_peak_bytes"], peak)
        faults += wrong
      found[what] = row
    if arguments.graphs:
      driver = ROOT / "tests" / "custom_op" / "standin_driver.cc"
      libraries = build_ops(folder), build(folder / "standin.so", "-shared", "-fPIC", str(driver))
      found["graphs"], wrong = all_graphs(pool, libraries, arguments.graphs, ODD if arguments.odd else 0)
      faults += wrong
  result = {**facts(("onnx", "onnxruntime", "numpy")), **found, "faults": faults[:20], "faulty": len(faults)}
  arguments.out.mkdir(parents=True, exist_ok=True)
  name = "odd_library_fuzz.json" if arguments.odd else "library_fuzz.json"
  (arguments.out / name).write_text(json.dumps(result, indent=1) + "\n")
  print(json.dumps(result, indent=1))
  return 1 if faults else 0


if __name__ == "__main__":
  sys.exit(main())
