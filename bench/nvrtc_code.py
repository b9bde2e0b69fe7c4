"""Machine code of other NVRTCs on the driver that is here: does it load, is it right, how long does it take.

    python3 bench/nvrtc_code.py --prepare FILE [--target h100] [VERSION ...]      (no GPU)
    python3 bench/nvrtc_code.py FILE --out OUT.json [--seconds 60]

``--prepare`` installs each version by itself (as ``scripts/nvrtc_versions.py``) and compiles golden programs
with their best numbers, each version in a process of its own. A driver takes machine code of its own major
version of CUDA and of older ones; here it loads what FILE has, runs it, and the outputs are compared with
float64. Exit 1 where a kernel does not load or is wrong, or one is left.
"""

import argparse
import json
import lzma
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / p) for p in ("tests/support", "bench", "scripts"))]

import numpy as np
from golden_kernels import numbered, usual_weights
from protocol import facts, print_table, statistics, write_text

NAMES = (
  "rmsnorm_linear",
  "softmax_rows",
  "gated_mlp_silu",
  "lora",
  "layernorm_linear",
  "attention_additive_mask",
)
VERSIONS = ("12.9.86", "13.0.88", "13.5.37")
#: Sets of numbers of a program, and those that are tried for them.
KEPT, TRIED, SAMPLES = 2, 6, 9


def compiled(target):
  """(version that compiled, (program, compiled candidate) each), by the NVRTC that the process has loaded."""
  from cuda.bindings import nvrtc
  from golden_graphs import golden_graph
  from search_programs import PROGRAMS

  from mirage_onnx.compiler.candidates import compile_candidates
  from mirage_onnx.ir.ugraph import Candidate

  found = []
  for name in NAMES:
    region, graph = PROGRAMS[name](), golden_graph(name)
    candidates = [Candidate(graph, p, us) for us, p in numbered(graph, region, target, TRIED)]
    done, _ = compile_candidates(region, candidates, target, keep=KEPT)
    found += [(name, c) for c in done]
  return ".".join(map(str, nvrtc.nvrtcVersion()[1:])), found


def child(library, target, path):
  """The process of a version."""
  import ctypes

  from mirage_onnx.target import get_target

  for part in (*sorted(Path(library).parent.glob("libnvrtc-builtins.so.*[0-9]")), Path(library)):
    ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
  Path(path).write_bytes(pickle.dumps(compiled(get_target(target))))


def prepare(path, target, versions):
  """Writes the kernels of all versions; 1 where one is missing."""
  import tempfile

  from nvrtc_versions import library

  made, folder = {}, ROOT / "build" / "nvrtc-versions"
  folder.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as temporary:
    for version in versions:
      found, out = library(version, folder), Path(temporary) / version
      if found is None:
        print(f"{version} could not be installed")
        continue
      command = [sys.executable, __file__, "--child", str(found), target, str(out)]
      subprocess.run(command, check=True, env={**os.environ, "MIRAGE_ONNX_CACHE": "off"})
      ran, kernels = pickle.loads(out.read_bytes())
      if version.startswith(ran):
        made[version] = kernels
      print(f"{version}: NVRTC {ran} made {len(kernels)} programs")
  path.write_bytes(lzma.compress(pickle.dumps(made)))
  return int(len(made) < len(versions))


def ran(gpu, region, candidate, drawn):
  """What becomes of a program on the GPU."""
  from mirage_onnx.tune.measure import Inputs, prepare

  data, oracle = drawn
  with gpu.scope():
    replay, outputs = prepare(gpu, region, candidate, Inputs(gpu, region, data))
    errors = oracle.errors(gpu, replay, outputs).values()
    worst = max(errors, key=lambda e: e[0] - e[1])
    times = gpu.time_us([replay], SAMPLES)
  return {"error": [float(x) for x in worst], "right": bool(worst[0] <= worst[1])} | statistics(times[0])


def timed(path, out, seconds):
  """Writes and prints what ran; 1 where anything is wrong or left."""
  from search_programs import PROGRAMS

  from mirage_onnx.errors import MirageError
  from mirage_onnx.tune.device import present_target
  from mirage_onnx.tune.measure import gpu_of
  from mirage_onnx.tune.oracle import draw

  end, made = time.monotonic() + seconds, pickle.loads(lzma.decompress(path.read_bytes()))
  target = present_target()
  if target is None:
    sys.exit("there is no GPU here that kernels are made for")
  gpu, rows, left = gpu_of(target), [], 0
  for name in NAMES:  # all versions of a program, so that what is drawn is drawn once
    region = PROGRAMS[name]()
    drawn = draw(region, usual_weights(region), np.random.default_rng(0)) if time.monotonic() < end else None
    for version, kernels in made.items():
      for candidate in (c for n, c in kernels if n == name):
        if drawn is None or time.monotonic() > end:
          left += 1
          continue
        row = {"nvrtc": version, "program": name,
               "params": " | ".join(p.to_text() for p in candidate.candidate.params)}  # fmt: skip
        try:
          row |= ran(gpu, region, candidate, drawn)
        except MirageError as error:
          row |= {"right": False, "failed": error.line()[:300]}
        rows.append(row)
  record = facts() | {"left": left, "rows": rows}
  write_text(out, json.dumps(record, indent=1) + "\n")
  table = [
    [r["program"], r["nvrtc"], f"{r.get('us', 0):.1f}", r.get("failed") or str(r["right"])] for r in rows
  ]
  print_table("Machine code of several NVRTCs on this driver", ("program", "NVRTC", "us", "right"), table)
  return int(left > 0 or any(not r["right"] for r in rows))


def main():
  if sys.argv[1:2] == ["--child"]:
    return child(*sys.argv[2:])
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("file", type=Path)
  parser.add_argument("--prepare", action="store_true", help="write FILE: needs no GPU")
  parser.add_argument("--target", default="h100", help="with --prepare: whose kernels")
  parser.add_argument("--out", type=Path, default=Path("nvrtc.json"))
  parser.add_argument("--seconds", type=float, default=60.0)
  parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
  options = parser.parse_args()
  if options.prepare:
    return prepare(options.file, options.target, options.versions)
  return timed(options.file, options.out, options.seconds)


if __name__ == "__main__":
  sys.exit(main())
