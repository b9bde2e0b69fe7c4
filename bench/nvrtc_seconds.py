"""Seconds of processor time that NVRTC takes for each kernel of the replay's corpus, and what it refuses.

    python bench/nvrtc_seconds.py OUT.json [GROUP ...] [--every N] [--seconds 600]

Every recorded kernel with wgmma, and every N-th of the others, is compiled as the package does it, attempts
that spill and the check of the machine code included, one at a time in this process, so that its processor
time is the kernel's. What OUT.json has of the same text and compiler is not done again. Goal: 1.5 s a kernel,
and none accepted that spills; exit 1 where one takes longer or none is left.
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from protocol import output_of, print_table, write_text
from replay_record import made, read_record

from mirage_onnx.compiler import compile as compiling
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.target import get_target

GOAL = 1.5


def kernels(groups, every):
  """(kind, name, numbers, target, what was made) of what is compiled, kernels with wgmma first."""
  found = []
  for entry in read_record(groups=tuple(groups)):
    for k, (m, params) in enumerate(zip(made(entry), entry.params, strict=True)):
      if m.text:
        kind = "fed" if " teams=" in params else "wgmma" if "instruction=wgmma" in params else "other"
        found.append((kind, f"{entry.name}.k{k}", params, entry.target, m))
  others = [x for x in found if x[0] == "other"]
  return [x for x in found if x[0] != "other"] + others[::every]


def compiled(m, target):
  """What becomes of a kernel, and how long NVRTC and the check of its machine code have the processor."""
  asked, registers = [], []
  nvrtc = compiling._nvrtc

  def counted(*given):
    began = time.process_time()
    result = nvrtc(*given)
    asked.append(time.process_time() - began)
    registers.extend(int(n) for n in compiling._USED.findall(result[1]))
    return result

  compiling._nvrtc = counted
  began = time.process_time()
  try:
    result = compiling.of_one(m.text, m.name, target)
  finally:
    compiling._nvrtc = nvrtc
  seconds = round(time.process_time() - began, 3)
  row = {"seconds": seconds, "nvrtc": [round(x, 3) for x in asked], "asked": registers}
  if isinstance(result, Cubin):
    return row | {"registers": result.registers, "spills": result.spill_bytes + result.stack_bytes}
  return row | {"refused": f"{result.code}: {result.reason[:120]}"}


def key(m, target):
  return hashlib.sha256(f"{compiling.compiler_text()} {target.arch} {m.text}".encode()).hexdigest()[:16]


def summary(rows):
  """A row a kind: how many, seconds at the median, at 95 %, at most; above the goal; refused; with spills."""
  for kind in sorted({r["kind"] for r in rows}):
    own = [r for r in rows if r["kind"] == kind]
    times = sorted(r["seconds"] for r in own)
    seconds = (statistics.median(times), times[int(0.95 * (len(times) - 1))], times[-1])
    above = sum(t > GOAL for t in times), sum(r["seconds"] > GOAL for r in own if "refused" not in r)
    counts = (*above, sum("refused" in r for r in own), sum(r.get("spills", 0) > 0 for r in own))
    yield [kind, str(len(own)), *(f"{s:.2f}" for s in seconds), *map(str, counts)]


def processor():
  lines = Path("/proc/cpuinfo").read_text().splitlines()
  return next((x.partition(": ")[2] for x in lines if "model name" in x), "")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out", type=Path)
  parser.add_argument("groups", nargs="*", metavar="GROUP", help="files of bench/replay; default: all")
  parser.add_argument("--every", type=int, default=5, help="of kernels without wgmma")
  parser.add_argument("--seconds", type=float, default=600.0)
  options = parser.parse_args()
  end = time.monotonic() + options.seconds
  before = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
  known, rows, left = {r["key"]: r for r in before}, [], 0
  for kind, name, params, arch, m in kernels(options.groups, options.every):
    target = get_target(arch)
    digest = key(m, target)
    if digest in known:
      rows.append(known[digest] | {"kind": kind, "name": name})
    elif time.monotonic() > end:
      left += 1
    else:
      rows.append({"kind": kind, "name": name, "numbers": params, "key": digest} | compiled(m, target))
  record = {
    "commit": os.environ.get("MIRAGE_COMMIT") or output_of("git", "rev-parse", "HEAD"),
    "cpu": processor(),
    "goal_s": GOAL, "left": left, "rows": rows,
  }  # fmt: skip
  write_text(options.out, json.dumps(record, indent=0) + "\n")
  names = (
    "kind",
    "kernels",
    "median s",
    "95 %",
    "most",
    f"above {GOAL} s",
    "and accepted",
    "refused",
    "spills",
  )
  print_table("Processor seconds of NVRTC", names, list(summary(rows)))
  slow = sorted((r for r in rows if r["seconds"] > GOAL), key=lambda r: -r["seconds"])
  for r in slow[:40]:
    print(r["seconds"], r["nvrtc"], r["name"], r["numbers"], r.get("refused", ""))
  return int(left > 0 or bool(slow) or any(r.get("spills") for r in rows))


if __name__ == "__main__":
  sys.exit(main())
