"""Models of real size as ``optimize`` writes them, by ``verify`` on this machine's GPU.

    python bench/real_verified.py [NAME ...] [--seconds 400] [--makers 6] [--made FOLDER] [--out OUT.jsonl]

Each model of ``models/architectures/real.tar.xz`` is optimized with default flags for an H200
(``--makers`` at a time, two search workers each), then compared with its original by ``verify --provider
cuda``, ``--verifiers`` at a time. With ``--made`` models are taken, as they come, from where
``coverage.py --keep`` puts them (and optimizes them with default flags as well). OUT
(bench/results/h100/real_verified.jsonl) gets a line a model; models that have one are passed over, and what
there is no time for is left for the next call. Exit 1 if one is refused or does not pass.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "models" / "architectures")]

import onnx
import real_archive
from facts import facts

from mirage_onnx.importer.graph import nodes_of

#: Of one step.
LIMIT_S = 240.0
PROVIDERS = ("cuda", "cpu")


def command(*arguments, seconds):
  """(exit status, or None where the time ended it; what was said; seconds) of our command."""
  start = time.monotonic()
  try:
    done = subprocess.run(
      [sys.executable, "-m", "mirage_onnx", *map(str, arguments)],
      capture_output=True,
      text=True,
      timeout=seconds,
    )
    code, said = done.returncode, done.stdout + done.stderr
  except subprocess.TimeoutExpired as ended:
    code, said = None, str(ended)
  return code, said, round(time.monotonic() - start, 1)


class Verified:
  """One model after the other; ``end``: of ``time.monotonic``."""

  def __init__(self, given):
    self.given, self.end = given, time.monotonic() + given.seconds
    self._lock, self._verifying = threading.Lock(), threading.Semaphore(given.verifiers)
    self.about, self.gpu = facts(("onnx", "numpy")), _gpu() if given.provider == "cuda" else ""
    self.failed = 0

  def left(self):
    return min(LIMIT_S, self.end - time.monotonic())

  def one(self, name):
    """Make a model and compare it, if there is time for it."""
    if self.left() < 20:
      return
    with tempfile.TemporaryDirectory(dir=self.given.scratch, prefix="verified-") as folder:
      source = real_archive.make(name, Path(folder) / "model")
      out = Path(folder) / "out.onnx"
      options = ("--target", "h200", "--workers", 2)
      code, said, seconds = command("optimize", source, "-o", out, *options, seconds=self.left())
      self._compared({"model": name, "optimize": code, "optimize_s": seconds}, source, out, said)

  def made(self, name):
    """Compare a model that another process makes, unless another one of our provider has taken it."""
    folder = self.given.made / name
    done, taken = folder / "done", folder / f"taken.{self.given.provider}"
    while not done.exists():
      if self.left() < 5 or taken.exists():
        return
      time.sleep(1)
    try:
      taken.touch(exist_ok=False)
    except FileExistsError:
      return
    told = json.loads(done.read_text())
    row = {"model": name, "optimize": int(bool(told["error"])), "optimize_s": told["optimize_s"]}
    self._compared(row, folder / "model" / "model.onnx", folder / "out" / "model.onnx", told["error"] or "")

  def _compared(self, row, source, out, said):
    """The line of a model that is made; ``said``: why it is not."""
    code = row["optimize"]
    if code is None:
      return
    if code == 0:
      nodes = nodes_of(onnx.load(out, load_external_data=False).graph)
      row["custom_nodes"] = sum(n.domain.startswith("ai.mirage") for n in nodes)
      with self._verifying:
        where = ("--provider", self.given.provider)
        code, said, seconds = command("verify", source, out, *where, seconds=max(1, self.left()))
      if code is None:
        return
      row |= {"verify": code, "verify_s": seconds, "said": _last(said)}
    if code:
      row["text"] = said[-3000:]
    row |= {k: self.about[k] for k in ("date", "commit", "changed")}
    row |= {"provider": self.given.provider, "gpu": self.gpu}
    with self._lock:
      self.failed += code != 0
      with self.given.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
      print({k: v for k, v in row.items() if k not in ("date", "commit", "changed")}, flush=True)


def _gpu():
  ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
  return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def _last(said):
  lines = [line.strip() for line in said.splitlines() if line.strip()]
  return lines[-1][:200] if lines else ""


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
  parser.add_argument("--seconds", type=float, default=400.0)
  parser.add_argument("--makers", type=int, default=6)
  parser.add_argument("--verifiers", type=int, default=3)
  parser.add_argument("--provider", choices=PROVIDERS, default="cuda")
  parser.add_argument("--scratch", type=Path)
  parser.add_argument("--made", type=Path, metavar="FOLDER", help="where coverage.py --keep puts models")
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "h100" / "real_verified.jsonl")
  given = parser.parse_args()
  lines = given.out.read_text().splitlines() if given.out.exists() else []
  known = {json.loads(line)["model"] for line in lines}
  names = [n for n in given.names or real_archive.names() if n not in known]
  all_of = Verified(given)
  work = all_of.made if given.made else all_of.one
  with ThreadPoolExecutor(len(names) or 1 if given.made else given.makers) as pool:
    for done in [pool.submit(work, n) for n in names]:
      done.result()
  return int(all_of.failed > 0)


if __name__ == "__main__":
  sys.exit(main())
