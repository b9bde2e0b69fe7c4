"""Plants an error in every stage of every replaced region of ten models or more: each costs its region.

    python bench/failures.py [--models NAME ...] [--jobs N] [--folder FOLDER] [--out FILE]

A case is one model, one stage of ``optimize`` and the nodes of one region that is replaced without
errors; the stage fails for whatever holds one of these nodes. ``optimize`` has to write a model all
the same: onnx's checker passes, a plain onnxruntime gives the original's outputs (both are checks of
``optimize`` itself), and the report says REGION_FAILED. (Another instance may stand for the region in a
stage, then its nodes may be replaced as others of that one.)
Models are optimized without errors first, and cases of one begin when that is done. All run in processes
of their own, with results of searches kept but where the search is the stage. Writes FILE
(bench/results/failures.json) after each, goes on where it was. Exit 1 if one is not kept.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / p) for p in ("bench", "tests/support", "models", "models/architectures")]

import onnx
import weights
from facts import facts
from mutants.harness import Fault, Outcome, forked
from mutants.hooks import patched, production, watching
from planted_failures import SEARCHING, STAGES, planted

from mirage_onnx import api
from mirage_onnx.superopt.kept_results import KeptResults

#: Encoders and decoders, three element types, scans, experts, a cache; each has two layers. Of some
#: nothing is replaced without an error, and no case is made of them.
MODELS = (
  "bert", "llama3_decode", "mixtral_decode", "vit", "gpt2_prefill", "qwen3_decode", "t5_encoder",
  "whisper_decoder", "bert_float32", "modernbert", "clip_text", "phi3_decode", "gemma3_decode", "distilbert",
)  # fmt: skip
BUDGET_S = 120.0
#: What is no stage: the model without errors.
PREPARE = "prepare"
_PACKAGES = ("onnx", "onnxruntime", "numpy")


def optimize(path, out, budget_s=BUDGET_S):
  """The run that was written, and what its report says was checked."""
  with watching("mirage_onnx.api:write") as runs:
    api.optimize(path, out, target="h200", budget_s=budget_s, workers=1)
  return runs[0]


class Failures:
  """Models with their regions, and one case at a time."""

  def __init__(self, folder):
    self.folder = folder
    os.environ["MIRAGE_CACHE_DIR"] = str(folder / "cache")

  def known(self, name):
    """Where the nodes of one instance of every replaced region of a model are."""
    return self.folder / f"{name}.json"

  def cases(self, names, done):
    """Every stage of every region that is not in ``done``; first what prepares each model.

    None where there is no case before a model is prepared.
    """
    waiting = list(names)
    yield from (Fault(PREPARE, n, "", nullcontext) for n in names if not self.known(n).exists())
    while waiting:
      ready = [n for n in waiting if self.known(n).exists()]
      for name in ready:
        waiting.remove(name)
        for n, nodes in enumerate(json.loads(self.known(name).read_text())):
          every = (Fault(stage, name, f"{n} {nodes[0]}", lambda nodes=nodes: nodes) for stage in STAGES)
          yield from (c for c in every if c.id not in done)
      if waiting and not ready:
        yield None

  def run(self, case):
    """What became of one case, in this process."""
    return self._prepared(case.subject) if case.stage == PREPARE else self._failing(case)

  def _prepared(self, name):
    start, source = time.monotonic(), self.folder / f"{name}.onnx"
    onnx.save(weights.load(name), source)
    run, _ = optimize(source, self.folder / f"{name}.good.onnx", 3 * BUDGET_S)
    regions = list({o.region.key: sorted(c.nodes) for c, o in run.chosen}.values())
    part = self.known(name).with_suffix(".part")
    part.write_text(json.dumps(regions))
    part.replace(self.known(name))
    said = f"{len(regions)} regions of {len(run.chosen)} that are replaced"
    return Outcome(f"{PREPARE}/{name}/", "prepared", said, round(time.monotonic() - start, 1))

  def _failing(self, case):
    start, nodes = time.monotonic(), {*case.plant()}
    out = self.folder / f"{os.getpid()}.onnx"

    def outcome(result, by=""):
      return Outcome(case.id, result, by[:200], round(time.monotonic() - start, 1))

    get = production("mirage_onnx.superopt.kept_results:KeptResults.get")

    def unless_planted(self, region, *more):
      searched = case.stage in SEARCHING and not nodes.isdisjoint(region.nodes)
      return None if searched else get(self, region, *more)

    with (
      patched(unless_planted, f"{KeptResults.__module__}:KeptResults.get"),
      planted(case.stage, nodes.__contains__) as hits,
    ):
      try:
        run, checked = optimize(self.folder / f"{case.subject}.onnx", out)
      except Exception as error:
        return outcome("failed", f"{type(error).__name__}: {error}")
    if not hits:
      return outcome("nothing")
    onnx.checker.check_model(str(out))
    refusals = [o.rejection for o in run.outcomes.values() if o.rejection] + list(run.matches.rejections)
    refusals += [why for o in run.outcomes.values() for _, why in o.left_alone]
    if not any(r.code == "REGION_FAILED" and "planted" in r.reason for r in refusals):
      return outcome("failed", "the report does not say it")
    if case.stage == "import" and (replaced := [n for c, _ in run.chosen for n in c.nodes if n in nodes]):
      return outcome("failed", f"replaced all the same: {replaced[0]}")
    if run.chosen and "without the library" not in checked:
      return outcome("failed", f"not checked: {checked}")
    return outcome("kept", f"{len(run.chosen)} others replaced; {checked}")


def write(path, about, outcomes):
  """The record: a line per case."""
  stages = {s: dict(Counter(o.result for o in outcomes if o.id.startswith(f"{s}/"))) for s in STAGES}
  head = {**about, "results": dict(Counter(o.result for o in outcomes)), "by stage": stages}
  lines = ",\n".join(json.dumps([o.id, o.result, o.by, o.seconds]) for o in outcomes)
  path.write_text(json.dumps(head, indent=1).removesuffix("\n}") + f',\n "cases": [\n{lines}\n]\n}}\n')


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--models", nargs="+", default=MODELS, choices=weights.names())
  parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
  parser.add_argument("--folder", type=Path, help="models of an earlier run")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "failures.json")
  given = parser.parse_args()
  with tempfile.TemporaryDirectory() as own:
    folder = given.folder or Path(own)
    folder.mkdir(parents=True, exist_ok=True)
    failures = Failures(folder)
    outcomes = []
    if given.out.exists():
      outcomes = [Outcome(*x) for x in json.loads(given.out.read_text())["cases"]]
    known, about = {o.id for o in outcomes}, {**facts(_PACKAGES), "models": list(given.models)}
    unprepared = 0
    for o in forked(failures, failures.cases(given.models, known), given.jobs):
      print(f"{len(outcomes):4} {o.result:8} {o.seconds:6.1f} s  {o.id}  {o.by}", flush=True)
      if o.id.startswith(f"{PREPARE}/"):
        unprepared += o.result != "prepared"
        continue
      outcomes.append(o)
      write(given.out, about, outcomes)
  return int(unprepared > 0 or any(o.result not in ("kept", "nothing") for o in outcomes))


if __name__ == "__main__":
  sys.exit(main())
