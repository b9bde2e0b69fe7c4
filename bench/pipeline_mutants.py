"""Plants faults in the stages of ``optimize`` and says which of them a model could get through with.

    python bench/pipeline_mutants.py [--faults N] [--jobs N] [--seed N] [--only STAGE] [--out FILE]

A fault is a monkeypatch of production code or data (``bench/mutants``), in force while a small model
is optimized and while ``verify`` compares what was written (kernels emulated). It has to be caught:
``optimize`` ends with an error, leaves the region alone, or ``verify`` fails. Each runs in a process
of its own. N faults are drawn, as many of every stage as there are or as its share allows. One with
which the same graph, plans and images are written is none, nor is another right program, and one with
which the time was over shows nothing: they are replaced by others of their stage, and only counted. Writes
FILE (bench/results/pipeline_mutants.json) after each; goes on where a run of the same seed was stopped.
Exit 1 if one survives.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "support")]

from facts import facts
from mutants import (
  body_faults,
  meaning_faults,
  plan_faults,
  program_faults,
  region_faults,
  search_faults,
  text_faults,
)
from mutants.harness import NO_FAULT, Bench, Outcome, forked
from mutants.subjects import SUBJECTS

#: Stage -> its faults of a subject, and the part of all faults that is drawn from it.
STAGES = {
  "semantics": (meaning_faults.semantics, 2), "match": (meaning_faults.regions, 3),
  "axiom": (search_faults.axioms, 2), "search": (program_faults.before, 2), "cache": (search_faults.stale, 1),
  "program": (program_faults.behind, 5), "function": (meaning_faults.functions, 2),
  "text": (text_faults.faults, 4),
  "plan": (plan_faults.faults, 5), "weight": (search_faults.stored, 1), "region": (region_faults.faults, 2),
  "body": (body_faults.faults, 3),
}  # fmt: skip
_PACKAGES = ("onnx", "numpy")


def order(bench, seed, only=(), subjects=tuple(SUBJECTS)):
  """All faults by stage, in an order that the seed gives; subjects take turns."""
  found = {}
  for stage, (make, _) in STAGES.items():
    if only and stage not in only:
      continue
    rng = random.Random(f"{seed} {stage}")
    queues = [list(make(bench, name)) for name in subjects]
    for queue in queues:
      rng.shuffle(queue)
    turns = (queue.pop() for _ in range(max(map(len, queues), default=0)) for queue in queues if queue)
    found[stage] = list(turns)
  return found


def quotas(faults, count):
  """How many of every stage: its share, where there are so many."""
  whole = sum(STAGES[s][1] for s in faults)
  return {s: min(len(all_), -(-count * STAGES[s][1] // whole)) for s, all_ in faults.items()}


class Turns:
  """Faults of all stages in turn, until every stage has its quota of those that change something."""

  def __init__(self, faults, quota, known=()):
    self._faults, self._left = faults, dict(quota)
    self._running = dict.fromkeys(faults, 0)
    self._known = {o.id: o for o in known}
    self.outcomes = []

  def __iter__(self):
    return self

  def __next__(self):
    """A fault that no earlier run knows, the stage with most left first."""
    while True:
      open_ = [s for s, queue in self._faults.items() if queue and self._left[s] > self._running[s]]
      if not open_:
        raise StopIteration
      stage = max(open_, key=lambda s: self._left[s] - self._running[s])
      fault = self._faults[stage].pop(0)
      if fault.id not in self._known:
        self._running[stage] += 1
        return fault
      self._count(self._known[fault.id])

  def tell(self, outcome):
    """What became of a fault that was asked for."""
    self._running[outcome.id.partition("/")[0]] -= 1
    self._count(outcome)

  def _count(self, outcome):
    self.outcomes.append(outcome)
    self._left[outcome.id.partition("/")[0]] -= outcome.result not in NO_FAULT


def run(bench, count, seed, *, only=(), subjects=tuple(SUBJECTS), known=(), jobs=1, told=lambda _: None):
  """The outcomes of ``count`` faults."""
  faults = order(bench, seed, only, subjects)
  turns = Turns(faults, quotas(faults, count), known)
  for outcome in forked(bench, turns, jobs):
    turns.tell(outcome)
    told(turns.outcomes)
  return turns.outcomes


def summary(outcomes):
  """Results by stage, then what was caught by what."""
  real = [o for o in outcomes if o.result not in NO_FAULT]
  stages = sorted({o.id.split("/")[0] for o in outcomes})
  return {
    "faults": len(real),
    "nothing changed": sum(o.result == "nothing" for o in outcomes),
    "out of time": sum(o.result == "late" for o in outcomes),
    "another right program": sum(o.result == "right" for o in outcomes),
    "results": dict(Counter(o.result for o in real)),
    "by stage": {
      s: dict(Counter(o.result for o in outcomes if o.id.startswith(f"{s}/"))) for s in stages
    },
    "caught by": dict(Counter(_catcher(o) for o in real if o.result == "caught").most_common()),
  }  # fmt: skip


def _catcher(outcome):
  """The command, and the code where it has one."""
  command, _, rest = outcome.by.partition(": ")
  word = rest.split(":")[0].split(" ")[0]
  if word.isupper() and len(word) > 3:
    return f"{command} {word}"
  return "optimize, an exception without a code" if command == "optimize" else "verify, an output"


def write(path, about, outcomes):
  """The record: a line per fault."""
  head = json.dumps({**about, **summary(outcomes)}, indent=1).removesuffix("\n}")
  lines = ",\n".join(json.dumps(asdict(o), separators=(",", ":")) for o in outcomes)
  path.write_text(f'{head},\n "outcomes": [\n{lines}\n]\n}}\n')


def prepared(folder, subjects=tuple(SUBJECTS)):
  """A bench with subjects, each prepared in a child."""
  bench = Bench(folder)
  for name in subjects:
    if bench.good(name).exists():
      continue
    child = os.fork()
    if child == 0:
      status = 0
      try:
        bench.prepare(name)
      except BaseException:
        traceback.print_exc()
        status = 1
      finally:
        os._exit(status)
    _, status = os.waitpid(child, 0)
    if status:
      raise RuntimeError(f"{name} cannot be prepared")
  return bench


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--faults", type=int, default=330)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
  parser.add_argument("--only", action="append", default=[], choices=list(STAGES))
  parser.add_argument("--folder", type=Path, help="subjects of an earlier run")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "pipeline_mutants.json")
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as own:
    folder = given.folder or Path(own)
    folder.mkdir(parents=True, exist_ok=True)
    bench = prepared(folder)
    known = (
      [Outcome(**o) for o in json.loads(given.out.read_text())["outcomes"]] if given.out.exists() else []
    )
    about = {**facts(_PACKAGES), "seed": given.seed}

    def told(outcomes):
      o = outcomes[-1]
      write(given.out, about, outcomes)
      print(f"{len(outcomes):4} {o.result:9} {o.seconds:6.1f} s  {o.id}  {o.by}", flush=True)

    outcomes = run(bench, given.faults, given.seed, only=given.only, known=known, jobs=given.jobs, told=told)
  print(json.dumps(summary(outcomes), indent=1))
  return int(any(o.result not in ("caught", *NO_FAULT) for o in outcomes))


if __name__ == "__main__":
  sys.exit(main())
