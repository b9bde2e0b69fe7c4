"""Damaged model files through ``optimize``: no traceback, no hang, no file left after a failure.

    python bench/fuzz.py [--seeds 10000] [--first 0] [--jobs 1] [--state build/fuzz.jsonl]
                         [--out bench/results]

Seeds whose answer is in the state file are not run again (delete it after a change of the code).
Writes fuzz.json and prints it. Exit 1 where a file led to a fault. One file again:
``echo SEED | python tests/support/fuzz_case.py``.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from facts import facts
from fuzz_run import answers, counts
from kept_rows import kept_rows

#: A faulty file's text goes into the record up to here.
SHOWN_CHARACTERS = 400


def summary(found):
  seconds = sorted(a["seconds"] for a in found if a["seconds"] is not None)
  faulty = [a for a in found if a["faults"]]
  return {
    "files": len(found),
    "seeds": [found[0]["seed"], found[-1]["seed"]],
    "outcomes": counts(found),
    "through_the_command": sum(a.get("command", False) for a in found),
    "seconds_of_processor": {
      "median": seconds[len(seconds) // 2],
      "longest": seconds[-1],
    },
    "faulty": len(faulty),
    "faults": [
      {"seed": a["seed"], "kind": a["kind"], "outcome": a["outcome"],
       "fault": " ".join(a["faults"])[-SHOWN_CHARACTERS:]}
      for a in faulty
    ],
    "mutations": dict(Counter(k for a in found for k in a["kind"].split("+")).most_common()),
  }  # fmt: skip


def table(result):
  versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items())
  lines = [result["command"], versions, "", f"{result['files']} files"]
  lines += [f"{code:24}{n:7}" for code, n in result["outcomes"].items()]
  times = result["seconds_of_processor"]
  lines.append(f"seconds: median {times['median']}, longest {times['longest']}")
  lines.append(f"faulty: {result['faulty']}")
  lines += [f"seed {f['seed']} ({f['kind']}) {f['outcome']}: {f['fault']}"
            for f in result["faults"]]  # fmt: skip
  return "\n".join(lines) + "\n"


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--seeds", type=int, default=10_000, metavar="N")
  parser.add_argument("--first", type=int, default=0)
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz.jsonl")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
  arguments = parser.parse_args()
  seeds = range(arguments.first, arguments.first + arguments.seeds)
  share = -(-len(seeds) // arguments.jobs)
  found = kept_rows(seeds, arguments.state, answers, jobs=arguments.jobs, together=share)
  result = {**facts(("onnx", "onnxruntime", "numpy", "protobuf")), **summary(found)}
  arguments.out.mkdir(parents=True, exist_ok=True)
  (arguments.out / "fuzz.json").write_text(json.dumps(result, indent=1) + "\n")
  print(table(result), end="")
  return 1 if result["faulty"] else 0


if __name__ == "__main__":
  sys.exit(main())
