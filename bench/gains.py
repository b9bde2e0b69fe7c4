"""Whether the default budget leaves anything: a model by ``--target local``, and again with twenty minutes.

    python3 bench/gains.py --models NAME ... [--long 1200] [--total 540] [--out DIR]

Each run is a process with an empty store. The long one is told to stop (as by Ctrl-C) when the time of this
call is nearly over: ``stopped`` says so, else it has ended by itself. Then the original and both results are
sessions of one process, warm, as CUDA graphs, in turns, as in ``whole.py``. ``share``: the time that the
default's result saves over what the long run's saves, with the interval that holds 95 % of it over draws of
rounds. DIR/gains.jsonl gets a line a model. NAMEs are those of ``--graphs`` (``.dev/whole/graphs.zip``).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from whole_model import make

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
#: What is left for the end of a run that is told to stop, and for the comparison.
STOP_S, COMPARE_S = 60.0, 35.0


def optimize(o):
  """One run: its seconds, whether it was told to stop, and what it says of what it has timed."""
  if not o.fake:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)
  else:
    from spans import faked

    faked()
  import mirage_onnx
  from mirage_onnx.events import StageEnded

  details, start, asked = {}, time.monotonic(), []

  def emit(event):
    if isinstance(event, StageEnded) and event.detail:
      details[event.stage] = event.detail

  def stop():
    if time.monotonic() - start > o.stop_s and not asked:
      asked.append(round(time.monotonic() - start, 1))
    return bool(asked)

  report = mirage_onnx.optimize(
    o.work / "model.onnx", o.work / f"{o.name}.onnx", target="local", budget_s=o.budget, stop=stop, emit=emit
  ).report
  return {
    "optimize_s": round(time.monotonic() - start, 1), "stopped": bool(asked), "details": details,
    "replaced": sum(r["count"] for r in report["regions"] if r["status"] == "replaced"),
  }  # fmt: skip


def compare(o):
  """All three in turns."""
  if not o.fake:
    import torch  # noqa: F401
  from whole_arms import Arms, worst_difference

  files = [o.work / f"{n}.onnx" for n in ("model", "default", "long")]
  arms = Arms(*files, cpu=o.fake)
  times, outputs = arms.times(o.rounds)[0], arms.outputs()
  us = [round(float(u), 2) for u in np.median(times, axis=1)]
  share, interval = share_of(times)
  found = {"onnxruntime_us": us[0], "default_us": us[1], "long_us": us[2], "graph": int(arms.graph)}
  return {
    **found, "rounds": o.rounds, "share": share, "share_95": interval,
    "errors": [worst_difference(x, outputs[0]) for x in outputs[1:]],
  }  # fmt: skip


def share_of(times, draws=4000):
  """Of (original, default, long) by rounds: saved by the second over saved by the third, and its interval."""
  picks = np.random.default_rng(0).integers(0, times.shape[1], (draws, times.shape[1]))
  first, second, third = (np.median(t[picks], axis=1) for t in times)
  low, high = np.percentile((first - second) / (first - third), [2.5, 97.5])
  first, second, third = np.median(times, axis=1)
  share, *interval = (round(float(x), 4) for x in ((first - second) / (first - third), low, high))
  return share, interval


STAGES = {"optimize": optimize, "compare": compare}


def stage(o, which, seconds, **more):
  """What a process of its own says, or why it said nothing."""
  command = [
    sys.executable, __file__, "--stage", which, "--work", str(o.work), "--rounds", str(o.rounds),
    *(f"--{k.replace('_', '-')}={v}" for k, v in more.items()), *(["--fake"] if o.fake else []),
  ]  # fmt: skip
  store = {"MIRAGE_CACHE_DIR": str(o.work / f"store.{more.get('name', '')}")}
  try:
    done = subprocess.run(
      command, capture_output=True, text=True, timeout=max(1.0, seconds), env={**os.environ, **store}
    )
  except subprocess.TimeoutExpired:
    return {"failed": f"{which}: ended after {seconds:.0f} s"}
  found = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
  return json.loads(found[-1]) if found else {"failed": f"{which}: {done.stderr.strip()[-400:]}"}


def model_row(o, model, end):
  """The runs of one model, and their comparison."""
  row, left = {"model": model, "long_budget_s": o.long}, lambda: end - time.monotonic()
  o.work = o.base / model
  make(o.graphs, model, o.work)
  row["default"] = stage(o, "optimize", left() - COMPARE_S, name="default", stop_s=1e9)
  if "failed" in row["default"]:
    return row
  stop_s = left() - STOP_S - COMPARE_S
  row["long"] = stage(o, "optimize", left() - COMPARE_S, name="long", stop_s=stop_s, budget=o.long)
  return row if "failed" in row["long"] else row | stage(o, "compare", left())


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--models", nargs="+", default=[])
  add("--long", type=float, default=1200.0, help="seconds of the long run's budget")
  add("--graphs", default=str(ROOT / ".dev" / "whole" / "graphs.zip"))
  add("--total", type=float, default=540.0, help="seconds of this call")
  add("--least", type=float, default=250.0, help="a model is not begun with less")
  add("--rounds", type=int, default=61)
  add("--out", type=Path, default=Path("out"))
  add("--work", type=Path, default=Path("/tmp/gains"))
  add("--fake", action="store_true", help="no GPU: checks this script, times are made up (spans.py)")
  for name, kind in (("--stage", str), ("--name", str), ("--stop-s", float), ("--budget", float)):
    add(name, type=kind, help=argparse.SUPPRESS)
  o = parser.parse_args()
  if o.stage:
    print("RESULT", json.dumps(STAGES[o.stage](o)), flush=True)
    return 0
  from whole import facts_of

  o.base, o.cpu, end, failed = o.work, o.fake, time.monotonic() + o.total, 0
  o.out.mkdir(parents=True, exist_ok=True)
  facts = facts_of(o) | {"protocol": "bench/gains.py: whole sessions, warm, arms in turns"}
  for model in o.models:
    if end - time.monotonic() < o.least:
      print(f"{model}: no time left", flush=True)
      continue
    row = model_row(o, model, end)
    failed |= "share" not in row
    print(json.dumps(row), flush=True)
    with (o.out / "gains.jsonl").open("a") as file:
      file.write(json.dumps({**row, **facts}) + "\n")
  return int(failed)


if __name__ == "__main__":
  sys.exit(main())
