"""Whole models on this machine's GPU: the original against what ``optimize`` makes of it.

    python3 bench/whole.py [--models NAME|FILE.onnx ...] [--targets h200 local] [--total 540] [--out DIR]

With ``--make`` models are optimized only, for a later call with the same ``--work``. ``--again``: twice more,
by a process that finds what the first has kept (``again``). ``--budget``: other than the default's; such rows
are beside those without.

NAMEs are those of ``--graphs`` (default ``.dev/whole/graphs.zip``, a copy of
``../shared/whole/graphs.zip``), all of them if none is named. On the H200 machine, with that zip and
``.gpu/*.txz`` in the tree (see ``bench/h200.sh``):

    bash bench/h200.sh whole                                   # --targets h200, 540 s
    BENCH_ARGS="--targets local --models minilm_l6_1x128" bash bench/h200.sh whole

``optimize`` runs with default flags, ``--optimize-seconds`` at most. Each step is a process of its own,
so a crash is one model's. DIR/whole.jsonl gets a line after every model: a model and target that it has
already are passed over, and what there is no time for is named (exit code 1, as for whatever failed).

A time is that of one run of a whole session, warm, its inputs and outputs bound on the GPU, as the
session's own CUDA graph if every arm can be captured (``graph`` 1). A sample is the mean of several runs
in a row between two events, begun behind a run that is not counted; the arms take turns. ``ratio`` is
original over optimized, of medians, with a 95 % bootstrap interval over rounds. Where ``host_us`` is as
large as the time, the figure is the host's. ``error``: the largest relative L2 difference of an output
from the original's, ``error_fp32`` of both from the original in fp32 (models of less than 0.5 GB). Every
custom node must have launched kernels. ``session_start_s``, ``gpu_memory_mib``: of both (whole_opening.py).
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from spans import faked, watched_run
from whole_model import make, names_in

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
ORIGINAL = "onnxruntime"
#: What is kept of a replaced region.
FIELDS = ("id", "count", "ops", "baseline_us", "predicted_us", "measured_us")
#: Regions that stayed, of which the record says why.
MOST_KEPT = 30
#: An output may differ by this much from the original's, or from fp32 by twice what the original does.
TOLERANCE = 2e-2
#: A second run is ended after these.
AGAIN_S = 60.0
#: So is a look at the kernels.
KERNELS_S = 45.0


def label(model):
  """What a model is called; a name of the zip may hold a dot."""
  return Path(model).stem if model.endswith(".onnx") else model


def files_of(o):
  """The original, made if it is not there yet, and where the optimized model is."""
  folder = o.work / label(o.model)
  folder.mkdir(parents=True, exist_ok=True)
  source = Path(o.model) if o.model.endswith(".onnx") else make(o.graphs, o.model, folder)
  return source, folder / f"{o.target}{budget_text(o)}.onnx"


def budget_text(o):
  """What names have of a budget that is not the default's."""
  return f".{o.budget:.0f}s" if o.budget else ""


def optimize(o, run="first"):
  """The optimized model, and what the report says of it; ``run``: which one of the same this is."""
  if not o.cpu:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)

  import onnx

  import mirage_onnx
  from mirage_onnx.events import StageEnded

  if o.fake:
    faked()
  source, path = files_of(o)
  stages, details = {}, {}
  with watched_run(o.spans / f"{label(o.model)}.{o.target}.{run}") if o.spans else nullcontext() as spans:

    def emit(event):
      if isinstance(event, StageEnded):
        stages[event.stage] = round(event.seconds, 1)
        details.update({event.stage: event.detail} if event.detail else {})
      if spans:
        spans.emit(event)

    start = time.monotonic()
    report = mirage_onnx.optimize(
      source, path, target=o.target, budget_s=o.budget, workers=o.workers or None, emit=emit
    ).report
  written = onnx.load(path, load_external_data=False)
  nodes, numbers = written.graph.node, numbers_of(written)
  custom = sum(n.domain.startswith("ai.mirage") for n in nodes)
  replaced = [r for r in report["regions"] if r["status"] == "replaced"]
  return {
    "optimize_s": round(time.monotonic() - start, 1),
    "stages_s": stages,
    "details": details,
    "found": {code: found["regions"] for code, found in report["found"]["by_result"].items()},
    "measured": report.get("measured"),
    "custom_nodes": custom,
    "other_nodes": len(nodes) - custom,
    "predicted": report.get("model"),
    "replaced": [{**{k: r[k] for k in FIELDS}, "numbers": numbers.get(r["id"])} for r in replaced],
    "kept": kept_of(report["regions"]),
  }


def again(o):
  """Seconds of two more runs, and whether they have written the same.

  ``again_s``: all that was kept is asked for; ``known_s``: the run itself is known (``kept_runs.py``).
  """
  from mirage_onnx.superopt.cache_folders import cache_folder

  path, found = files_of(o)[1], {}
  before, runs = path.read_bytes(), cache_folder("runs")
  if runs is not None:
    shutil.rmtree(runs, ignore_errors=True)
  for name in ("again", "known"):
    row = optimize(o, name)
    found |= {f"{name}_s": row["optimize_s"], f"{name}_stages_s": row["stages_s"]}
  return {**found, "again_same": path.read_bytes() == before}


def numbers_of(model):
  """The numbers of every region's kernels, by its name: which have wgmma, and which are fed."""
  from mirage_onnx.errors import MirageError
  from mirage_onnx.report.run_record import read

  try:
    record = read(model)
  except MirageError:  # nothing was replaced
    return {}
  every = [(r.id, next((c for c in r.candidates if c.chosen), None)) for r in record.regions]
  return {name: c.numbers for name, c in every if c}


def kept_of(regions):
  """Those of the longest time that stayed, with their reasons."""
  kept = [r for r in regions if r["status"] == "kept" and r["baseline_us"]]
  kept.sort(key=lambda r: -r["count"] * r["baseline_us"])
  fields = ("count", "baseline_us", "predicted_us", "measured_us", "reason")
  return [
    {**{k: r.get(k) for k in fields}, "ops": r["ops"][:8], "text": (r["reason_text"] or "")[:120]}
    for r in kept[:MOST_KEPT]
  ]


def measure(o):
  """The arms side by side: times, ratio, and how far the outputs are from one another."""
  if not o.cpu:
    import torch  # noqa: F401

  from whole_arms import Arms, ratio_of, worst_difference
  from whole_opening import openings

  # Before this process holds any of the GPU's memory.
  opened = openings(files_of(o), cpu=o.cpu, most=o.openings)
  arms = Arms(*files_of(o), cpu=o.cpu)
  times, host = arms.times(o.rounds)
  outputs, fp32 = arms.outputs(), arms.fp32()
  result = {"graph": int(arms.graph), "graph_refused": arms.refused, "rounds": o.rounds, "calls": arms.calls}
  for k, name in enumerate((ORIGINAL, "optimized")):
    low, median, high = np.percentile(times[k], [25, 50, 75])
    result |= {f"{name}_us": round(median, 2), f"{name}_quartiles": [round(low, 2), round(high, 2)]}
    result[f"{name}_host_us"] = round(float(np.median(host[k])), 1)
  result |= opened
  result["ratio"], result["ratio_95"] = ratio_of(times)
  result["error"] = worst_difference(outputs[1], outputs[0])
  result["error_fp32"] = [worst_difference(x, fp32) for x in outputs] if fp32 else None
  result["launches"] = arms.launches()
  own, ours = result["error_fp32"] or (0.0, float("inf"))
  still = [n for n, count in result["launches"].items() if not count]
  if result["error"] > TOLERANCE and ours > 2 * own:
    result["failed"] = f"outputs differ by {result['error']}"
  elif still and not o.cpu:
    result["failed"] = f"{len(still)} custom nodes launched nothing: {still[:3]}"
  return result


def kernels(o):
  """What a run of each arm puts on the GPU, in its order, into files."""
  import torch  # noqa: F401
  from origins import keep_sequence, kernels_of
  from whole_arms import Arms

  arms = Arms(*files_of(o))
  for arm, name in zip(arms.arms, (ORIGINAL, "optimized"), strict=True):
    keep_sequence(kernels_of(arm[1]), o.kernels / f"{label(o.model)}.{o.target}.{name}.json.gz")
  return {}


STAGES = {"optimize": optimize, "measure": measure, "again": again, "kernels": kernels}


class Driver:
  """Runs stages as processes while there is time, and keeps DIR/whole.jsonl."""

  def __init__(self, o):
    self.o, self.end = o, time.monotonic() + o.total
    self.record = o.out / "whole.jsonl"
    o.out.mkdir(parents=True, exist_ok=True)
    lines = self.record.read_text().splitlines() if self.record.is_file() else []
    done = (r for r in map(json.loads, lines) if "ratio" in r)
    self.known = {(r["model"], r["target"], r.get("budget_s")) for r in done}

  def stage(self, name, model, target, seconds, workers):
    o = self.o
    command = [
      sys.executable, __file__, "--stage", name, "--models", model, "--targets", target,
      "--work", str(o.work), "--graphs", str(o.graphs), "--rounds", str(o.rounds),
      "--openings", str(o.openings),
      "--workers", str(workers), *(["--cpu"] if o.cpu else []),
      *(["--fake"] if o.fake else []), *(["--spans", str(o.spans)] if o.spans else []),
      *(["--kernels", str(o.kernels)] if o.kernels else []),
      *(["--budget", str(o.budget)] if o.budget else []),
    ]  # fmt: skip
    left = min(seconds, self.end - time.monotonic())
    if left < 1:
      return {"failed": f"{name}: no time left"}
    try:
      done = subprocess.run(command, capture_output=True, text=True, timeout=left)
      out, tail = done.stdout, f"exit {done.returncode}: {done.stderr.strip()[-400:]}"
    except subprocess.TimeoutExpired:
      out, tail = "", f"ended after {left:.0f} s"
    found = [line[7:] for line in out.splitlines() if line.startswith("RESULT ")]
    return json.loads(found[-1]) if found else {"failed": f"{name}: {tail}"}

  def made(self, model, target, workers):
    """What ``optimize`` says, now or where it was asked to ``--make`` only."""
    told = self.o.work / label(model) / f"{target}{budget_text(self.o)}.json"
    if told.is_file():
      return json.loads(told.read_text())
    row = self.stage("optimize", model, target, self.o.optimize_seconds, workers)
    if "failed" not in row:
      part = told.with_suffix(".part")
      part.write_text(json.dumps(row))
      part.replace(told)
    return row

  def run(self, names):
    o, failed = self.o, []
    facts = {} if o.make else facts_of(o)
    for target in o.targets:
      todo = [n for n in names if (label(n), target, o.budget) not in self.known]
      jobs = 1 if target == "local" else o.jobs  # the GPU is one process's while it measures
      workers = max(1, o.cores // jobs)
      step = max(1, len(todo) if o.make else jobs)
      for at in range(0, len(todo), step):
        group = todo[at : at + step]
        with ThreadPoolExecutor(jobs) as pool:
          made = list(pool.map(lambda n: self.made(n, target, workers), group))  # noqa: B023
        for name, row in zip(group, made, strict=True):
          row = {
            "model": label(name),
            "target": target,
            **({"budget_s": o.budget} if o.budget else {}),
            **row,
          }
          if "failed" not in row and not o.make:
            row |= self.stage("measure", name, target, 200, 0)
            if o.again:  # what fails here is no loss of what was measured
              second = self.stage("again", name, target, AGAIN_S, workers)
              row |= {f"again_{k}" if k == "failed" else k: v for k, v in second.items()}
            if o.kernels and (said := self.stage("kernels", name, target, KERNELS_S, workers)):
              row |= {f"kernels_{k}": v for k, v in said.items()}
          if "failed" in row:
            failed.append(f"{row['model']} {target}: {row['failed']}")
          self.show(row)
          if o.make:
            continue
          with self.record.open("a") as file:
            file.write(json.dumps({**row, **facts}) + "\n")
    print(*(f"FAILED {f}" for f in failed), sep="\n", flush=True)
    return 1 if failed else 0

  def show(self, row):
    if "ratio" not in row:
      said = row.get("failed") or f"made in {row['optimize_s']} s"
      print(f"{row['model']:34} {row['target']:6} {said}", flush=True)
      return
    low, high = row["ratio_95"]
    print(
      f"{row['model']:34} {row['target']:6} {row[f'{ORIGINAL}_us']:9.1f} -> {row['optimized_us']:9.1f} us  "
      f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})  graph {row['graph']}  {row['custom_nodes']} nodes  "
      f"error {row['error']}  optimized in {row['optimize_s']} s", flush=True,
    )  # fmt: skip


def facts_of(o):
  if o.cpu:
    return {"cpu": True, "command": " ".join(sys.argv)}
  from protocol import facts

  found = facts()
  return {**found, "protocol": "bench/whole.py: whole sessions, warm, arms in turns"}


def main():
  import os

  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--models", nargs="+", default=[], metavar="NAME|FILE")
  add("--targets", nargs="+", default=["h200"])
  add("--graphs", default=str(ROOT / ".dev" / "whole" / "graphs.zip"))
  add("--total", type=float, default=540.0, help="seconds of this call")
  add("--optimize-seconds", type=float, default=240.0, help="an optimize that takes longer is ended")
  add("--rounds", type=int, default=61)
  add("--openings", type=int, default=6, help="starts of each session, at most")
  add("--jobs", type=int, default=4, help="models that are optimized at a time (not with local)")
  add("--cores", type=int, default=os.cpu_count() or 1)
  add("--out", type=Path, default=Path("out"))
  add("--work", type=Path, default=Path("/tmp/whole"))
  add("--spans", type=Path, help="folder for what each optimize did, and when (spans.py)")
  add("--kernels", type=Path, help="folder for the kernels of a run of each arm, in their order (origins.py)")
  add("--again", action="store_true", help="a second run of each, too")
  add("--budget", type=float, help="seconds of each optimize (default: that of the flags)")
  add("--make", action="store_true", help="only optimize, without a GPU; a later call measures")
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--fake", action="store_true", help="the same with made-up times, for local (spans.py)")
  for name, kind in (("--stage", str), ("--workers", int)):
    add(name, type=kind, help=argparse.SUPPRESS)
  o = parser.parse_args()
  o.cpu |= o.fake
  if o.stage:
    o.model, o.target = o.models[0], o.targets[0]
    print("RESULT", json.dumps(STAGES[o.stage](o)), flush=True)
    return 0
  return Driver(o).run(o.models or names_in(o.graphs))


if __name__ == "__main__":
  sys.exit(main())
