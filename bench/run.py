"""Speed of optimized models on this GPU, beside what a user would run instead.

    python bench/run.py [--cases ROW[/SIZE] ...] [--batch 1 8 16] [--nearby with|without|only]
                        [--seconds 120] [--total 0] [--out DIR] [--no-compile] [--list]

Writes DIR/speed.json after every case, so that a kill loses only the case it runs, and prints a
table per case; ``speed_table.py`` makes the tables of the pages from such files. How a time is
taken: ``protocol.py``. An arm is not begun when the ``--seconds`` of its case are over, and a case
is not begun when the longest one so far would not fit into the rest of ``--total``; what was left
out is named, which is no error. Nearby shapes are not compiled by torch (the question there is the
ratio to the limit). Exit 1 if an arm is wrong or is not what it claims to be.
"""

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import ROWS
from protocol import facts, print_table, write_text
from speed_table import LIMIT, MEASURED, best_peer, replaced, time_of

#: (case, seconds) -> its result.
Measure = Callable[[str, float], dict[str, Any]]
#: The result of a case that ended with an error.
NOTHING = {"arms": {}, "optimize": {}, "left_out": []}


def size_of(case):
  row, size = case.split("/")
  return {**ROWS[row].sizes, **ROWS[row].nearby}[size]


def is_nearby(case):
  row, size = case.split("/")
  return size in ROWS[row].nearby


def selected(names, batches=(), nearby="with"):
  """The cases of rows or sizes, in the order of the table, rows of the table before nearby ones.

  ``batches``: of the rows that have batches, only these (a nearby one counts as none of them).

  Raises:
      ValueError: a name is neither a row nor one of its sizes.
  """
  every = [f"{n}/{s}" for n, row in ROWS.items() for s in (*row.sizes, *row.nearby)]
  for name in names:
    if name not in ROWS and name not in every:
      raise ValueError(f"{name}: no such case; --list shows them")
  found = []
  for case in every:
    if names and not {case, case.split("/")[0]} & {*names}:
      continue
    if case not in names:
      if nearby != "with" and is_nearby(case) != (nearby == "only"):
        continue
      batch = size_of(case).get("batch")
      if batches and batch and not is_nearby(case) and batch not in batches:
        continue
    found.append(case)
  return tuple(sorted(found, key=is_nearby))


def record(names, measure, out, *, seconds, total):
  """Measure the cases one by one and keep DIR/speed.json current."""
  found = {"runs": [facts()], "results": [], "left_out": []}
  began, longest = time.monotonic(), 0.0
  for i, case in enumerate(names):
    start = time.monotonic()
    left = total - (start - began) if total else seconds
    if left < longest or left <= 0:
      found["left_out"] = list(names[i:])
      print("no time left for", *names[i:], flush=True)
      break
    result = {"case": case, "run": 0}
    try:
      result |= measure(case, min(seconds, left))
      show(result)
    except Exception as error:  # the other cases may still run
      traceback.print_exc()
      text = f"{type(error).__name__}: {str(error)[:500]}"
      result |= NOTHING | {"failed": [*result.get("failed", ()), text]}
    longest = max(longest, time.monotonic() - start)
    found["results"].append(result)
    write_text(out / "speed.json", json.dumps(found, indent=1) + "\n")
  write_text(out / "speed.json", json.dumps(found, indent=1) + "\n")
  return found


def show(result):
  limit, (peer, peer_us) = time_of(result, LIMIT), best_peer(result)
  rows = [
    [name, f"{a['us']:.2f}", f"{a['q1']:.2f}-{a['q3']:.2f}", f"{a['us'] / limit:.2f}",
     f"{a['us'] / peer_us:.2f}", f"{a['error']:.1e}" if "error" in a else "-"]
    for name, a in result["arms"].items()
  ]  # fmt: skip
  head = ("arm", "us", "quartiles", "/ limit", "/ best peer", "error")
  print_table(f"{result['case']}: {result['name']}, {result['seconds']} s", head, rows)
  ours = time_of(result, MEASURED)
  print(f"ours {ours:.2f} us, limit {limit:.2f}, best peer {peer_us:.2f} ({peer})")
  for choice in result["optimize"]:
    print(f"{choice}: {replaced(result, choice)}")
  for kept in result["optimize"].get("measured", {}).get("kept", ()):
    print(f"  kept {kept['ops']} nodes: {kept['reason']}: {kept['text'][:200]}")
  for text in result["left_out"]:
    print(f"  not run for want of time: {text}")
  sys.stdout.flush()


def on_gpu(folder, *, compiled):
  """Measures cases on the present GPU."""
  import torch  # first: onnxruntime needs the CUDA libraries that it loads
  from arms import run_case

  from mirage_onnx.tune.device import present_target
  from mirage_onnx.tune.measure import gpu_of

  target = present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  gpu = gpu_of(target)
  torch.cuda.set_stream(torch.cuda.ExternalStream(gpu.stream_address))

  def measure(case, seconds):
    row, size = case.split("/")[0], size_of(case)
    compile_it = compiled and not is_nearby(case)
    return run_case(row, size, gpu, folder, seconds, compiled=compile_it)

  return measure


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--cases", nargs="+", default=[], metavar="ROW[/SIZE]")
  parser.add_argument("--batch", nargs="+", type=int, default=[])
  parser.add_argument("--nearby", choices=("with", "without", "only"), default="with")
  parser.add_argument("--seconds", type=float, default=120.0, help="per case")
  parser.add_argument("--total", type=float, default=0.0, help="of all cases; 0: no end")
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
  parser.add_argument("--list", action="store_true", help="print the cases and end")
  options = parser.parse_args()
  try:
    names = selected(options.cases, options.batch, options.nearby)
  except ValueError as error:
    parser.error(str(error))
  if options.list:
    print(*names, sep="\n")
    return 0
  # What a search finds may depend on the searches of other sizes that are kept from run to run.
  os.environ["MIRAGE_ONNX_CACHE"] = "off"
  with tempfile.TemporaryDirectory() as folder:
    measure = on_gpu(Path(folder), compiled=not options.no_compile)
    found = record(names, measure, options.out, seconds=options.seconds, total=options.total)
  return 1 if any(r["failed"] for r in found["results"]) else 0


if __name__ == "__main__":
  sys.exit(main())
