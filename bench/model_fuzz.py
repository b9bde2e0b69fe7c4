"""Models of a grammar, damaged, through loading, inspection and a search: a result or a code, soon.

    python bench/model_fuzz.py [--case damaged|odd|kept] [--seeds 100000] [--first 0] [--jobs 1]
                               [--state build/model_fuzz.jsonl] [--out bench/results]

Every file in a child process with a limit of processor time (2 s; more for the tenth that is optimized)
and of address space. Seeds whose answer is in the state file are not run again (delete it after a change
of the code). Writes model_fuzz.json, prints it, and exits 1 where a file led to a fault. One file
again: ``echo SEED | python tests/support/model_case.py``. ``odd``: models that no exporter writes
(odd_case.py); ``kept``: journals and files of the cache folder (kept_case.py). They write odd_fuzz.json and
kept_fuzz.json.
"""

import argparse
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import kept_case
import model_case
import odd_case
from facts import facts
from fuzz_run import answers, counts
from kept_rows import kept_rows

#: Of a fault's text, its end; of faults, the first.
SHOWN_CHARACTERS, SHOWN = 400, 20
#: Seconds of processor time after which a file that gave no answer is a hang.
HANG_S = 12.0
#: What is run -> the name of its record, and the program that answers.
CASES = {
  "damaged": ("model_fuzz", model_case),
  "odd": ("odd_fuzz", odd_case),
  "kept": ("kept_fuzz", kept_case),
}


def summary(found):
  faulty = [a for a in found if a["faults"]]
  seconds = sorted(a["seconds"] for a in found if a["seconds"] is not None)
  outcomes = counts(found)
  longest = {a["seed"]: a["seconds"] for a in sorted(found, key=lambda a: -(a["seconds"] or 0))[:5]}
  return {
    "files": len(found),
    "seeds": [found[0]["seed"], found[-1]["seed"]],
    "kinds": dict(Counter(a["kind"] for a in found)),
    "optimized": sum(a.get("optimized", False) for a in found),
    "accepted": outcomes.pop("ACCEPTED", 0),
    "untyped_errors": outcomes.pop("TRACEBACK", 0),
    "crashes": outcomes.pop("CRASH", 0),
    "hangs": outcomes.pop("HANG", 0),
    "refused": outcomes,
    "seconds_of_processor": {"all": round(sum(seconds), 1), "median": seconds[len(seconds) // 2]},
    "longest_s": longest,
    "largest_mib": max(a.get("mib", 0) for a in found),
    "least_mib": min(a["mib"] for a in found if "mib" in a),  # the processes, with what they import
    "limits": {
      "seconds": model_case.LIMIT_S, "seconds_of_a_search": model_case.BUDGET_S,
      "address_space_mib": model_case.MEMORY_BYTES >> 20,
    },
    "changes": dict(Counter(k for a in found for k in a.get("what", "").split("+")).most_common()),
    "faulty": len(faulty),
    "faults": [
      {"seed": a["seed"], "outcome": a["outcome"], "fault": " ".join(a["faults"])[-SHOWN_CHARACTERS:]}
      for a in faulty[:SHOWN]
    ],
  }  # fmt: skip


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--case", choices=CASES, default="damaged")
  parser.add_argument("--seeds", type=int, default=100_000, metavar="N")
  parser.add_argument("--first", type=int, default=0)
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--state", type=Path, help="default: build/NAME.jsonl")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  arguments = parser.parse_args()
  about, seeds = (
    facts(("onnx", "onnxruntime", "numpy", "protobuf")),
    range(arguments.first, arguments.first + arguments.seeds),
  )
  share = -(-len(seeds) // arguments.jobs)
  name, case = CASES[arguments.case]
  ask = partial(answers, case=case.__file__, limit_s=HANG_S)
  state = arguments.state or ROOT / "build" / f"{name}.jsonl"
  found = kept_rows(seeds, state, ask, jobs=arguments.jobs, together=share)
  result = {**about, **summary(found)}
  arguments.out.mkdir(parents=True, exist_ok=True)
  (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
  print(json.dumps(result, indent=1))
  return 1 if result["faulty"] else 0


if __name__ == "__main__":
  sys.exit(main())
