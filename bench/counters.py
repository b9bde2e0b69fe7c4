"""Profiler counters of our kernels on the speed rows: what they move, how fast, what they wait for.

    python3 bench/counters.py [--out DIR] [--cases ROW[/SIZE] ...] [--nearby with|without|only]
                              [--seconds 60] [--total 420]

Needs a GPU and ``ncu``. First the kernels of every case are chosen as ``optimize`` does it
(``chosen_kernels.py``), then a process that only launches them, once each, runs under ``ncu``, with
a plain read of as many bytes beside them. Writes DIR/counters.json and ncu's own DIR/counters.csv;
``kernel_records.py`` makes the page of it. ``--no-ncu``: only choose and launch.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import ROWS
from chosen_kernels import Chosen, chosen_kernels
from ncu_csv import command, kernels
from protocol import READ, facts, output_of, write_text
from run import selected, size_of

from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.ir.region import Region
from mirage_onnx.tune.device import Gpu, present_target
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare

#: Everything of the table but the whole layer, whose parts the other rows are.
CASES = [n for n in ROWS if n != "llama_layer"]
#: Names of what is profiled, and the launch of the read beside it.
NAMES, READ_GRID, READ_BLOCK = "^(mugraph_|read_bytes)", 4, 512


@dataclass(frozen=True)
class Jobs:
  """What the profiled process launches: the kernels of nodes, and a read per case."""

  nodes: tuple[Chosen, ...]
  bytes: dict[str, int]
  read: Cubin


def numbers_for(region: Region) -> dict[str, np.ndarray]:
  """Inputs that only have to be numbers: a short random sequence, repeated."""
  pattern = np.random.default_rng(0).standard_normal(1 << 20)
  found = {}
  for i in region.inputs:
    shape = tuple(int(d) for d in i.source.shape or ())
    found[i.source.name] = np.resize(pattern.astype(i.dtype.numpy), shape)
  return found


def launch(jobs: Jobs, gpu: Gpu) -> None:
  """Every kernel once, in order; before the first of a case the read of its bytes."""
  seen = set()
  for job in jobs.nodes:
    with gpu.scope():
      if job.case not in seen:
        seen.add(job.case)
        size = jobs.bytes[job.case]
        read, data, out = gpu.load(jobs.read, "read_bytes"), gpu.empty(size), gpu.empty(4)
        grid = (READ_GRID * gpu.target.multiprocessors, 1, 1)
        gpu.launch(read, grid, READ_BLOCK, [data, size // 16, out])
      prepare(gpu, job.region, job.compiled, Inputs(gpu, job.region, numbers_for(job.region)))


def expected(jobs: Jobs) -> list[tuple[str, str]]:
  """(case, kernel name) of everything that ``launch`` launches."""
  found = []
  for job in jobs.nodes:
    if job.case not in {c for c, _ in found}:
      found.append((job.case, "read_bytes"))
    found += [(job.case, s.name) for s in job.compiled.sources]
  return found


def rows(jobs: Jobs, profiled: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
  """What was counted, with case, numbers and launch of every kernel.

  Raises:
      ValueError: other kernels were counted than were launched.
  """
  want = expected(jobs)
  if [k["name"] for k in profiled] != [name for _, name in want]:
    raise ValueError(f"counted {[k['name'] for k in profiled]}, launched {want}")
  known = {
    (job.case, s.name): (job, p, s)
    for job in jobs.nodes
    for s, p in zip(job.compiled.sources, job.compiled.candidate.params, strict=True)
  }
  found = []
  for (case, name), counted in zip(want, profiled, strict=True):
    row = {"case": case, **counted, "case_mb": round(jobs.bytes[case] / 1e6, 3)}
    if (case, name) in known:
      job, params, source = known[case, name]
      row |= {
        "replaced": job.replaced, "params": params.to_text(), "cold": job.cold,
        "kernels": len(job.compiled.sources), "smem_bytes": source.smem_bytes,
        "cluster": source.cluster,
      }  # fmt: skip
    found.append(row)
  return found


def choose(options: argparse.Namespace, gpu: Gpu) -> tuple[Jobs, list[str]]:
  """The kernels of all cases that there is time for, and what failed or was left out."""
  deadline, problems = time.monotonic() + options.total, []
  nodes = []
  sizes = {}
  for name in selected(options.cases, nearby=options.nearby):
    if time.monotonic() > deadline:
      problems.append(f"{name}: no time left")
      continue
    began = time.monotonic()
    try:
      case = ROWS[name.split("/")[0]].make(**size_of(name))
      sizes[name] = case.bytes
      nodes += chosen_kernels(name, case, gpu.target, gpu, options.seconds)
    except Exception as error:  # the other cases may still be counted
      traceback.print_exc()
      problems.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
  text = f"#define UNROLL 8\n{READ.replace('read_all', 'read_bytes')}"
  return Jobs(tuple(nodes), sizes, compile_cubin(text, gpu.target, name="read_bytes")), problems


def profile(jobs: Path, log: Path) -> None:
  """Runs the launching process under ncu; without single metrics if this ncu lacks one."""
  program = [sys.executable, str(Path(__file__).resolve()), "--launch", str(jobs)]
  for metrics in (True, False):
    done = subprocess.run(command(log, NAMES, program, metrics=metrics), timeout=300, check=False)
    print(f"ncu: exit {done.returncode}", flush=True)
    if done.returncode == 0:
      return
    print(log.read_text(errors="replace")[-2000:] if log.exists() else "no log", flush=True)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--cases", nargs="+", default=CASES, metavar="ROW[/SIZE]")
  parser.add_argument("--nearby", choices=("with", "without", "only"), default="without")
  parser.add_argument("--seconds", type=float, default=60.0, help="search of a case")
  parser.add_argument("--total", type=float, default=420.0, help="choosing for all cases")
  parser.add_argument("--no-ncu", action="store_true")
  parser.add_argument("--launch", type=Path, help=argparse.SUPPRESS)
  options = parser.parse_args()
  if options.launch is None:  # onnxruntime-gpu needs the CUDA libraries that torch loads
    import torch  # noqa: F401
  target = present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  gpu = gpu_of(target)
  if options.launch is not None:
    launch(pickle.loads(options.launch.read_bytes()), gpu)
    return 0
  os.environ["MIRAGE_ONNX_CACHE"] = "off"
  found = facts() | {"ncu": output_of("ncu", "--version").splitlines()[-1:]}
  jobs, found["problems"] = choose(options, gpu)
  options.out.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as folder:
    packed, log = Path(folder) / "jobs.pickle", options.out / "counters.csv"
    packed.write_bytes(pickle.dumps(jobs))
    if options.no_ncu:
      launch(jobs, gpu)
    else:
      profile(packed, log)
  found["launched"] = expected(jobs)
  try:
    found["rows"] = [] if options.no_ncu else rows(jobs, kernels(log.open(errors="replace")))
  except (ValueError, OSError) as error:
    found["problems"].append(str(error)[:2000])
  write_text(options.out / "counters.json", json.dumps(found, indent=1) + "\n")
  print(*found["problems"], sep="\n")
  for row in found.get("rows", ()):
    print(row)
  return 1 if found["problems"] else 0


if __name__ == "__main__":
  sys.exit(main())
