"""What the library and ``verify`` say of altered models, one JSON line a case.

    python tests/support/altered_run.py FOLDER NAME DRIVER SECONDS [KIND:NUMBER ...]

``FOLDER`` has the original and the written model (``altered_models.write``). ``DRIVER``: the stand-in that
takes any image. Cases are those of each kind with these numbers among all of the kind; what is left when
the time is over is not run. Each line: number, kind, what, fields, ``library`` (accepted, creation, run;
with its reason), ``verify`` (PASSED, failed, a code, TRACEBACK) and seconds of this process for both.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import numpy as np
import onnx
import onnxruntime
from altered_models import cases

from mirage_onnx import api
from mirage_onnx.custom_op import InferenceSession
from mirage_onnx.errors import MirageError

#: Sizes of dims that the graph leaves open.
ROWS = 16
_TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32}


def library_says(path, driver):
  """What becomes of a session and a run: (outcome, reason)."""
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  options.intra_op_num_threads = 1  # others wait for work, and take the cores of the other processes
  options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
  try:
    session = InferenceSession(str(path), options, ["CPUExecutionProvider"], ep="host", driver=driver)
  except Exception as error:  # onnxruntime has a class per status code and no common base
    return "creation", str(error)
  feeds = {}
  for i in session.get_inputs():
    shape = [d if isinstance(d, int) else ROWS for d in i.shape]
    feeds[i.name] = np.ones(shape, _TYPES.get(i.type, np.float32))
  try:
    session.run(None, feeds)
  except Exception as error:
    return "run", str(error)
  return "accepted", ""


def verify_says(original, path):
  try:
    found = api.verify(original, path)
  except MirageError as error:
    return error.code, error.detail
  except Exception as error:
    return "TRACEBACK", repr(error)
  return ("PASSED" if found.passed else "failed"), ""


def main():
  folder, name, driver, seconds = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
  wanted = dict.fromkeys(sys.argv[5:])
  end = time.monotonic() + seconds
  source, written = folder / f"{name}.onnx", folder / f"{name}.opt.onnx"
  model = onnx.load(written, load_external_data=False)
  altered = folder / f"{name}.{os.getpid()}.onnx"
  count = {}
  for case in cases(model, folder):
    number = count[case.kind] = count.get(case.kind, -1) + 1
    if f"{case.kind}:{number}" not in wanted:
      continue
    if time.monotonic() > end:
      break
    made = case.make()
    row = {"model": name, "kind": case.kind, "number": number, "what": case.what}
    row["fields"] = sorted(case.fields)
    if made is not None:
      altered.write_bytes(made.SerializeToString())
      for who, ask in (
        ("library", lambda: library_says(altered, driver)),
        ("verify", lambda: verify_says(source, altered)),
      ):
        print(json.dumps({"asks": who, **row}), flush=True)
        began = time.process_time()
        row[who], row[f"{who}_why"] = ask()
        row[f"{who}_s"] = round(time.process_time() - began, 3)
    print(json.dumps(row), flush=True)
  altered.unlink(missing_ok=True)


if __name__ == "__main__":
  main()
