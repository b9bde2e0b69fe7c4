"""The verifier measured: golden µGraphs, mutants by kind, saved graphs, times.

    python bench/verify.py [--out out/verify.json] [--jobs 2] [--repeats 50]

Prints the counts and writes them with the command, versions and CPU. Exit 1 if a wrong program was
accepted, a right one refused, or a time is above its limit. The original's saved graphs are read
from $MIRAGE_SAVED_MUGRAPHS, or from ../shared/mugraphs where that exists.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from facts import facts
from fragile_programs import FRAGILE
from goldens import GOLDENS
from mutant_verdicts import STAGES, Tally, judged
from saved_references import references, saved_folder
from saved_scaling import scaled_down, scaled_shape
from saved_truth import Truth
from verify_times import LIMIT_MS, times_ms

from mirage_onnx.errors import Rejection
from mirage_onnx.formats.mirage.check import check_saved
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.safety import safety_row


def _row(times):
  return {
    "median": round(float(np.median(times)), 2),
    "p95": round(float(np.percentile(times, 95)), 2),
  }


def measure_times(repeats):
  """Milliseconds of CPU time per call of ``verify``, per golden and over all calls."""
  every = {g.name: times_ms(g, repeats) for g in GOLDENS}
  total = np.concatenate(list(every.values()))
  return {
    "repeats": repeats,
    "limit": LIMIT_MS,
    "all": _row(total),
    "goldens": {name: _row(t) for name, t in every.items()},
  }


def judge_goldens():
  result = {}
  for g in GOLDENS:
    proof = verify(g.region, g.ugraph)
    kept = {"accepted": isinstance(proof, Proof)}
    if isinstance(proof, Proof):
      kept |= {"tier": proof.tier, "draws": proof.draws, "bound": proof.bound}
    result[g.name] = kept
  return result


def judge_safety():
  """What range, shift and rounding checks say of the goldens with real numbers."""
  rows = (asdict(safety_row(g.name, g.region, g.ugraph, g.params)) for g in GOLDENS)
  # A refused candidate may have no error to tell: JSON has no NaN.
  return [{k: None if v != v else v for k, v in row.items()} for row in rows]


def _mutants_of(index):
  return list(judged(GOLDENS[index]))


def judge_mutants(jobs):
  tally = Tally()
  with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
    for items in pool.map(_mutants_of, range(len(GOLDENS))):
      tally.add(items)
  return tally


def judge_saved():
  """File -> graphs, those accepted, the codes of the others, and what float64 says of them.

  The float64 oracle runs the JSON itself, with every number scaled down.
  """
  folder = saved_folder()
  if folder is None:
    return None
  result = {}
  small = references(scaled_shape)
  for name, reference in references().items():
    start = time.perf_counter()
    verdicts = check_saved(folder / name, reference)
    seconds = time.perf_counter() - start
    truth = Truth(small[name], np.random.default_rng(3))
    equal = [truth.equal(scaled_down(g)) for g in json.loads((folder / name).read_text())]
    codes = Counter(v.rejection.code for v in verdicts if v.rejection is not None)
    result[name] = {
      "graphs": len(verdicts),
      "accepted": sum(v.accepted for v in verdicts),
      "refused": dict(sorted(codes.items())),
      "equal_in_float64": sum(equal),
      "agree": sum(v.accepted == e for v, e in zip(verdicts, equal, strict=True)),
      "seconds": round(seconds, 2),
    }
  return result


def _described(j):
  return {"golden": j.golden, "kind": j.kind, "differs": j.differs or "", "reason": j.reason}


def record(arguments):
  """Everything that is written; times first, while nothing else of ours runs."""
  times = measure_times(arguments.repeats)
  goldens = judge_goldens()
  refused = {p.name: isinstance(verify(p.golden.region, p.graph), Rejection) for p in FRAGILE}
  saved = judge_saved()
  start = time.perf_counter()
  tally = judge_mutants(arguments.jobs)
  stages = sum(tally.stages.values(), Counter())
  result = {
    **facts(("numpy", "scipy", "onnx")),
    "times_ms": times,
    "goldens": goldens,
    "safety": judge_safety(),
    "wrong_at_other_sizes": {"programs": len(refused), "rejected": sum(refused.values())},
    "saved": saved,
    "mutants": {
      "total": tally.total,
      **{stage: stages[stage] for stage in STAGES},
      "wrongly_accepted": [_described(j) for j in tally.wrongly_accepted],
      "equivalents_refused": [_described(j) for j in tally.refused_equivalents],
      "kinds": {
        kind: {"mutants": c.total(), **{s: c[s] for s in STAGES if c[s]}} for kind, c in tally.stages.items()
      },
      "verdict_ms": _row(np.array(tally.verdict_ms)),
      "seconds": round(time.perf_counter() - start, 1),
    },
  }
  return result, tally


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--out", type=Path, default=ROOT / "out" / "verify.json")
  parser.add_argument("--jobs", type=int, default=2)
  parser.add_argument("--repeats", type=int, default=50)
  arguments = parser.parse_args()
  result, tally = record(arguments)
  print(tally.table())
  print(f"wrongly accepted: {len(tally.wrongly_accepted)}")
  print(f"equivalents refused: {len(tally.refused_equivalents)}")
  accepted = sum(g["accepted"] for g in result["goldens"].values())
  print(f"goldens accepted: {accepted} of {len(GOLDENS)}")
  sizes = result["wrong_at_other_sizes"]
  print(f"right at some sizes only: {sizes['rejected']} of {sizes['programs']} rejected")
  for name, row in (result["saved"] or {}).items():
    print(
      f"{name:20}{row['accepted']:4} of {row['graphs']:4} accepted, "
      f"{row['agree']} as float64 says {row['refused'] or ''}"
    )
  for row in result["safety"]:
    errors = (row["candidate_error"], row["original_error"])
    mine, theirs = ("-" if e is None else f"{e:.1e}" for e in errors)
    print(
      f"{row['name']:24}maximum {row['maximum']:16} relative error {mine:8}"
      f"(original {theirs:7}) {row['verdict']}"
    )
  times = result["times_ms"]["all"]
  print(f"verify: median {times['median']} ms, 95th percentile {times['p95']} ms")
  arguments.out.parent.mkdir(parents=True, exist_ok=True)
  arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
  fine = (
    not tally.wrongly_accepted
    and not tally.refused_equivalents
    and accepted == len(GOLDENS)
    and sizes["rejected"] == sizes["programs"]
    and all(row["agree"] == row["graphs"] for row in (result["saved"] or {}).values())
    and all(times[k] <= LIMIT_MS[k] for k in LIMIT_MS)
  )
  return 0 if fine else 1


if __name__ == "__main__":
  sys.exit(main())
