"""Random block graphs through the code generator and the emulator, against float64.

    python bench/kernel_fuzz.py --seeds 0:20000 --out build/random_kernels.jsonl --workers 2
    python bench/kernel_fuzz.py --seeds 0:20000 --total 480 --record random_kernels.txt
    python bench/kernel_fuzz.py --seeds 148:149 --show

Seeds whose outcome is in the file are not run again, so a run that was stopped, or that --total seconds
ended, goes on where it was. ``--same``: what another tree has left there counts where program, numbers, texts
and emulator are the same by their hash (a fifth of the time of a run); the rest is run again. Prints
what became of them, what they consist of, and how often every operation x type x layout was run and
right; ``--record`` writes that to a file, too. Exit 1 where a kernel was wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from math import inf
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a worker is one core's work
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from facts import facts
from kept_rows import kept_rows
from random_kernel_run import TOGETHER, emitted, fingerprint_of, run_seeds
from random_kernel_tables import cell_table, share_table
from random_kernel_wishes import missing
from random_kernels import random_kernel

#: Seconds for a batch; then its seeds are run one by one, and one that takes so long is a hang.
LIMIT_S = 900.0


def answers(seeds, folder):
  """The outcomes of seeds, from a process that keeps what it compiles under ``folder``."""
  command = [sys.executable, __file__, "--answer", ",".join(map(str, seeds))]
  environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
  try:
    done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S)
    text, detail = done.stdout, f"exit {done.returncode}"
  except subprocess.TimeoutExpired as late:
    text, detail = late.stdout or b"", f"{LIMIT_S:.0f} s"
  for library in folder.rglob("*.so"):
    library.unlink()
  found = [json.loads(line) for line in text.splitlines() if line.endswith(b"}")]
  missing = [s for s in seeds if s not in {row["seed"] for row in found}]
  if len(seeds) == 1:
    return found + [_lost(seed, detail) for seed in missing]
  return found + [row for seed in missing for row in answers([seed], folder)]


def run(seeds, out, workers, deadline=inf):
  """The outcomes of seeds in order, as far as they are begun before the deadline."""
  with tempfile.TemporaryDirectory() as base:
    return kept_rows(
      seeds, out, lambda batch: answers(batch, Path(base) / str(threading.get_ident())),
      jobs=workers, together=TOGETHER, deadline=deadline,
    )  # fmt: skip


def still_same(out, workers):
  """Leaves in the file the outcomes of what this tree would run again as it was."""
  lines = out.read_text().splitlines() if out.exists() else []
  rows = list(map(json.loads, lines))
  with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
    now = list(pool.map(fingerprint_of, [r["seed"] for r in rows], chunksize=20))
  kept = [line for line, row, of in zip(lines, rows, now, strict=True) if row.get("of") == of]
  out.write_text("".join(f"{line}\n" for line in kept))
  print(f"{len(kept)} of {len(rows)} outcomes are of the same programs, texts and emulator", flush=True)


def _lost(seed, detail):
  return {"seed": seed, "form": "", "kind": "crash", "code": "process", "detail": detail,
          "cells": [], "features": []}  # fmt: skip


def report(found):
  """The tables, and the first line of every failure."""
  total = len(found)
  kinds = Counter(r["kind"] for r in found)
  codes = Counter(f"refused {r['code']}" for r in found if r["kind"] == "refused")
  run_and_right = Counter(c for r in found if r["kind"] == "ok" for c in r["cells"])
  bad = [r for r in found if r["kind"] not in ("ok", "refused")]
  parts = [
    f"{total} seeds, {found[0]['seed']} to {found[-1]['seed']}",
    share_table({**kinds, **codes}, total),
    share_table(Counter(f for r in found for f in r["features"]), total),
    share_table(Counter(r["form"] for r in found), total),
    "\n".join([cell_table(run_and_right), *missing(run_and_right)]),
  ]
  parts += [
    "\n".join(
      f"seed {r['seed']} ({r['form']}) {r['kind']} {r['code']} {r['detail']}\n"
      f"    again: python bench/kernel_fuzz.py --seeds {r['seed']}:{r['seed'] + 1} --show"
      for r in bad
    )
  ]
  return "\n\n".join(p for p in parts if p) + "\n"


def show(seeds):
  """A program, its text, and what becomes of it."""
  failed = 0
  for seed in seeds:
    case = random_kernel(seed)
    print(case.text)
    for source in emitted(case).sources:
      print(source.text)
    for outcome in run_seeds([seed]):
      print(outcome)
      failed |= outcome.is_bad
  return failed


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--seeds", default="0:500", metavar="FIRST:END")
  parser.add_argument("--out", type=Path, default=ROOT / "build" / "random_kernels.jsonl")
  parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
  parser.add_argument("--total", type=float, default=inf, help="seconds, then no more are begun")
  parser.add_argument("--record", type=Path, help="a file for the printed tables")
  parser.add_argument("--same", action="store_true", help="keep only outcomes that this tree would have, too")
  parser.add_argument("--show", action="store_true", help="print programs and CUDA, keep nothing")
  parser.add_argument("--answer", help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.answer:
    for outcome in run_seeds(list(map(int, arguments.answer.split(",")))):
      print(json.dumps(asdict(outcome)), flush=True)
    return 0
  first, _, end = arguments.seeds.partition(":")
  seeds = range(int(first), int(end))
  if arguments.show:
    return show(seeds)
  deadline = time.monotonic() + arguments.total
  if arguments.same and arguments.out.exists():
    still_same(arguments.out, arguments.workers)
  found = run(seeds, arguments.out, arguments.workers, deadline)
  if not found:
    sys.exit("no seed was run")
  text = report(found)
  if len(found) < len(seeds):
    text = f"{len(seeds) - len(found)} of {len(seeds)} seeds are left for another run\n\n{text}"
  if arguments.record:
    known = facts(("numpy", "scipy"))
    head = "\n".join(f"{k}: {v}" for k, v in known.items())
    arguments.record.write_text(f"{head}\n\n{text}")
  print(text, end="")
  return int(any(r["kind"] not in ("ok", "refused") for r in found))


if __name__ == "__main__":
  sys.exit(main())
