"""What ``generate_triton_program`` writes, on the present GPU: right against float64, and how long.

    python3 bench/triton_programs.py OUT.json [--seconds 90] [NAME ...]

The programs: golden µGraphs of the search at full size, with the best numbers of the cost model for which
there are both a text in Triton and a kernel of ours that compiles (where Triton has no text for any: the best
other µGraph that a search finds), and the small golden µGraphs of the tests.
A program is written to a file, compiled in a process of its own (which may take ``COMPILE_S``), run on a
draw of inputs, and compared with float64 (``tune/oracle.py``); then timed beside the CUDA of the same µGraph
with the same numbers, both as CUDA graphs, cold (``protocol.py``). Refusals are recorded with their reason.
Needs torch and triton. Exits 1 if an output is wrong.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from golden_graphs import NAMES, golden_graph
from golden_kernels import numbered, usual_weights
from goldens import GOLDENS, golden
from protocol import facts, print_table, statistics
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.codegen.candidates import compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs.triton_text import triton_text
from mirage_onnx.ir import Candidate, Program
from mirage_onnx.superopt.search import search
from mirage_onnx.target import get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.gpu_arrays import gpu_arrays
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import draw

#: Seconds that Triton may take for a program; sets of numbers that are tried; samples of a time.
COMPILE_S, TRIED, SAMPLES = 45, 6, 9
#: Seconds for the search of a program of which Triton cannot say the golden µGraph.
SEARCH_S = 20
#: A child compiles the program: it runs once, on numbers that are not looked at.
COMPILES = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("program", sys.argv[1])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
program.optimized_graph([torch.rand(s, device="cuda").to(t) for s, t in zip(program.SHAPES, program.DTYPES)])
torch.cuda.synchronize()
"""


def subjects(names):
  """The programs, by name: those at full size first."""
  every = [*(n for n in PROGRAMS if n in NAMES), *(f"small {g.name}" for g in GOLDENS)]
  return [n for n in every if not names or n in names]


def region_of(name):
  return golden(name.removeprefix("small ")).region if name.startswith("small ") else PROGRAMS[name]()


def candidates_of(name, target):
  """In the order in which they are tried."""
  if name.startswith("small "):
    g = golden(name.removeprefix("small "))
    yield Candidate(g.ugraph, g.params)
    return
  region, graph = PROGRAMS[name](), golden_graph(name)
  yield from (Candidate(graph, p, us) for us, p in numbered(graph, region, target, TRIED))
  found = search(region, target, prover(), budget_s=SEARCH_S)
  yield from (c.candidate for c in found.candidates)


def program_of(region):
  """What the text asks of a program: its inputs and outputs."""
  inputs, outputs = ([t.tensor for t in some] for some in (region.inputs, region.outputs))
  tensors = {t.name: t for t in (*inputs, *outputs)}
  names = [tuple(dict.fromkeys(t.name for t in some)) for some in (inputs, outputs)]
  return Program(*names, nodes=(), tensors=tensors, weights=frozenset(), constants={})


def written(job):
  """(name, path or None, compiled or None, refusals): the first numbers that both have a text for."""
  name, folder, target_name = job
  target, refused = get_target(target_name), {}
  region, path, best = region_of(name), Path(folder) / f"{name.replace(' ', '_')}.py", None
  for tried, c in enumerate(candidates_of(name, target)):
    if best and tried >= TRIED:
      break
    try:
      text = triton_text(program_of(region), region, c, name, target)
    except RejectionError as error:
      refused[f"{error.rejection.code}: {error.rejection.reason}"] = None
      continue
    own, why = compile_candidates(region, [c], target, keep=1, workers=1)
    refused |= {f"{r.code}: {r.reason}": None for r in why}
    if own or not best:
      path.write_text(text, encoding="utf-8")
      best = c, own[0] if own else None
    if own:
      break
  return (name, path if best else None, *(best or (None, None)), list(refused))


def compiled(path, deadline):
  """Seconds that a child takes for a program, or what it ends with."""
  start = time.monotonic()
  most = min(COMPILE_S, deadline - start)
  try:
    command = [sys.executable, "-c", COMPILES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=max(1, most))
  except subprocess.TimeoutExpired:
    return f"not compiled in {most:.0f} s"
  if done.returncode:
    return (done.stderr.strip().splitlines() or ["no text"])[-1][:300]
  return round(time.monotonic() - start, 1)


def on_gpu(x, torch):
  """A torch tensor of an array, bit for bit."""
  bits = np.ascontiguousarray(x)
  if x.dtype.name == "bfloat16":
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).cuda()
  return torch.from_numpy(bits).cuda()


def measured(gpu, name, path, candidate, own, torch):
  """The record of a program that compiled."""
  region = region_of(name)
  spec = importlib.util.spec_from_file_location(path.stem, path)
  program = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(program)
  with gpu.scope(), torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    data, oracle = draw(region, usual_weights(region), np.random.default_rng(0), gpu_arrays() or np)
    names = program_of(region).inputs
    given = [on_gpu(data[n].reshape(s), torch) for n, s in zip(names, program.SHAPES, strict=True)]
    program.optimized_graph(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
      made = dict(zip(program_of(region).outputs, program.optimized_graph(given), strict=True))
    at = {o.name: made[o.tensor.name].data_ptr() for o in region.outputs}
    arms, errors = [graph.replay], {"triton": oracle.errors(gpu, graph.replay, at)}
    if own is not None:
      replay, outputs = prepare(gpu, region, own, Inputs(gpu, region, data))
      arms.append(replay)
      errors["cuda"] = oracle.errors(gpu, replay, outputs)
    times = gpu.time_us(arms, SAMPLES)
  record = {
    "numbers": " | ".join(p.to_text() for p in candidate.params),
    "kernels": len(candidate.ugraph.kernels),
  }
  for arm, samples in zip(errors, times, strict=True):
    error, allowed = max(errors[arm].values(), key=lambda e: e[0] - e[1])
    record[arm] = statistics(samples) | {"error": error, "allowed": allowed}
  return record


def row_of(name, r):
  """A line of the table."""
  if "triton" not in r:
    return [name, "", "", "", (r.get("failed") or next(iter(r["refused"]), "no numbers"))[:60]]
  t, own = r["triton"], r.get("cuda")
  right = "right" if t["error"] <= t["allowed"] else f"WRONG {t['error']:.1e}"
  return [name, f"{t['us']:.1f}", f"{own['us']:.1f}" if own else "", right, r["numbers"][:60]]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out", type=Path)
  parser.add_argument("names", nargs="*")
  parser.add_argument("--seconds", type=float, default=90.0)
  options = parser.parse_args()
  deadline, target = time.monotonic() + options.seconds, present_target()
  if target is None:
    sys.exit("there is no GPU here that has a device profile")
  import torch

  gpu, cores = gpu_of(target), len(os.sched_getaffinity(0))
  result, rows = facts() | {"programs": {}, "left_out": []}, []
  with (
    tempfile.TemporaryDirectory() as folder,
    ProcessPoolExecutor(cores, get_context("spawn")) as pool,
    ThreadPoolExecutor(cores) as children,
  ):
    names = subjects(options.names)
    texts = [pool.submit(written, (n, folder, target.name)) for n in names]

    def child(text):
      path = text.result()[1]
      return compiled(path, deadline) if path else None

    compiles = {children.submit(child, t): t for t in texts}
    try:
      for done in as_completed(compiles, timeout=deadline - time.monotonic()):
        name, path, candidate, own, refused = compiles[done].result()
        record = {"refused": refused} if refused else {}
        took = done.result()
        if isinstance(took, str):
          record["failed"] = took
        elif path is not None:
          try:
            record |= {"compile_s": took} | measured(gpu, name, path, candidate, own, torch)
          except Exception as error:  # one program, not the run
            record["failed"] = f"{type(error).__name__}: {error}"[:300]
        result["programs"][name] = record
        rows.append(row_of(name, record))
        print("  ".join(rows[-1]), flush=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    except TimeoutError:
      pass
    result["left_out"] = [n for n in names if n not in result["programs"]]
    pool.shutdown(wait=False, cancel_futures=True)
    children.shutdown(wait=False, cancel_futures=True)
  options.out.write_text(json.dumps(result, indent=1) + "\n")
  print_table("Triton programs", ("program", "triton us", "cuda us", "float64", "numbers or why not"), rows)
  ran = [r for r in result["programs"].values() if "triton" in r]
  wrong = [r for r in ran if not r["triton"]["error"] <= r["triton"]["allowed"]]
  print(
    f"{len(ran)} of {len(result['programs'])} ran, {len(wrong)} wrong, {len(result['left_out'])} left out"
  )
  return int(bool(wrong) or not ran)


if __name__ == "__main__":
  sys.exit(main())
