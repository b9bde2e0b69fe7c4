"""What the programs of ``fuzz_run`` share: serving seeds, and what an error of ours must not be."""

import json
import resource
import sys
import warnings

from mirage_onnx.errors import ERRORS


def serve(prepare, run_case, memory_bytes):
  """Answer seeds on stdin with lines of JSON, in so much address space, once ``prepare`` is done."""
  resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
  warnings.simplefilter("ignore")
  answers = sys.stdout
  sys.stdout = sys.stderr
  prepare()
  print("ready", file=answers, flush=True)
  for line in sys.stdin:
    print(json.dumps(run_case(int(line))), file=answers, flush=True)


def faults_of(code, detail):
  """What is wrong with an error: it is a code of ours, one line, and no library's insides."""
  faults = []
  if code not in ERRORS or code == "INTERNAL":
    faults.append(f"{code}: {detail}")
  if "Traceback" in detail or "\n" in detail or "/onnx/" in detail:
    faults.append(f"not one line of ours: {detail[:300]}")
  if len(detail) > 20_000:
    faults.append(f"a message of {len(detail)} characters")
  return faults
