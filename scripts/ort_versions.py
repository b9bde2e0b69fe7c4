"""Loads one optimized model with many versions of onnxruntime (CPU packages), each in a process of its own.

    python scripts/ort_versions.py [VERSION ...] [--folder FOLDER] [--package onnxruntime-gpu]

Every version is installed by itself (``pip install --target``, without what it needs: that is here). Of each:
the library registers; a plain session, without it, gives the bits of the original; so does one in which it is
registered (``mirage_onnx.register``); the kernels run in the emulator. The model has kernels for two targets,
one in the function body of the other: on a GPU of either (a stand-in of the driver says so) its own are made.
``--package``: another build, such as those for GPUs of CUDA 12 (until 1.26) and 13, in its CPU provider.
Prints a row of docs/compatibility.md for each; exit 1 where one fails.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

VERSIONS = ("1.24.1", "1.25.1", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1", "1.32.0")
ROOT = Path(__file__).resolve().parents[1]

CHECK = """
import sys
from importlib import metadata
if sys.argv[3] != "onnxruntime":  # that of this environment is not there: two would be a conflict
  found = metadata.distribution
  def without(name):
    if name == "onnxruntime":
      raise metadata.PackageNotFoundError(name)
    return found(name)
  metadata.distribution = without
import numpy as np
import mirage_onnx
import onnxruntime as ort
from mirage_onnx.custom_op.library import get_library_path, load_library
from mirage_onnx.emulator.driver import Driver
from mirage_onnx.target import get_targets
original, made = sys.argv[1:3]
x = {"x": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)}
cpu = ["CPUExecutionProvider"]
options = ort.SessionOptions()
mirage_onnx.register(options)
(want,) = ort.InferenceSession(original, providers=cpu).run(None, x)
(plain,) = ort.InferenceSession(made, providers=cpu).run(None, x)
(ours,) = ort.InferenceSession(made, options, providers=cpu).run(None, x)
assert want.tobytes() == plain.tobytes() == ours.tobytes(), "other bits"
session = mirage_onnx.InferenceSession(made, emulate=True)
(kernel,) = session.run(None, x)
counts = mirage_onnx.launches(session).values()
assert counts and all(counts), "no kernel ran"
error = np.linalg.norm(kernel.astype(float) - want) / np.linalg.norm(want.astype(float))
assert error < 1e-2, error
library = load_library(get_library_path())
for target in get_targets("h200,a100,rtx4090"):
  first, driver = library.mark(), Driver(target)
  mirage_onnx.InferenceSession(made, providers=cpu, ep="host", driver=str(driver.path))
  made_here = sum(c.id >= first for c in library.counters())
  assert made_here == (target.name != "rtx4090"), f"{made_here} kernels on {target.name}"
print(ort.__version__)
"""


def check(version, folder, model, made, package="onnxruntime"):
  """What went wrong, or ''."""
  place = folder / version
  if not (place / "onnxruntime").is_dir():
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True, check=False)
    if done.returncode:
      return f"not installed: {_last(done.stderr)}"
  path = os.pathsep.join([str(place), str(ROOT), os.environ.get("PYTHONPATH", "")])
  done = subprocess.run(
    [sys.executable, "-c", CHECK, str(model), str(made), package],
    env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
  )  # fmt: skip
  if done.returncode:
    return _last(done.stderr)
  found = done.stdout.split()[-1]
  return "" if found == version else f"version {found} ran"


def _last(text):
  lines = [line for line in text.splitlines() if line.strip()]
  return lines[-1][:200] if lines else "no message"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("versions", nargs="*", default=VERSIONS)
  parser.add_argument("--folder", type=Path, default=ROOT / "build" / "ort-versions")
  parser.add_argument("--package", default="onnxruntime")
  options = parser.parse_args()
  options.folder.mkdir(parents=True, exist_ok=True)
  import mirage_onnx

  model, made = ROOT / "models" / "rmsnorm_linear.onnx", options.folder / "made.onnx"
  mirage_onnx.optimize(model, made, target="h200,a100")
  failed = 0
  for version in options.versions:
    why = check(version, options.folder / options.package, model, made, options.package)
    failed += bool(why)
    print(f"| {version} | {why or 'all passed'} |", flush=True)
  return int(failed > 0)


if __name__ == "__main__":
  sys.exit(main())
