"""Seconds that ``mirage-onnx optimize MODEL --target h200`` takes without a GPU, the first time and again.

    python bench/first_runs.py --graphs ../shared/whole/graphs.zip [--models NAME ...] \
        [--out bench/results/first_runs.json]

Whole models of real size, each a process of the command line with default options, an empty store and nothing
else running: the wall time from its start to its end, CPU seconds of it and its workers, the load before it,
and which regions a deadline ended. ``again``: the same command once more, its output removed
(weights are written again; a run that finds its output takes less). Models are removed one after the other.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from facts import facts
from whole_model import make, names_in

ROOT = Path(__file__).resolve().parents[1]


def timed(model, folder):
  """One run of the command: its seconds, and what its report says of them."""
  out = folder / "out"
  shutil.rmtree(out, ignore_errors=True)
  out.mkdir()
  command = [sys.executable, "-m", "mirage_onnx", "optimize", model, "-o", out / "model.onnx"]
  env = {**os.environ, "MIRAGE_CACHE_DIR": str(folder / "store"), "PYTHONPATH": str(ROOT)}
  load = os.getloadavg()[0]
  start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
  run = subprocess.run([*command, "--target", "h200", "--json"], env=env, capture_output=True, text=True)
  seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
  if run.returncode:
    raise SystemExit(f"{model}: {run.stderr[-500:]}")
  regions = json.loads(run.stdout)["regions"]
  return {
    "wall_s": round(seconds, 1),
    "cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    "load": round(load, 1),
    "replaced": sum(r["count"] for r in regions if r["status"] == "replaced"),
    "cut_off": sorted(r["id"] for r in regions if r["reason"] == "BUDGET"),
  }


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--graphs", type=Path, required=True)
  parser.add_argument("--models", nargs="+")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "first_runs.json")
  o = parser.parse_args()
  rows = {}
  for name in o.models or names_in(o.graphs):
    with tempfile.TemporaryDirectory() as folder:
      model = make(o.graphs, name, Path(folder) / name)
      rows[name] = {run: timed(model, Path(folder)) for run in ("first", "again")}
      print(name, json.dumps(rows[name]), flush=True)
  record = {**facts(("onnx", "onnxruntime")), "models": rows}
  o.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
  main()
