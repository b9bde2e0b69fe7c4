"""Random models on this machine's GPU: what ``optimize --target local`` makes of each, against the original.

    python3 bench/never_slower.py [--seeds 300] [--first 0] [--seconds 150] [--budget 30] [--jobs 1] \
        [--gates 2] [--target local] [--cases] [--choices FILE] [--cpu] \
        [--out bench/results/h100/never_slower.jsonl]

A seed is a model: one to four blocks of kinds that the importer makes regions of, of one type (fp16, bf16,
fp32), widths from 64 to 8192 and rows from 1 to 8192, with weights drawn at random (256 MB at most).
``--cases``: those of ``promised_cases.py`` before. A model is optimized with default flags but for
``--budget``, which times what is written beside its original (the gate: openings, Student's t), and then both
are raced once more, apart from the gate's own samples.
``--jobs`` models share the cores; one of them runs on the GPU at a time (``tune.machine.gpu_alone``), and
``--gates`` at a time open their sessions (others' sessions are in the times of each). The last races have
machine and GPU to themselves: what was optimized waits on disk until no optimize runs any more, and models
are begun for as long as there is time for the races of all that will wait.
``--choices``: a file that gets a line a region that was timed: ONNX Runtime's time by the table and measured,
of every candidate what was predicted and measured (``bench/choice_ranks.py``).
``--target h100``: what is chosen by prediction, untimed, is raced in the same way.
``--out`` gets a line a model; those that it has already are passed over, so the same command goes on; what is
not raced before ``--seconds`` are over is left for the next call. The last lines count what is slower than
0.99x with confidence (exit code 1 if any, or if one failed).
"""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

#: Slower than this with confidence breaks the promise.
SLOWER = 0.99
#: Beyond the budget, for making the model, what cannot be interrupted, and others' gates.
MORE_S = 200.0
#: What became of a model; ``written``: its last race is to come.
KINDS = ("replaced", "unchanged", "slower", "failed", "original fails")
#: Models of one process.
TOGETHER = 4
#: Seconds that others wait for a gate, about.
GATE_S = 4.0
#: Seconds of a last race at most, and about; of what is begun, this part is raced.
RACE_S, ABOUT_S, RACED = 15.0, 3.0, 0.6


@contextmanager
def gates_in_turn(path, took):
  """Inside, races wait for those of other processes that have the same ``path``; ``took`` adds up seconds."""
  from mirage_onnx.custom_op.race import Racer

  raced = Racer.__call__

  def in_turn(self, question):
    asked = time.monotonic()
    with open(path, "w") as file:
      fcntl.flock(file, fcntl.LOCK_EX)
      begun = time.monotonic()
      try:
        return raced(self, question)
      finally:
        took["waited"] += begun - asked
        took["raced"] += time.monotonic() - begun

  Racer.__call__ = in_turn
  try:
    yield
  finally:
    Racer.__call__ = raced


@contextmanager
def noting_choices(seed, path):
  """Regions that are timed inside get a line in ``path``.

  ``timed``: of each candidate what was predicted, its time of the last look before the final one, kernels and
  numbers; of finalists their time of the final look, too.
  """
  import numpy as np

  from mirage_onnx.tune import race, realise

  names = ("tuned", "_ranked", "_final")
  tuned, ranked, final = (getattr(m, n) for m, n in zip((realise, race, race), names, strict=True))
  of_thread = threading.local()

  def key(c):
    return len(c.candidate.ugraph.kernels), " / ".join(p.to_text() for p in c.candidate.params)

  def noted_look(bench, arms, **how):
    found = ranked(bench, arms, **how)
    for c, us in zip(*found[:2], strict=True):
      of_thread.looks[key(c)] = [round(c.candidate.predicted_us, 3), round(us, 3), *key(c)]
    return found

  def noted_final(bench, arms, place):
    found = final(bench, arms, place)
    for c, us in zip(arms, np.median(found[0], axis=1)[1:], strict=True):
      of_thread.looks[key(c)].append(round(float(us), 3))
    return found

  def noted(loaded, outcome, *args, **how):
    of_thread.looks = {}
    after = tuned(loaded, outcome, *args, **how)
    measured = after.measured or getattr(after.rejection, "measured", None)
    if path and measured is not None and of_thread.looks:
      line = {
        "seed": seed, "ops": " ".join(n.split("_")[0] for n in outcome.region.nodes),
        "baseline_us": round(outcome.baseline_us, 3), "ort_us": round(measured.ort_us, 3),
        "timed": [*of_thread.looks.values()],
      }  # fmt: skip
      with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")
    return after

  realise.tuned, race._ranked, race._final = noted, noted_look, noted_final
  try:
    yield
  finally:
    realise.tuned, race._ranked, race._final = tuned, ranked, final


def optimize_one(seed, o):
  """The row of a model, its last race not run."""
  import promised_cases
  import random_model

  if not o.cpu:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)

  import onnx

  import mirage_onnx
  from mirage_onnx.events import RegionTuned, StageEnded
  from mirage_onnx.tune.device import present_gpu

  folder = o.work / str(seed)
  folder.mkdir(parents=True, exist_ok=True)
  model, what = (random_model if isinstance(seed, int) else promised_cases).draw(seed)
  source, output = folder / "model.onnx", folder / "out.onnx"
  onnx.save(model, source)
  stages, took, start = {}, {"waited": 0.0, "raced": 0.0}, time.monotonic()
  tuned = []  # why regions stay, each after it was timed; None of those that may be replaced

  def emit(event):
    if isinstance(event, StageEnded):
      stages[event.stage] = round(event.seconds, 2)
    elif isinstance(event, RegionTuned):
      tuned.append(event.reason)

  target = "h200" if o.cpu and not o.fake and o.target == "local" else o.target
  place = o.work / f"gate{len(str(what)) % o.gates}"
  with noting_choices(seed, o.choices), gates_in_turn(place, took):
    report = mirage_onnx.optimize(source, output, target=target, budget_s=o.budget, emit=emit).report
  measured = report["measured"]
  row = {
    "seed": seed, **what,
    "gpu": "" if o.cpu else str(present_gpu()), "commit": o.commit, "budget_s": o.budget,
    "optimize_s": round(time.monotonic() - start, 2), "stages": stages,
    "gate_s": {k: round(v, 2) for k, v in took.items()},
    "timed": sum(r in (None, "NOT_FASTER") for r in tuned),
    "found": {k: v["regions"] for k, v in report["found"]["by_result"].items()},
    "gate": [[r["how"], r["speedup"], r["low"], r["openings"]] for r in measured["rows"]] if measured else [],
    "replaced": [
      [len(r["ops"]), *(r[k] for k in ("count", "baseline_us", "predicted_us", "measured_us"))]
      for r in report["regions"] if r["status"] == "replaced"
    ],
  }  # fmt: skip
  if n := tuned.count("MEASURE_FAILED"):
    why = next((r["reason_text"][-300:] for r in report["regions"] if r["reason"] == "MEASURE_FAILED"), "")
    return row | {"result": "failed", "reason": f"{n} regions could not be timed: {why}"}
  if not row["replaced"]:
    return row | {"result": "unchanged"}
  (folder / "row.json").write_text(json.dumps(row))
  return row | {"result": "written"}


def race_one(seed, o, racer):
  """The row of a model that was written, with its last race."""
  import numpy as np

  from mirage_onnx.custom_op.arm_session import Arm
  from mirage_onnx.custom_op.race import Failed, Race

  folder, provider = o.work / str(seed), "cpu" if o.cpu else "cuda"
  row = json.loads((folder / "row.json").read_text())
  arms = (Arm(str(folder / "model.onnx")), Arm(str(folder / "out.onnx")))
  drawn = seed if isinstance(seed, int) else 0
  begun, found = time.monotonic(), racer(Race(arms, ((0, 1),), RACE_S, 0.01, provider=provider, seed=drawn))
  row["race_s"] = round(time.monotonic() - begun, 2)
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


def work_many(o):
  """The rows of models, one after the other in this process: libraries are loaded once."""
  from mirage_onnx.custom_op.race import Racer

  os.sched_setaffinity(0, o.cores)
  if o.fake:
    from spans import faked

    faked()
  racer = Racer()
  for seed in map(named, o.many):
    if time.monotonic() > float((o.work / "until").read_text()):  # which may be sooner by now
      break
    print("BEGUN", seed, flush=True)
    try:
      row = race_one(seed, o, racer) if o.race else optimize_one(seed, o)
    except Exception as error:
      row = {"seed": seed, "result": "failed", "reason": f"{type(error).__name__}: {str(error)[-600:]}"}
    print("RESULT", json.dumps(row), flush=True)
  racer.close()
  return 0


def named(text):
  return int(text) if text.isdigit() else text


def answers(seeds, cores, o, *, race=False):
  """The rows of ``seeds`` as they come; of one at which its process ends, or hangs, that it failed."""
  command = [
    sys.executable, __file__, "--worker", "--many", *map(str, seeds), "--cores", *map(str, cores),
    "--budget", str(o.budget), "--work", str(o.work), "--commit", o.commit,
    "--target", o.target, "--gates", str(o.gates),
    *(["--choices", str(o.choices)] if o.choices else []),
    *(f"--{flag}" for flag, on in (("cpu", o.cpu), ("fake", o.fake), ("race", race)) if on),
  ]  # fmt: skip
  errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
  at, timer = None, None
  for line in process.stdout:
    if line.startswith("BEGUN "):
      at = named(line[6:].strip())
      timer = threading.Timer(MORE_S + (0 if race else o.budget), process.kill)
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


def restarted(batch, ask, deadline):
  """The rows of ``ask(models)``, which ends behind one at which its process ends: others are asked anew."""
  left, count = list(batch), 0
  while left and len(left) != count and time.monotonic() < deadline:
    count = len(left)
    for row in ask(left):
      left.remove(row["seed"])
      yield row


def all_of(seeds, o, end):
  """Models are optimized as long as their races fit before ``end``, and raced one after the other.

  What was optimized and not raced is in ``o.waiting``, and its files are there still.
  """
  from kept_rows import kept_rows

  cores = sorted(os.sched_getaffinity(0))
  n = len(cores)
  telling = threading.Lock()
  free = [cores[n * k // o.jobs : max(n * k // o.jobs + 1, n * (k + 1) // o.jobs)] for k in range(o.jobs)]

  def until():
    """When no more models may be begun: those at work go on, and are raced, too."""
    races = len(o.waiting) + RACED * o.jobs
    return end - o.budget - GATE_S * (o.jobs - 1) / o.gates - ABOUT_S * races

  def told(at):
    """Workers begin no models after ``at``."""
    (o.work / "new").write_text(str(at))
    (o.work / "new").replace(o.work / "until")
    return at

  def optimized(batch):
    mine = free.pop()
    with telling:
      told(until())
    for row in restarted(batch, lambda left: answers(left, mine, o), until()):
      print(line_of(row), flush=True)
      if row["result"] == "written":
        o.waiting.append(row["seed"])
        with telling:
          told(until())
      else:
        shutil.rmtree(o.work / str(row["seed"]), ignore_errors=True)
        yield row
    free.append(mine)

  def raced(batch):
    for row in restarted(batch, lambda left: answers(left, cores, o, race=True), told(end)):
      print(line_of(row), flush=True)
      o.waiting.remove(row["seed"])
      shutil.rmtree(o.work / str(row["seed"]), ignore_errors=True)
      yield row

  new, began = [s for s in seeds if s not in o.waiting], time.monotonic()
  kept_rows(new, o.out, optimized, jobs=o.jobs, together=TOGETHER)
  begun, waiting = time.monotonic(), len(o.waiting)
  kept_rows(list(o.waiting), o.out, raced, jobs=1, together=len(seeds), deadline=end)
  took = f"{begun - began:.0f} s, races {time.monotonic() - begun:.0f} s"
  print(f"{waiting} were raced or wait, {len(o.waiting)} wait; took {took}", flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  add = parser.add_argument
  add("--seeds", type=int, default=300)
  add("--first", type=int, default=0)
  add("--only", type=int, nargs="*", help="these seeds, in this order")
  add("--cases", action="store_true", help="the models of promised_cases.py before random ones")
  add("--seconds", type=float, default=150.0, help="no race is begun after these")
  add("--budget", type=float, default=30.0, help="seconds of each optimize")
  add("--jobs", type=int, default=1, help="models at a time; one of them is timed at a time")
  add("--gates", type=int, default=2, help="models at a time whose gates open their sessions")
  add("--out", type=Path, help="default: bench/results/h100/never_slower.jsonl, without a GPU in --work")
  add("--work", type=Path, default=Path("/tmp/never_slower"))
  add("--choices", type=Path)
  add("--target", default="local", help="the present GPU's name: by prediction")
  add("--cpu", action="store_true", help="no GPU: checks this script, times say nothing")
  add("--fake", action="store_true", help="the same with made-up times, for local (spans.py)")
  add("--commit", default="", help=argparse.SUPPRESS)
  add("--worker", action="store_true", help=argparse.SUPPRESS)
  add("--race", action="store_true", help=argparse.SUPPRESS)
  add("--many", nargs="*", default=[], help=argparse.SUPPRESS)
  add("--cores", type=int, nargs="*", default=[], help=argparse.SUPPRESS)
  o = parser.parse_args()
  o.cpu |= o.fake
  o.began = time.monotonic()
  if o.worker:
    return work_many(o)
  from facts import facts
  from kept_rows import kept_rows
  from promised_cases import CASES

  o.commit = facts(())["commit"][:12]
  o.out = o.out or (o.work if o.cpu else ROOT / "bench" / "results" / "h100") / "never_slower.jsonl"
  seeds = [*(CASES if o.cases else ()), *(o.only or range(o.first, o.first + o.seeds))]
  o.waiting = []
  o.work.mkdir(parents=True, exist_ok=True)
  all_of(seeds, o, o.began + o.seconds)
  rows = kept_rows(seeds, o.out, lambda batch: (), jobs=1, together=1)
  counts = {kind: sum(r["result"] == kind for r in rows) for kind in KINDS}
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
