"""Whether ``--budget`` bounds all stages of ``optimize`` of real models, on a machine with other work.

    python bench/budgets.py [--models NAME ...] [--seconds S ...] [--load N] [--out FILE]

Each model with each budget and an empty cache, beside N processes that compute all the time. The whole
command counts, from its start to its end: Python, imports, the check of what is written. Writes FILE
(bench/results/budgets.json). Exit 1 where one took more than ``SLACK`` times its budget and ``END_S``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "models" / "architectures")]

import real_archive
from facts import facts

MODELS = ("whole_bert_base_1x128", "whole_qwen3_0.6b_decode1024", "whole_vit_base_b1")
SLACK = 1.1
#: Of the interpreter's end, behind all that the budget counts.
END_S = 0.5
BUSY = "while True: pass"


def timed(path, out, store, log, *options):
  """How long the command took, with what is kept in the folder ``store``, and its report."""
  command = [sys.executable, "-m", "mirage_onnx", "optimize", path, "-o", out, "--target", "h200"]
  command += [*options, "--json"]
  start = time.monotonic()
  with log.open("wb") as file:
    done = subprocess.run(
      command, stdout=subprocess.PIPE, stderr=file, env={**os.environ, "MIRAGE_CACHE_DIR": str(store)}
    )
  took = time.monotonic() - start
  if done.returncode:
    raise SystemExit(f"{path}: exit {done.returncode}\n{log.read_text()[-2000:]}")
  lines = [json.loads(x) for x in done.stdout.decode().splitlines() if x.startswith("{")]
  return took, lines[-1]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--models", nargs="+", default=MODELS, choices=real_archive.names())
  parser.add_argument("--seconds", nargs="+", type=int, default=(20, 60))
  parser.add_argument("--load", type=int, default=os.cpu_count(), help="processes that compute beside it")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "budgets.json")
  given = parser.parse_args()
  rows = []
  for name in given.models:
    with tempfile.TemporaryDirectory(prefix="budgets-") as folder:
      path = real_archive.make(name, Path(folder) / "model")
      for seconds in given.seconds:
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(given.load)]
        load = os.getloadavg()[0]
        try:
          out, log = Path(folder) / f"out{seconds}.onnx", Path(folder) / "log"
          took, report = timed(path, out, f"{out}.cache", log, "--budget", str(seconds))
        finally:
          for b in busy:
            b.kill()
            b.wait()
        status = [r["status"] for r in report.get("regions", ())]
        late = sum(r.get("reason") == "BUDGET" for r in report.get("regions", ()))
        row = {
          "model": name, "budget_s": seconds, "took_s": round(took, 1), "said_s": round(report["seconds"], 1),
          "load": round(load, 1), "replaced": status.count("replaced"), "cut off": late,
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)
  about = {**facts(("onnx", "onnxruntime")), "busy": given.load, "rows": rows}
  given.out.write_text(json.dumps(about, indent=1) + "\n")
  return int(any(r["took_s"] > SLACK * r["budget_s"] + END_S for r in rows))


if __name__ == "__main__":
  sys.exit(main())
