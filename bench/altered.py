"""Written models altered in one place, with every hash right again: what the library and ``verify`` say.

    python bench/altered.py [--each 0] [--seconds 600] [--jobs 1] [--seed 0] [--out bench/results]

Three models (tests/support/altered_models.py); every field of every line of their plans, every value of
their records, bytes of their images, plans and images in each other's places, every field of the ONNX
file. ``--each``: at most so many of each kind and model (0: all), drawn by ``--seed``. The library runs
with a stand-in driver that takes NVRTC's images, ``verify`` as it is. Writes altered.json, prints it, and
exits 1 where the library took what SECURITY.md does not list as unauthenticated, ``verify`` passed an
altered launch, or anything crashed. What it passes of the rest (names, doc strings, attributes that are
defaults) is listed, to be read.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support"), str(ROOT / "bench")]

import altered_models
import altered_rules
import onnx
from facts import facts
from sanitized import SOURCES, build

SHOWN = 30


def stand_in(folder):
  """The driver of the tests, which takes real images, too."""
  files = [str(ROOT / "tests" / "custom_op" / "standin_driver.cc"), str(SOURCES / "image.cc")]
  flags = ("-std=c++17", "-O1", "-shared", "-fPIC", "-DSTANDIN_IMAGES", f"-I{SOURCES}")
  return build(folder / "standin.so", *files, flags=flags)


def drawn(name, folder, each, rng):
  """``KIND:NUMBER`` of the cases of a model that are run; how many there are of each kind."""
  model = onnx.load(folder / f"{name}.opt.onnx", load_external_data=False)
  count = Counter(case.kind for case in altered_models.cases(model, folder))
  found = []
  for kind, n in count.items():
    found += [f"{kind}:{k}" for k in (rng.sample(range(n), each) if 0 < each < n else range(n))]
  rng.shuffle(found)
  return found, dict(count)


def ask(folder, name, driver, seconds, cases):
  """Rows of these cases; a fault where the process ended before."""
  script = str(ROOT / "tests" / "support" / "altered_run.py")
  command = [sys.executable, script, str(folder), name, str(driver), str(seconds), *cases]
  done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
  rows = [json.loads(line) for line in done.stdout.splitlines()]
  answered = [r for r in rows if "asks" not in r]
  if done.returncode:
    last = next((r for r in reversed(rows) if "asks" in r), {})
    return answered, [f"{name}: exit {done.returncode} at {last}: {done.stderr[-400:]}"]
  return answered, []


def run(folder, *, each, seconds, jobs, seed):
  """Rows, faults, and how many cases there are by model and kind."""
  rng, driver = random.Random(seed), stand_in(folder)
  rows, wrong, there, asked = [], [], {}, []
  for name in altered_models.NAMES:
    altered_models.write(name, folder)
    cases, there[name] = drawn(name, folder, each, rng)
    asked += [(name, cases[k::jobs]) for k in range(jobs)]
  share = seconds / len(altered_models.NAMES)
  with ThreadPoolExecutor(jobs) as pool:
    found = pool.map(lambda a: ask(folder, a[0], driver, share, a[1]), asked)
    for answered, faults in found:
      rows += answered
      wrong += faults
  for row in rows:
    if "library" in row:
      wrong += [f"{row['model']} {row['kind']} {row['what']}: {fault}" for fault in altered_rules.faults(row)]
  return rows, wrong, there


def summary(rows, there):
  found = {}
  for name in there:
    mine = [r for r in rows if r["model"] == name and "library" in r]
    found[name] = {
      kind: {
        "cases": count,
        "run": sum(r["kind"] == kind for r in mine),
        "library": dict(Counter(r["library"] for r in mine if r["kind"] == kind)),
        "verify": dict(Counter(r["verify"] for r in mine if r["kind"] == kind)),
      }
      for kind, count in there[name].items()
    }
  plans = [r for r in rows if r["kind"] in ("plan", "both") and "library" in r]
  taken = Counter(f for r in plans if r["library"] == "accepted" for f in r["fields"])
  refused = Counter(f for r in plans if r["library"] != "accepted" for f in r["fields"])
  passed = [f"{r['model']} {r['kind']} {r['what']}" for r in rows if r.get("verify") == "PASSED"]
  return {
    "models": found,
    "fields_that_the_library_took": dict(taken.most_common()),
    "fields_that_it_refused": dict(refused.most_common()),
    "passed_by_verify": sorted(passed),
    "longest": {who: _longest(who, rows) for who in ("library", "verify")},
  }


def _longest(who, rows):
  row = max((r for r in rows if who in r), key=lambda r: r[f"{who}_s"])
  return f"{row[f'{who}_s']} s: {row['model']} {row['kind']} {row['what']}"


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--each", type=int, default=0, metavar="N")
  parser.add_argument("--seconds", type=float, default=600.0)
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  given = parser.parse_args()
  about = facts(("onnx", "onnxruntime", "numpy"))
  with tempfile.TemporaryDirectory() as folder:
    rows, wrong, there = run(
      Path(folder), each=given.each, seconds=given.seconds, jobs=given.jobs, seed=given.seed
    )
  result = {**about, **summary(rows, there), "faults": wrong[:SHOWN], "faulty": len(wrong)}
  given.out.mkdir(parents=True, exist_ok=True)
  (given.out / "altered.json").write_text(json.dumps(result, indent=1) + "\n")
  print(json.dumps(result, indent=1))
  return 1 if wrong else 0


if __name__ == "__main__":
  sys.exit(main())
