"""Written models altered in one place, with every hash right again: what the library and ``verify`` say.

    python bench/altered.py [--each 0] [--seconds 600] [--jobs 1] [--seed 0]
                            [--state build/altered.jsonl] [--out bench/results]

Three models (tests/support/altered_models.py); every field of every line of their plans, every value of
their records, bytes of their images, plans and images in each other's places, every field of the ONNX
file. ``--each``: at most so many of each kind and model (0: all), drawn by ``--seed``. The library runs
with a stand-in driver that takes NVRTC's images, ``verify`` as it is. Cases whose answer is in the state
file, of the same written model, are not run again: a run that ``--seconds`` ended goes on where it was
(delete the file after a change of the code). Writes altered.json, prints it, and exits 1 where the
library took what SECURITY.md does not list as unauthenticated, ``verify`` passed an altered launch, or
anything crashed. What it passes of the rest (names, doc strings, attributes that are defaults) is listed,
to be read.
"""

import argparse
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
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
#: Cases that one process answers.
TOGETHER = 80
ANSWERS = ROOT / "tests" / "support" / "altered_run.py"
WHO = ("library", "verify")


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


def ask(folder, name, driver, end, cases):
  """Rows of these cases as they come; one with a fault where the process ended before its answer."""
  while cases and (seconds := end - time.monotonic()) > 0:
    command = [sys.executable, str(ANSWERS), str(folder), name, str(driver), f"{seconds:.0f}", *cases]
    with tempfile.TemporaryFile() as said, subprocess.Popen(
      command, stdout=subprocess.PIPE, stderr=said, text=True
    ) as process:  # fmt: skip
      asked = {}
      for row in map(json.loads, process.stdout):
        if "asks" in row:
          asked = row
          continue
        yield row
        cases = [c for c in cases if c != f"{row['kind']}:{row['number']}"]
      if process.wait() == 0:
        return  # all of them, or the time is over
      said.seek(0)
      what = f"exit {process.returncode} in {asked.get('asks', 'its start')}: {said.read()[-400:].decode()}"
    if not asked:
      raise RuntimeError(f"{name}: {what}")
    yield {**asked, "fault": what}
    cases = [c for c in cases if c != f"{asked['kind']}:{asked['number']}"]


def run(folder, *, each, seconds, jobs, seed, state):
  """Rows, and how many cases there are by model and kind."""
  rng, driver = random.Random(seed), stand_in(folder)
  there, todo, known = {}, [], {}
  lines = state.read_text().splitlines() if state.exists() else []
  kept = {(r["written"], r["model"], f"{r['kind']}:{r['number']}"): r for r in map(json.loads, lines)}
  end = time.monotonic() + seconds
  for name in altered_models.NAMES:
    source, out = altered_models.write(name, folder)
    written = hashlib.sha256(source.read_bytes() + out.read_bytes()).hexdigest()[:16]
    cases, there[name] = drawn(name, folder, each, rng)
    known |= {(name, c): kept[written, name, c] for c in cases if (written, name, c) in kept}
    for is_leaf in (False, True):
      new = [c for c in cases if (name, c) not in known and c.startswith("leaf:") == is_leaf]
      todo += [(name, written, new[i : i + TOGETHER]) for i in range(0, len(new), TOGETHER)]
  todo.sort(key=lambda batch: batch[2][0].startswith("leaf:"))  # launches of all models come first
  state.parent.mkdir(parents=True, exist_ok=True)
  with state.open("a") as file, ThreadPoolExecutor(jobs) as pool:

    def work(batch):
      name, written, cases = batch
      for row in ask(folder, name, driver, end, cases):
        known[name, f"{row['kind']}:{row['number']}"] = row
        file.write(json.dumps({"written": written, **row}) + "\n")
        file.flush()

    list(pool.map(work, todo))
  return list(known.values()), there


def faults(rows):
  for row in rows:
    what = f"{row['model']} {row['kind']} {row['what']}"
    if "fault" in row:
      yield f"{what}: {row['fault']}"
    elif "library" in row:
      yield from (f"{what}: {fault}" for fault in altered_rules.faults(row))


def summary(rows, there):
  found = {}
  for name in there:
    mine = [r for r in rows if r["model"] == name]
    found[name] = {
      kind: {
        "cases": count,
        "no_file": sum(r["kind"] == kind and "library" not in r for r in mine),  # nothing differs, or no node
        "run": sum(r["kind"] == kind and "library" in r for r in mine),
        **{who: dict(Counter(r[who] for r in mine if r["kind"] == kind and who in r)) for who in WHO},
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
    "longest": {who: _longest(who, rows) for who in WHO},
  }


def _longest(who, rows):
  row = max((r for r in rows if f"{who}_s" in r), key=lambda r: r[f"{who}_s"])
  return f"{row[f'{who}_s']} s: {row['model']} {row['kind']} {row['what']}"


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--each", type=int, default=0, metavar="N")
  parser.add_argument("--seconds", type=float, default=600.0)
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--state", type=Path, default=ROOT / "build" / "altered.jsonl")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  given = parser.parse_args()
  about = facts(("onnx", "onnxruntime", "numpy"))
  with tempfile.TemporaryDirectory() as folder:
    rows, there = run(
      Path(folder), each=given.each, seconds=given.seconds, jobs=given.jobs, seed=given.seed,
      state=given.state,
    )  # fmt: skip
  rows.sort(key=lambda r: (r["model"], r["kind"], r["number"]))
  wrong = list(faults(rows))
  result = {**about, **summary(rows, there), "faults": wrong[:SHOWN], "faulty": len(wrong)}
  given.out.mkdir(parents=True, exist_ok=True)
  (given.out / "altered.json").write_text(json.dumps(result, indent=1) + "\n")
  print(json.dumps(result, indent=1))
  return 1 if wrong else 0


if __name__ == "__main__":
  sys.exit(main())
