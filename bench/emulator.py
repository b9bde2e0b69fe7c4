"""Every mutant of the correct kernels, in the emulator: what notices it, and what survives.

python bench/emulator.py [--beside] [--only SUBJECT ...] [--out FILE]     (bench/results/emulator.json)

--beside: of the kernels with wgmma, to bench/results/emulator_beside.json.

Survivors are printed; ``tests/emulator/survivors.txt`` has them with reasons, so the record
only says how many there are and the digest of their sorted lines.
"""

import argparse
import hashlib
import json
import platform
import subprocess
import sys
import time
from collections import Counter
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from mutant_subjects import beside, generated, handwritten

from mirage_onnx.emulator import compile_kernels


def main():
  """Run the corpus, print a line per subject, write the record."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path)
  parser.add_argument("--beside", action="store_true", help="of the kernels with wgmma")
  parser.add_argument("--only", nargs="+", default=[], help="subjects by name")
  args = parser.parse_args()
  out = args.out or RESULTS / ("emulator_beside.json" if args.beside else "emulator.json")
  started = time.time()
  noticed_by = Counter()
  kinds = {}
  survivors, alarms, subjects = [], [], 0
  for subject in beside() if args.beside else chain(generated(), handwritten()):
    if args.only and subject.name not in args.only:
      continue
    subjects += 1
    module = compile_kernels(subject.kernels)
    if alarm := subject.run(module, range(len(subject.kernels))):
      alarms.append(f"{subject.name}: {alarm}")
    results = subject.noticed(subject.mutants())
    for mutant, noticed in results:
      count = kinds.setdefault(mutant.kind, [0, 0])
      count[0] += 1
      count[1] += bool(noticed)
      noticed_by["wrong output" if noticed.startswith("output") else noticed] += 1
      if not noticed:
        survivors.append(f"{subject.name} | {mutant.change}")
        print(survivors[-1])
    print(f"{subject.name}: {len(results)} mutants, "
          f"{sum(not n for _, n in results)} survive", flush=True)  # fmt: skip
  total = sum(tried for tried, _ in kinds.values())
  compiler = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True)
  record = {
    "command": " ".join(["python bench/emulator.py", *(a for a in sys.argv[1:] if a != str(args.out))]),
    "compiler": compiler.stdout.splitlines()[0],
    "machine": platform.machine(),
    "seconds": round(time.time() - started),
    "subjects": subjects,
    "false_alarms": alarms,
    "mutants": total,
    "caught": total - len(survivors),
    "caught_share": round(1 - len(survivors) / total, 4),
    "noticed_by": dict(noticed_by.most_common()),
    "by_kind": {k: {"mutants": n, "caught": c} for k, (n, c) in sorted(kinds.items())},
    "survivors": len(survivors),
    "distinct_survivors_sha256": hashlib.sha256("\n".join(sorted(set(survivors))).encode()).hexdigest(),
  }
  out.write_text(json.dumps(record, indent=1) + "\n")
  print(f"{total} mutants of {subjects} subjects, {total - len(survivors)} caught "
        f"({record['caught_share']:.1%}), {len(alarms)} false alarms -> {out}")  # fmt: skip
  return bool(alarms)


if __name__ == "__main__":
  sys.exit(main())
