"""One damaged model of ``damaged_models`` through loading, inspection and (some) optimizing.

However it ends, it ends in a result or in a ``MirageError`` with a code; a record in what ``verify``
reads, an entry in nothing or in a result. As a program it answers seeds on stdin with lines of JSON.
"""

import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
  sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import numpy as np
from damaged_models import made
from fuzz_answers import faults_of, serve
from fuzz_run import processor_s
from small_models import Net

from mirage_onnx import api, onnx_process, pipeline
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.custom_op.plan_check import plan_differs
from mirage_onnx.custom_op.provenance import regenerate
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.pipeline import Options
from mirage_onnx.superopt import kept_results
from mirage_onnx.superopt.journal_lines import entry_line, header_line
from mirage_onnx.target import H200

#: Every so many models are optimized too.
OPTIMIZED_EVERY = 10
#: Seconds of such a search, and what stages behind it may take longer.
BUDGET_S = 1.0
#: A model that asks for more address space than this has fooled us.
MEMORY_BYTES = 4 << 30
#: Seconds of processor time for a file that is not optimized.
LIMIT_S = 2.0
SETTING = {"target": "a"}


@functools.cache
def known():
  """A region, what a search of it found, and the record of its kernels."""
  net = Net(np.float16, seed=1)
  model = net.model(net.MatMul(net.rms(net.input(4, 64)), net.weight(64, 96)))
  run = pipeline.run(load_model(model), Options(H200, margin=-20.0, workers=1))
  ((_, outcome),) = run.chosen
  bundle = ModelFile(run.model, None).bundle()
  text = json.dumps(bundle.provenance[0]).encode()
  entry = json.dumps({**kept_results._encode(outcome.result), "seconds": 1.0}).encode()
  return outcome.region, text, entry, parse_plan(bundle.plans[0])


def run_case(seed):
  region, text, entry, plan = known()
  file = made(seed, text, entry)
  optimized = file.kind == "model" and seed % OPTIMIZED_EVERY == 0
  return answer(
    seed,
    file,
    file.what,
    partial(_RUN[file.kind], file, plan if file.kind == "record" else region, optimized),
    optimized,
  )


def answer(seed, file, what, run, optimized):
  """What became of a file; ``run`` returns faults."""
  _forget_peak()
  start = _used_s()
  try:
    faults = run()
    outcome = "ACCEPTED"
  except MirageError as error:
    outcome, faults = error.code, faults_of(error.code, error.detail)
  except Exception:
    outcome, faults = "TRACEBACK", [traceback.format_exc(limit=-4)]
  seconds = _used_s() - start
  if seconds > LIMIT_S + 4 * BUDGET_S * optimized:
    faults.append(f"it took {seconds:.1f} s")
  return {
    "seed": seed, "kind": file.kind, "what": what, "optimized": optimized, "outcome": outcome,
    "bytes": len(file.data), "faults": faults, "seconds": round(seconds, 3), "mib": _peak_mib(),
  }  # fmt: skip


def run_model(file, _, optimized):
  with tempfile.TemporaryDirectory(prefix="mirage-models-") as name:
    path = Path(name, "in.onnx")
    path.write_bytes(file.data)
    for other, data in file.files.items():
      Path(name, other).write_bytes(data)
    before = {p.name: hashlib.sha256(p.read_bytes()).digest() for p in Path(name).iterdir()}
    report = api.inspect(path, target="h200")
    json.dumps(report, default=str)
    if optimized:
      loaded = load_model(path)
      pipeline.run(loaded, Options(H200, margin=-20.0, budget_s=BUDGET_S, workers=1))
    after = {p.name: hashlib.sha256(p.read_bytes()).digest() for p in Path(name).iterdir()}
  return [] if after == before else ["the folder changed"]


def _record(file, plan, _):
  if why := plan_differs(plan, regenerate(json.loads(file.data), "node 'n'")):
    raise MirageError("SOURCE_MISMATCH", why)
  return []


def _entry(file, region, _):
  with tempfile.TemporaryDirectory(prefix="mirage-models-") as name:
    kept = kept_results.KeptResults(Path(name), SETTING)
    path = kept.path(region, "w")
    value = json.loads(file.data)
    if isinstance(value, dict):
      path.write_bytes(header_line(SETTING) + entry_line(path.stem, value))
    kept.get(region, "w", 9.0)
  return []


_RUN = {"model": run_model, "record": _record, "entry": _entry}


def _forget_peak():
  with contextlib.suppress(OSError):
    Path("/proc/self/clear_refs").write_text("5")


def _used_s():
  """Seconds of processor time of this process, of onnx's, and of those before that."""
  child = processor_s(onnx_process._SHARED.started().pid)
  return child + sum(os.times()[:4])


def _peak_mib():
  """The most memory of the process since ``_forget_peak`` (proc(5)), and of onnx's since its start."""
  found = 0
  for pid in ("self", onnx_process._SHARED.started().pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
      if line.startswith("VmHWM"):
        found += int(line.split()[1]) >> 10
  return found


if __name__ == "__main__":
  serve(known, run_case, MEMORY_BYTES)
