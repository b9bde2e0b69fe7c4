"""Originals alone on this machine's GPU: what a model takes as onnxruntime runs it, and its kernels by name.

    python3 bench/origins.py [--graphs .dev/whole/graphs.zip ...] [--models NAME ...] [--out DIR]

For ``bench/predictions.py``, which holds them against what the tables of operators say. A model is one of a
zip as ``bench/whole.py`` takes them (``bench/origin_models.py`` makes one of 24 more). ``whole_us``: the
median of warm runs as the session's own CUDA graph (``graph``), else as runs. ``by_kernel``: of one run
without a graph, by name, how many and their microseconds, as CUPTI has them (torch's profiler);
``kernel_sum_us``: all of them. DIR/origins.jsonl gets a line a model; models that it has already are passed
over. One process a model.
"""

import argparse
import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
#: Characters of a kernel's name, and kernels that are kept: the longest.
NAME, KEPT = 150, 60
ROUNDS, PROFILED = 31, 5


def measured(graphs, name, work, out, *, cpu=False):
  """The figures of a model."""
  from whole_arms import Arms
  from whole_model import make

  path = make(graphs, name, work / name)
  arms = Arms(path, cpu=cpu)
  times, host = arms.times(ROUNDS)
  row = {"model": name, "whole_us": round(float(statistics.median(times[0])), 2), "graph": bool(arms.graph)}
  row["host_us"] = round(float(statistics.median(host[0])), 1)
  if not cpu:
    row |= profiled(arms, out / "kernels" / f"{name}.json.gz", graph=bool(arms.graph))
  return row


def kernels_of(call, runs=PROFILED):
  """What one run puts on the GPU, of several behind each other: (start, name, microseconds) by start."""
  import torch
  from torch.profiler import ProfilerActivity, profile

  for _ in range(3):
    call()
  torch.cuda.synchronize()
  with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
    for _ in range(runs):
      call()
    torch.cuda.synchronize()
  with tempfile.TemporaryDirectory() as folder:
    trace = Path(folder) / "trace.json"
    found.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
  wanted = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
  return sorted((e["ts"], e["name"][:NAME], e["dur"]) for e in wanted)


def keep_sequence(kernels, path, runs=PROFILED):
  """The last run of ``kernels``, in its order, with starts from its own."""
  one = kernels[len(kernels) - len(kernels) // runs :]
  rows = [(name, round(at - one[0][0], 3), round(us, 3)) for at, name, us in one]
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(json.dumps(rows).encode()))


def profiled(arms, sequence, *, graph):
  """The kernels of one run, the mean of a few; those of the last in their order go to ``sequence``."""
  _, call, *_ = arms._session(arms.model, False) if graph else arms.arms[0]
  kernels = kernels_of(call)
  keep_sequence(kernels, sequence)
  us, count = defaultdict(float), defaultdict(int)
  for _, name, took in kernels:
    us[name] += took / PROFILED
    count[name] += 1
  longest = sorted(us, key=us.get, reverse=True)[:KEPT]
  return {
    "kernel_sum_us": round(sum(us.values()), 1), "kernels": len(kernels) // PROFILED,
    "by_kernel": {n: [round(count[n] / PROFILED, 2), round(us[n], 2)] for n in longest},
  }  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--graphs", nargs="+", default=[str(ROOT / ".dev" / "whole" / "graphs.zip")])
  add("--models", nargs="+", default=[])
  add("--seconds", type=float, default=200.0, help="no model is begun after these")
  add("--out", type=Path, default=Path("out"))
  add("--work", type=Path, default=Path("/tmp/origins"))
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--one", help=argparse.SUPPRESS)
  o = parser.parse_args()
  if o.one:
    if not o.cpu:
      import torch  # noqa: F401  (loads the libraries that onnxruntime needs)
    print("RESULT", json.dumps(measured(o.graphs[0], o.one, o.work, o.out, cpu=o.cpu)), flush=True)
    return 0
  import shutil

  from whole_model import names_in

  end, record, failed = time.monotonic() + o.seconds, o.out / "origins.jsonl", 0
  o.out.mkdir(parents=True, exist_ok=True)
  known = {json.loads(x)["model"] for x in record.read_text().splitlines()} if record.is_file() else set()
  facts = {"command": " ".join(sys.argv)} if o.cpu else facts_of()
  for graphs in o.graphs:
    for name in names_in(graphs):
      if name in known or (o.models and name not in o.models) or time.monotonic() > end:
        continue
      own = ["--work", str(o.work), "--out", str(o.out), *(["--cpu"] if o.cpu else [])]
      command = [sys.executable, __file__, "--one", name, "--graphs", graphs, *own]
      try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        lines, why = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")], done.stderr[-400:]
      except subprocess.TimeoutExpired:
        lines, why = [], "ended after 120 s"
      shutil.rmtree(o.work / name, ignore_errors=True)
      if not lines:
        failed += 1
        print(f"FAILED {name}: {why}", flush=True)
        continue
      row = json.loads(lines[-1][7:])
      print(name, {k: v for k, v in row.items() if k != "by_kernel"}, flush=True)
      with record.open("a") as file:
        file.write(json.dumps({**row, **facts}) + "\n")
  return 1 if failed else 0


def facts_of():
  from protocol import facts

  found = facts()
  kept = ("date", "command", "commit", "gpu", "versions", "driver_cuda")
  return {k: found[k] for k in kept} | {
    "versions": {"onnxruntime-gpu": found["versions"].get("onnxruntime-gpu")}
  }


if __name__ == "__main__":
  sys.exit(main())
