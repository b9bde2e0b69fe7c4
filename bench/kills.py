"""kill -9 at any moment of ``optimize``: the output is the old model or the new one, with its own weights.

    python bench/kills.py [--kills N] [--jobs N] [--seed N] [--out FILE]

Two models that differ in their weights alone are optimized in turn to one output; each run is killed,
every second one before or after a call that changes files (``CALLS``, every call of a whole run in
turn), the others at a random moment, half of those in the last fifth. The caches are killed with it: each
run finds what the one before left, every tenth begins without. Afterwards the input has its bytes, and
output and data file have, together, those of one of the two results that were written undisturbed and
ran in onnxruntime as their originals do. At the end a whole run finds nothing of what was left.
Writes FILE (bench/results/kills.json). Exit 1 if one output was wrong.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / p) for p in ("bench", "tests/support")]

import numpy as np
import onnx
from facts import facts
from onnx import numpy_helper
from small_models import Net

from mirage_onnx import api
from mirage_onnx.rewrite.save import External

#: What ``optimize`` changes files with.
CALLS = ("open", "fsync", "rename", "replace", "unlink", "mkdir", "copy_file_range", "pwrite", "ftruncate")
WIDTH, ROWS = 512, 8
LIMIT_S = 300.0
_PACKAGES = ("onnx", "onnxruntime", "numpy")
RIGHT = ("the old one", "the new one")


def model(scale):
  """A norm and a product whose weight the kernel wants turned, and a table that stays as it is."""
  net = Net(seed=1)
  x = net.rms(net.input(ROWS, WIDTH))
  y = net.Relu(net.MatMul(x, net.weight(WIDTH, WIDTH)))
  made = net.model(net.Mul(y, net.weight(ROWS, WIDTH)))
  for tensor in made.graph.initializer:
    if len(tensor.raw_data) > 1024:
      values = (numpy_helper.to_array(tensor) * scale).astype(np.float16)
      tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
  return made


def optimize(source, out):
  """The command's run but for workers, which a kill of one process leaves behind."""
  api.optimize(source, out, target="h200", margin=-9.0, workers=1, external=External.COPY)


def contents(folder):
  """Names and bytes of what an output consists of: the model, and the data that it mentions."""
  found = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
  text = found.get("out.onnx", b"")
  return {n: b for n, b in found.items() if n == "out.onnx" or n.encode() in text}


class Kills:
  """A folder with two models and their results, and one output."""

  def __init__(self, folder):
    self.folder, self.out = folder, folder / "out" / "out.onnx"
    self.sources, self.right = [], []
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    for k, scale in enumerate((1.0, 0.5)):
      own = folder / f"in{k}"
      (own / "right").mkdir(parents=True)
      more = {"save_as_external_data": True, "location": "in.data", "size_threshold": 64}
      onnx.save(model(scale), own / "in.onnx", **more)
      self.sources.append(own / "in.onnx")
      self.forked(lambda own=own: self.prepare(own), LIMIT_S)
      self.right.append(contents(own / "right"))
      assert len(self.right[k]) == 2, "a model and its data"
    self.inputs = self.given()
    self.out.parent.mkdir()
    for name, data in self.right[0].items():
      (self.out.parent / name).write_bytes(data)
    self.forked(self.count, LIMIT_S)
    self.calls = json.loads((folder / "calls.json").read_text())

  def prepare(self, own):
    """The undisturbed result, as right as its original, and how many calls it takes."""
    import onnxruntime as ort

    out = own / "right" / "out.onnx"
    optimize(own / "in.onnx", out)
    assert any(n.op_type.startswith("MuGraph_") for n in onnx.load(out, load_external_data=False).graph.node)
    session = [
      ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]) for p in (own / "in.onnx", out)
    ]
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float16)
    (a,), (b,) = (s.run(None, {s.get_inputs()[0].name: x}) for s in session)
    assert a.tobytes() == b.tobytes()
    assert np.abs(a).max() > 0
    before = contents(own / "right")
    shutil.rmtree(own / "right")
    (own / "right").mkdir()
    optimize(own / "in.onnx", out)
    assert contents(own / "right") == before, "the same model does not give the same bytes"

  def count(self):
    """How many calls a run makes that takes the place of another model."""
    made = self.counting(lambda: optimize(self.sources[1], self.out))
    (self.folder / "calls.json").write_text(json.dumps(made))

  @staticmethod
  def counting(run, at=None, *, after=False):
    """Run; how often ``CALLS`` were called. Dies before or after the call number ``at``."""
    made = 0

    def watched(call):
      def go(*args, **options):
        nonlocal made
        made += 1
        if made - 1 == at and not after:
          os.kill(os.getpid(), signal.SIGKILL)
        result = call(*args, **options)
        if made - 1 == at:
          os.kill(os.getpid(), signal.SIGKILL)
        return result

      return go

    for name in CALLS:
      setattr(os, name, watched(getattr(os, name)))
    run()
    return made

  @staticmethod
  def forked(run, kill_after_s):
    """Seconds that a child took, and the signal that ended it (0: none)."""
    start = time.monotonic()
    if (child := os.fork()) == 0:
      os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
      try:
        run()
      except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)
      os._exit(0)
    ended = 0
    while not ended:
      ended, status = os.waitpid(child, os.WNOHANG)
      if not ended and time.monotonic() - start > kill_after_s:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        break
      time.sleep(0.001)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
      raise SystemExit("a run that was not killed failed")
    return time.monotonic() - start, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

  def given(self):
    """The bytes of both inputs."""
    return [[(s.parent / n).read_bytes() for n in ("in.onnx", "in.data")] for s in self.sources]

  def now(self):
    """Which of the two results the output is; None: neither."""
    found = contents(self.out.parent)
    return next((k for k, right in enumerate(self.right) if found == right), None)

  def differs(self, k):
    """Where the output is not the result ``k``: its files, and what there is around the first other byte."""
    right, found = self.right[k], contents(self.out.parent)
    if found.keys() != right.keys():
      return f"{sorted(found)}, not {sorted(right)}"
    name = next(n for n in right if right[n] != found[n])
    a, b = right[name], found[name]
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    near = slice(max(0, at - 40), at + 40)
    return f"{name} of {len(b)} bytes, not {len(a)}; at {at} {b[near]}, not {a[near]}"

  def kill(self, n, rng, takes):
    """One run that is killed: what kind, and what the output is then."""
    was = self.now()
    other = 1 - was
    if n % 10 == 0:
      shutil.rmtree(self.folder / "cache", ignore_errors=True)
    run = lambda: optimize(self.sources[other], self.out)  # noqa: E731
    if n % 2:
      at, after = n // 2 % self.calls, n // 2 // self.calls % 2 == 1
      kind = "after a call" if after else "before a call"
      _, by = self.forked(lambda: self.counting(run, at, after=after), LIMIT_S)
    else:
      kind, span = "at a moment", (0.8, 1.05) if n % 4 else (0.0, 1.0)
      _, by = self.forked(run, rng.uniform(*span) * takes)
    if by not in (0, signal.SIGKILL):
      return kind, f"signal {by}"
    if self.given() != self.inputs:
      return kind, "the input changed"
    now = self.now()
    if by == 0 and now != other:
      return kind, f"a whole run wrote something else: {self.differs(other)}"
    return (kind if by else "not killed"), {None: "wrong", was: "the old one", other: "the new one"}[now]


def share(first, count, seed):
  """So many runs that were killed, in a folder of their own; ``first``: the number of the first run.

  Kinds and outcomes with their numbers, seconds of a run, calls of a run, files at the end and after a
  whole run.
  """
  rng, found = random.Random(f"{seed} {first}"), Counter()
  with tempfile.TemporaryDirectory() as folder:
    kills = Kills(Path(folder))
    takes, _ = kills.forked(lambda: optimize(kills.sources[1], kills.out), LIMIT_S)
    n = first
    while sum(number for (kind, _), number in found.items() if kind != "not killed") < count:
      result = kills.kill(n, rng, takes)
      found[result] += 1
      n += 1
      if result[1] not in RIGHT:
        print(f"{n}: {result}", flush=True)
        break
    left = sorted(p.name for p in kills.out.parent.iterdir())
    kills.forked(lambda: optimize(kills.sources[0], kills.out), LIMIT_S)
    after = sorted(p.name for p in kills.out.parent.iterdir())
  return found, takes, kills.calls, left, after


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--kills", type=int, default=500)
  parser.add_argument("--jobs", type=int, default=1)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "kills.json")
  given = parser.parse_args()
  about, found = facts(_PACKAGES), Counter()
  each = -(-given.kills // given.jobs)
  with ProcessPoolExecutor(given.jobs) as pool:
    asked = [pool.submit(share, job * each, each, given.seed) for job in range(given.jobs)]
    shares = [a.result() for a in asked]
  for counted, *_ in shares:
    found += counted
  _, takes, calls, lefts, afters = zip(*shares, strict=True)
  left, after = (max(names, key=len) for names in (lefts, afters))
  wrong = [r for r in found if r[1] not in RIGHT] or len(after) != 2
  record = {**about, "seconds_of_a_run": round(max(takes), 2), "calls_of_a_run": max(calls)}
  record["kills"] = {f"{kind}: {what}": count for (kind, what), count in sorted(found.items())}
  record["files after the last kill"], record["after a whole run"] = len(left), len(after)
  given.out.write_text(json.dumps(record, indent=1) + "\n")
  print(json.dumps(record["kills"], indent=1))
  return int(bool(wrong))


if __name__ == "__main__":
  sys.exit(main())
