"""Random models of real sizes with hard weights: optimized for an H200, verified with emulated kernels.

    python bench/hunt.py [--first 0] [--seconds 300] [--jobs 1] [--out bench/results/hunt.jsonl]

A seed is a model of ``random_model.py`` with other sizes (up to 600 rows, widths of 64 to 4096, some odd), of
whose weights some have outlier channels, numbers near 0 or columns of zeros. ``--margin 0``: whatever is
predicted to be faster is replaced. OUT gets a line a seed; seeds that have one are passed over. Exit 1 where
``optimize`` or ``verify`` did not end with 0.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

import numpy as np
import onnx
import random_model
from facts import facts
from onnx import numpy_helper

ROWS = (1, 2, 3, 5, 8, 17, 31, 64, 77, 100, 197, 333, 512, 600)
WIDTHS = (64, 128, 192, 256, 512, 768, 1000, 1024, 2048, 4096)
MOST_BYTES, MOST_ELEMENTS, MOST_WORK = 1 << 26, 1 << 20, 1 << 29
#: What one column of a hundred is multiplied by; of five weights two are as they were.
HARD = (30.0, 1e-6, 0.0)
OPTIMIZE_S, VERIFY_S, BUDGET_S = 200, 300, 60


class Hard(random_model.Sized):
  """Weights that real models have, and tests seldom."""

  def weight(self, *shape, scale=None):
    kind = self.rng.integers(0, 5)
    name = super().weight(*shape, scale=scale)
    if kind < len(HARD):
      tensor = next(w for w in self.weights if w.name == name)
      values = numpy_helper.to_array(tensor).copy()
      columns = self.rng.integers(0, shape[-1], max(1, shape[-1] // 100))
      values[..., columns] = (values[..., columns].astype(np.float32) * HARD[kind]).astype(values.dtype)
      tensor.CopyFrom(numpy_helper.from_array(values, name))
    return name


def command(*arguments, seconds):
  """(exit status, or None where its time was over; the end of what was said; seconds)."""
  start = time.monotonic()
  whole = [sys.executable, "-m", "mirage_onnx", *map(str, arguments)]
  try:
    done = subprocess.run(whole, capture_output=True, text=True, timeout=seconds, cwd=ROOT)
    code, said = done.returncode, (done.stdout + done.stderr)[-1500:]
  except subprocess.TimeoutExpired:
    code, said = None, "its time was over"
  return code, said, round(time.monotonic() - start, 1)


def tried(seed):
  """The line of a seed."""
  model, what = random_model.draw(seed)
  row = {"seed": seed, "what": what["text"]}
  with tempfile.TemporaryDirectory(prefix="hunt-") as folder:
    a, b = Path(folder) / "a.onnx", Path(folder) / "b.onnx"
    onnx.save(model, a)
    more = ("--target", "h200", "--margin", 0, "--budget", BUDGET_S, "--workers", 1, "--json")
    row["optimize"], said, row["optimize_s"] = command("optimize", a, "-o", b, *more, seconds=OPTIMIZE_S)
    if row["optimize"] == 0:
      nodes = onnx.load(b, load_external_data=False).graph.node
      row["custom_nodes"] = sum(n.domain.startswith("ai.mirage") for n in nodes)
      row["verify"], said, row["verify_s"] = command("verify", a, b, "--emulate", seconds=VERIFY_S)
    if row.get("verify") != 0:
      row["said"] = said
  return row


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--first", type=int, default=0)
  parser.add_argument("--seconds", type=float, default=300.0, help="no model is begun later")
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "hunt.jsonl")
  given = parser.parse_args()
  random_model.Sized, random_model.ROWS, random_model.WIDTHS = Hard, ROWS, WIDTHS
  random_model.MOST_BYTES, random_model.MOST_ELEMENTS = MOST_BYTES, MOST_ELEMENTS
  random_model.MOST_WORK = MOST_WORK
  lines = given.out.read_text().splitlines() if given.out.exists() else []
  known = {json.loads(line)["seed"] for line in lines}
  seeds = (s for s in count(given.first) if s not in known)
  end, lock, about, bad = time.monotonic() + given.seconds, threading.Lock(), facts(("onnx", "numpy")), []

  def work(_):
    while time.monotonic() < end:
      with lock:
        seed = next(seeds)
      row = {**tried(seed), "commit": about["commit"][:12] + (" changed" if about["changed"] else "")}
      with lock:
        bad.extend([seed] if row.get("verify") != 0 else [])
        with given.out.open("a") as file:
          file.write(json.dumps(row) + "\n")
        print({k: v for k, v in row.items() if k != "commit"}, flush=True)

  with ThreadPoolExecutor(given.jobs) as pool:
    list(pool.map(work, range(given.jobs)))
  print(f"{len(bad)} did not end well: {bad}")
  return int(bool(bad))


if __name__ == "__main__":
  sys.exit(main())
