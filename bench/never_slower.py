"""Random models on this machine's GPU: what ``optimize --target local`` makes of each, against the original.

    python3 bench/never_slower.py [--seeds 300] [--first 0] [--seconds 150] [--budget 30] \
        [--out bench/results/h100/never_slower.jsonl] [--jobs 1] [--target local] [--cpu]

A seed is a model: one to four blocks of kinds that the importer makes regions of, of one type (fp16, bf16,
fp32), widths from 64 to 8192 and rows from 1 to 8192, with weights drawn at random (256 MB at most). It is
optimized with default flags but for ``--budget``, which times the model that is written beside its original
(the gate: openings, Student's t), and then both are raced once more, apart from the gate's own samples.
``--jobs`` models share the cores evenly; one of them runs on the GPU at a time (``tune.machine.gpu_alone``).
With many at a time the sessions that others open are in the times of each: of 38 models with seven others on
an H100 half had openings 20 % apart, and stayed as they were.
``--target h100``: what is chosen by prediction, untimed, is raced in the same way.
``--out`` gets a line a seed; seeds that it has already are passed over, so the same command goes on; seeds
for which there is no time before ``--seconds`` are over are left for the next call. The last lines count what
is slower than 0.99x with confidence (exit code 1 if any, or if one failed).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

#: Slower than this with confidence breaks the promise.
SLOWER = 0.99
#: Beyond the budget, for making the model, its last race and what cannot be interrupted.
MORE_S = 90.0
#: What became of a model.
KINDS = ("replaced", "unchanged", "slower", "failed", "original fails")
#: Seeds of one process.
TOGETHER = 4
#: Seconds of the race after the gate's; others may have the GPU meanwhile.
RACE_S = 30.0


def optimize_one(seed, o, racer):
  """The row of a seed; ``racer``: what times the result in the end."""
  import numpy as np
  from random_model import draw

  if not o.cpu:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)

  import onnx

  import mirage_onnx
  from mirage_onnx.custom_op.arm_session import Arm
  from mirage_onnx.custom_op.race import Failed, Race
  from mirage_onnx.events import StageEnded
  from mirage_onnx.tune.device import present_gpu

  folder = o.work / str(seed)
  folder.mkdir(parents=True, exist_ok=True)
  model, what = draw(seed)
  source, output = folder / "model.onnx", folder / "out.onnx"
  onnx.save(model, source)
  stages, start = {}, time.monotonic()

  def emit(event):
    if isinstance(event, StageEnded):
      stages[event.stage] = [round(event.seconds, 2), event.detail]

  target = "h200" if o.cpu and not o.fake and o.target == "local" else o.target
  report = mirage_onnx.optimize(source, output, target=target, budget_s=o.budget, emit=emit).report
  row = {
    "seed": seed, **what, "gpu": "" if o.cpu else str(present_gpu()),
    "optimize_s": round(time.monotonic() - start, 2), "stages": stages,
    "found": report["found"]["by_result"], "measured": report["measured"],
    "replaced": [
      {k: r[k] for k in ("ops", "count", "baseline_us", "predicted_us", "measured_us")}
      for r in report["regions"] if r["status"] == "replaced"
    ],
  }  # fmt: skip
  if not row["replaced"]:
    return row | {"result": "unchanged"}
  provider = "cpu" if o.cpu else "cuda"
  arms = (Arm(str(source)), Arm(str(output)))
  found = racer(Race(arms, ((0, 1),), RACE_S, 0.01, provider=provider, seed=seed))
  if isinstance(found, Failed):  # what onnxruntime cannot run itself says nothing
    return row | {"result": "failed" if found.arm == 1 else "original fails", "reason": found.reason}
  rows = [
    {"how": r.how, "us": [round(u, 2) for u in r.us], "openings": r.speedups[0].openings}
    | {k: float(np.round(getattr(r.speedups[0], k), 4)) for k in ("mean", "low", "high")}
    for r in found.rows
  ]
  for r in rows:  # infinite with one opening
    r["high"] = r["high"] if np.isfinite(r["high"]) else None
  slower = any(r["high"] is not None and r["high"] < SLOWER for r in rows)
  return row | {"result": "slower" if slower else "replaced", "race": rows, "launches": found.launches}


def optimize_many(o):
  """The rows of seeds, one after the other in this process: libraries are loaded once."""
  from mirage_onnx.custom_op.race import Racer

  os.sched_setaffinity(0, o.cores)
  if o.fake:
    from spans import faked

    faked()
  racer = Racer()
  for seed in o.many:
    if time.monotonic() > o.began + o.seconds:
      break
    print("BEGUN", seed, flush=True)
    try:
      row = optimize_one(seed, o, racer)
    except Exception as error:
      row = {"seed": seed, "result": "failed", "reason": f"{type(error).__name__}: {str(error)[-600:]}"}
    print("RESULT", json.dumps(row), flush=True)
  racer.close()
  return 0


def answers(seeds, cores, o):
  """The rows of ``seeds`` as they come; of one at which its process ends, or hangs, that it failed."""
  command = [
    sys.executable, __file__, "--many", *map(str, seeds), "--cores", *map(str, cores),
    "--budget", str(o.budget), "--work", str(o.work),
    "--seconds", str(o.began + o.seconds - time.monotonic()), "--target", o.target,
    *(["--cpu"] if o.cpu else []), *(["--fake"] if o.fake else []),
  ]  # fmt: skip
  errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
  at, timer = None, None
  for line in process.stdout:
    if line.startswith("BEGUN "):
      at = int(line[6:])
      timer = threading.Timer(o.budget + MORE_S, process.kill)
      timer.start()
    elif line.startswith("RESULT "):
      timer.cancel()
      at = None
      yield json.loads(line[7:])
  process.wait()
  if at is not None:
    timer.cancel()
    errors.seek(0)
    yield {
      "seed": at, "result": "failed", "reason": f"exit {process.returncode}: {errors.read().strip()[-600:]}"
    }  # fmt: skip
  errors.close()


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--seeds", type=int, default=300)
  add("--first", type=int, default=0)
  add("--seconds", type=float, default=150.0, help="no seed is begun after these")
  add("--budget", type=float, default=30.0, help="seconds of each optimize")
  add("--jobs", type=int, default=1, help="models at a time; one of them is timed at a time")
  add("--out", type=Path, default=ROOT / "bench" / "results" / "h100" / "never_slower.jsonl")
  add("--work", type=Path, default=Path("/tmp/never_slower"))
  add("--target", default="local", help="the present GPU's name: by prediction")
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--fake", action="store_true", help="the same with made-up times, for local (spans.py)")
  for name in ("--many", "--cores"):
    add(name, type=int, nargs="*", default=[], help=argparse.SUPPRESS)
  o = parser.parse_args()
  o.cpu |= o.fake
  o.began = time.monotonic()
  if o.many:
    return optimize_many(o)
  from kept_rows import kept_rows

  cores = sorted(os.sched_getaffinity(0))
  each = max(1, len(cores) // o.jobs)
  free = [[cores[(each * k + j) % len(cores)] for j in range(each)] for k in range(o.jobs)]

  def ask(batch):
    mine = free.pop()
    left = list(batch)
    count = 0
    while len(left) != count and time.monotonic() < end:
      count = len(left)
      for row in answers(left, mine, o):
        left.remove(row["seed"])
        shutil.rmtree(o.work / str(row["seed"]), ignore_errors=True)
        print(line_of(row), flush=True)
        yield row
    free.append(mine)

  end = o.began + o.seconds
  seeds = range(o.first, o.first + o.seeds)
  rows = kept_rows(seeds, o.out, ask, jobs=o.jobs, together=TOGETHER, deadline=end)
  counts = {
    kind: sum(r["result"] == kind for r in rows) for kind in ("replaced", "unchanged", "slower", "failed")
  }
  said = ", ".join(f"{n} {kind}" for kind, n in counts.items())
  print(f"{len(rows)} of {len(seeds)} models: {said} (slower than {SLOWER}x with confidence)")
  return 1 if counts["slower"] or counts["failed"] else 0


def line_of(row):
  text = f"seed {row['seed']:4} {row['result']:9} {row.get('text', '')[:70]:70} {row.get('optimize_s', '')} s"
  for r in row.get("race", ()):
    text += f"  {r['how']} {r['us'][0]:.1f} -> {r['us'][1]:.1f} us {r['mean']:.3f} ({r['low']:.3f})"
  return text + f"  {row.get('reason', '')[-160:]}"


if __name__ == "__main__":
  sys.exit(main())
