"""What ``generate_triton_program`` writes, on the present GPU: right against float64, and how long.

    python3 bench/triton_programs.py OUT.json [--seconds 90] [--texts TEXTS.pkl] [NAME ...]

The programs: golden µGraphs of the search at full size, with the best numbers of the cost model for which
there are both a text in Triton and a kernel of ours that compiles (where Triton has no text for any: the best
other µGraph that a search finds), and the small golden µGraphs of the tests.
A program is written to a file, compiled by Triton in another process, run on a draw of inputs, and compared
with float64 (``tune/oracle.py``); then timed beside the CUDA of the same µGraph with the same numbers, both
as CUDA graphs, cold (``protocol.py``). Refusals are recorded with their reason. Needs torch and triton. Exits
1 if an output is wrong. ``--texts``: texts and CUDA are taken from this file; where it is not there they are
made and kept in it, without a GPU for an H100, and nothing more is done then.
"""

import argparse
import importlib.util
import json
import os
import pickle
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "bench"), str(ROOT / "tests" / "support")]

import numpy as np
from golden_graphs import NAMES, golden_graph
from golden_kernels import numbered, usual_weights
from goldens import GOLDENS, golden
from protocol import facts, print_table, statistics
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.errors import RejectionError
from mirage_onnx.graphs.triton_text import triton_text
from mirage_onnx.ir import Candidate, Program
from mirage_onnx.superopt.search import search
from mirage_onnx.target import H100, get_target
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.gpu_arrays import gpu_arrays
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.equivalence import verify

#: Sets of numbers that are tried for kernels of ours; samples of a time.
TRIED, SAMPLES = 6, 9
#: Seconds for the search of a program of which Triton cannot say the golden µGraph.
SEARCH_S = 20


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
  if hasattr(verify(region, graph), "bound"):  # else it is the text of another region
    yield from (Candidate(graph, p, us) for us, p in numbered(graph, region, target, TRIED))
  found = search(region, target, prover(), budget_s=SEARCH_S)
  yield from (c.candidate for c in found.candidates)


def program_of(region):
  """What the text asks of a program: its inputs and outputs."""
  inputs, outputs = ([t.tensor for t in some] for some in (region.inputs, region.outputs))
  tensors = {t.name: t for t in (*inputs, *outputs)}
  names = [tuple(dict.fromkeys(t.name for t in some)) for some in (inputs, outputs)]
  return Program(*names, nodes=(), tensors=tensors, weights=frozenset(), constants={})


def written(name, target_name):
  """(text or "", candidate, kernels of ours or None, refusals): the first numbers that have both."""
  target, refused = get_target(target_name), {}
  region, best = region_of(name), ("", None, None)
  for tried, c in enumerate(candidates_of(name, target)):
    if best[0] and tried >= TRIED:
      break
    try:
      text = triton_text(program_of(region), region, c, name, target)
    except RejectionError as error:
      refused[f"{error.rejection.code}: {error.rejection.reason}"] = None
      continue
    own, why = compile_candidates(region, [c], target, keep=1, workers=1)
    refused |= {f"{r.code}: {r.reason}": None for r in why}
    if own or not best[0]:
      best = text, c, own[0] if own else None
    if own:
      break
  return (*best, list(refused))


def program_at(path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  program = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(program)
  return program


def compiled(path):
  """Seconds that Triton takes for a program: it runs once, on numbers that are not looked at."""
  import torch

  start, program = time.monotonic(), program_at(path)
  given = zip(program.SHAPES, program.DTYPES, strict=True)
  program.optimized_graph([torch.rand(s, device="cuda").to(t) for s, t in given])
  torch.cuda.synchronize()
  return round(time.monotonic() - start, 1)


def on_gpu(x, torch):
  """A torch tensor of an array, bit for bit."""
  bits = np.ascontiguousarray(x)
  if x.dtype.name == "bfloat16":
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).cuda()
  return torch.from_numpy(bits).cuda()


def measured(gpu, name, path, candidate, own, torch):
  """The record of a program that compiled."""
  region, program = region_of(name), program_at(path)
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
    return [name, "", "", "", (r.get("failed") or next(iter(r.get("refused", ())), "no numbers"))[:60]]
  t, own = r["triton"], r.get("cuda")
  right = "right" if t["error"] <= t["allowed"] else f"WRONG {t['error']:.1e}"
  return [name, f"{t['us']:.1f}", f"{own['us']:.1f}" if own else "", right, r["numbers"][:60]]


def texts_of(names, target_name, path, pool):
  """Name -> what ``written`` gives; from the file where it is there, else kept in it."""
  if path is not None and path.exists():
    found = pickle.loads(path.read_bytes())
    return {n: found[n] for n in names}
  found = dict(zip(names, pool.map(partial(written, target_name=target_name), names), strict=True))
  if path is not None:
    path.write_bytes(pickle.dumps(found))
  return found


def record_of(gpu, name, path, made, compiling, torch):
  _, candidate, own, refused = made
  record = {"refused": refused} if refused else {}
  if path is not None:
    try:
      record |= {"compile_s": compiling.result()} | measured(gpu, name, path, candidate, own, torch)
    except Exception as error:  # one program, not the run
      record["failed"] = f"{type(error).__name__}: {error}"[:300]
  return record


def run(gpu, texts, pool, folder, deadline, out):
  """Every program, as Triton is done with it."""
  import torch

  result, rows, compiles = facts() | {"programs": {}, "left_out": []}, [], {}
  for name, (text, *_) in texts.items():
    path = Path(folder) / f"{name.replace(' ', '_')}.py"
    path.write_text(text, encoding="utf-8")
    compiles[pool.submit(compiled if text else str, path)] = name, path if text else None
  try:
    for done in as_completed(compiles, timeout=max(1, deadline - time.monotonic())):
      name, path = compiles[done]
      record = record_of(gpu, name, path, texts[name], done, torch)
      result["programs"][name] = record
      rows.append(row_of(name, record))
      print("  ".join(rows[-1]), flush=True)
      out.write_text(json.dumps(result, indent=1) + "\n")
      if time.monotonic() > deadline:
        break
  except TimeoutError:
    pass
  result["left_out"] = [n for n in texts if n not in result["programs"]]
  out.write_text(json.dumps(result, indent=1) + "\n")
  print_table("Triton programs", ("program", "triton us", "cuda us", "float64", "numbers or why not"), rows)
  ran = [r for r in result["programs"].values() if "triton" in r]
  wrong = [r for r in ran if not r["triton"]["error"] <= r["triton"]["allowed"]]
  every, left_out = len(result["programs"]), len(result["left_out"])
  print(f"{len(ran)} of {every} ran, {len(wrong)} wrong, {left_out} left out", flush=True)
  return int(bool(wrong) or not ran)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("out", type=Path)
  parser.add_argument("names", nargs="*")
  parser.add_argument("--seconds", type=float, default=90.0)
  parser.add_argument("--texts", type=Path)
  options = parser.parse_args()
  deadline, target = time.monotonic() + options.seconds, present_target()
  if target is None and options.texts is None:
    sys.exit("there is no GPU here that has a device profile")
  cores = len(os.sched_getaffinity(0))
  with tempfile.TemporaryDirectory() as folder:
    pool = ProcessPoolExecutor(cores, get_context("spawn"))
    name = target.name if target else H100.name
    texts = texts_of(subjects(options.names), name, options.texts, pool)
    code = run(gpu_of(target), texts, pool, folder, deadline, options.out) if target else 0
    pool.shutdown(wait=False, cancel_futures=True)
  os._exit(code)  # a process in which Triton still compiles is not waited for


if __name__ == "__main__":
  main()
