"""What each choice of the tile compiler brings: every one in turn made without its objective.

    python bench/ablation.py [--out DIR] [--seconds 300] [PROGRAM or CASE ...]

For golden µGraphs at full size and what the search finds for cases of the speed table, with the
best numbers that compile: the kernels as they are, and with one entry of ``naive_choices.py`` at a
time. Time where there is a GPU (all of a program interleaved, each checked against float64 first),
barriers that a block passes, values that move through shared memory, bytes of shared memory,
registers. Writes DIR/ablation.json; ``kernel_records.py`` makes the page of it. Exits 1 if a
kernel is wrong.
"""

import argparse
import json
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cases import ROWS
from chosen_kernels import chosen_kernels
from facts import facts as cpu_facts
from golden_kernels import NAMES, PROGRAMS, golden_graph, numbered, usual_weights
from naive_choices import NAIVE, barriers, held, moves
from protocol import facts, print_table, statistics, streaming_limit, write_text
from run import size_of

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.compiler import compile_many
from mirage_onnx.compiler.candidates import Compiled, emit_candidate
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Candidate
from mirage_onnx.lower import choice
from mirage_onnx.target import H200
from mirage_onnx.tune.device import present_target
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import draw

#: Rows of the speed table as golden programs, others of more than one contraction, and the cases
#: of the speed table whose kernels are tiled.
SUBJECTS = (
  "rmsnorm_linear", "layernorm_linear", "gated_mlp_silu", "whole_mlp", "expert_mlp",
  "lora_merged", "lora_two_adapters", "ngpt_step", "attention", "attention_softcap",
  "grouped_query", "decode", "speculative_decode", "multi_head", "qknorm_rms_attention",
  "qknorm_layernorm_attention", "linear_attention", "mla_with_linears",
  "attention/one", "gqa_decode/one", "qknorm/one",
)  # fmt: skip
ALL, ONE_STAGE = "all as they are", "copies: not ahead (one stage)"
VARIANTS = (ALL, *NAIVE, ONE_STAGE)
FIGURES = ("barriers", "moves", "smem_bytes", "registers", "spilled")
SAMPLES, POINTS, SEARCH_S = 9, 60, 40.0


@dataclass(frozen=True)
class Variant:
  """A program with one choice switched off: its texts, or why there are none."""

  name: str
  candidate: Candidate
  sources: tuple[KernelSource, ...] = ()
  static: dict[str, Any] | None = None
  refused: str = ""


@contextmanager
def _plans():
  """The plans of the tiled kernels that are emitted meanwhile."""
  found = []
  make = choice.tiled_graph

  def kept(*args, **more):
    found.append(make(*args, **more))
    return found[-1]

  with mock.patch.object(choice, "tiled_graph", kept):
    yield found


def variant(name, candidate, region, target):
  """The kernels of a candidate with this choice switched off."""
  if name == ONE_STAGE:
    params = tuple(replace(p, stages=1) for p in candidate.params)
    candidate = replace(candidate, params=params)
  off = NAIVE[name]() if name in NAIVE else nullcontext()
  try:
    with off, _plans() as plans:
      sources = emit_candidate(candidate, region.extents, target, "ablation")
  except RejectionError as error:
    return Variant(name, candidate, refused=str(error.rejection.code))
  static = {
    "barriers": sum(map(barriers, plans)), "moves": sum(map(moves, plans)),
    "held": sum(map(held, plans)), "smem_bytes": max(s.smem_bytes for s in sources),
    "tiled": len(plans),
  }  # fmt: skip
  return Variant(name, candidate, sources, static)


def compiled(variants, target):
  """Variant -> its images, or why there are none (the first kernel that was refused).

  Kernels that spill, which the product refuses, are timed as well: a naive choice has that price.
  """
  texts = {s.text: s for v in variants for s in v.sources}
  images = compile_many(list(texts.values()), target, os.cpu_count() or 1)
  image = {
    text: _spilling(texts[text], target) if getattr(i, "code", "") == "SPILLS" else i
    for text, i in zip(texts, images, strict=True)
  }
  found = {}
  for v in variants:
    own = [image[s.text] for s in v.sources]
    bad = [i for i in own if not isinstance(i, Cubin)]
    reason = v.refused or (f"{bad[0].code}: {bad[0].reason}"[:120] if bad else "")
    found[v.name] = (tuple(i for i in own if isinstance(i, Cubin)), reason)
  return found


def _spilling(source, target):
  image, log, _ = compiler._nvrtc(source.text, target, source.name)
  used, stack = compiler._USED.search(log), compiler._STACK.search(log)
  assert used is not None
  assert stack is not None
  spilled = int(stack[2]) + int(stack[3])
  return Cubin(image, int(used[1]), 0, int(stack[1]), spilled, log, 0.0)


def subject(name, target):
  """A golden program with the best numbers that compile, or the largest region of a case."""
  if "/" in name:
    case = ROWS[name.split("/")[0]].make(**size_of(name))
    found = list(chosen_kernels(name, case, target, None, SEARCH_S))
    best = max(found, key=lambda c: len(c.region.nodes), default=None)
    return None if best is None else (best.region, best.compiled.candidate)
  region, graph = PROGRAMS[name](), golden_graph(name)
  for predicted, params in numbered(graph, region, target, POINTS):
    candidate = Candidate(graph, params, predicted)
    plain = variant(ALL, candidate, region, target)
    images = compile_many(plain.sources, target, 1)
    if plain.sources and all(isinstance(i, Cubin) for i in images):
      return region, candidate
  return None


def measure(name, target, gpu):
  """One program."""
  result = {"program": name, "variants": [], "failed": []}
  found = subject(name, target)
  if found is None:
    return result | {"failed": ["no numbers compile"]}
  region, candidate = found
  result["params"] = " | ".join(p.to_text() for p in candidate.params)
  variants = [variant(n, candidate, region, target) for n in VARIANTS]
  images = compiled(variants, target)
  plain = variants[0].sources
  live = []
  for v in variants:
    cubins, refused = images[v.name]
    row = {"variant": v.name, **(v.static or {})}
    if refused:
      row["refused"] = refused
    else:
      row["registers"] = max(c.registers for c in cubins)
      row["spilled"] = sum(c.spill_bytes for c in cubins)
    row["same"] = v.name != ALL and v.sources == plain
    result["variants"].append(row)
    if not (refused or row["same"]):
      live.append((v, row))
  if gpu is not None:
    result["failed"] += _timed(region, live, {n: c for n, (c, _) in images.items()}, gpu)
  return result


def _timed(
  region,
  live,
  cubins,
  gpu,
):
  """Times of the variants, into their rows; what was wrong."""
  data, oracle = draw(region, usual_weights(region), np.random.default_rng(0))
  size = sum(x.nbytes for x in data.values())
  failed = []
  with gpu.scope():
    inputs = Inputs(gpu, region, data)
    arms, rows = [streaming_limit(gpu, size)[0]], []
    for v, row in live:
      done = Compiled(v.candidate, v.sources, cubins[v.name])
      replay, outputs = prepare(gpu, region, done, inputs)
      if problem := oracle.complaint(gpu, replay, outputs):
        row["wrong"] = True
        failed.append(f"{v.name}: {problem}")
      arms.append(replay)
      rows.append(row)
    times = gpu.time_us(arms, SAMPLES)
  for row, samples in zip(rows, times[1:], strict=True):
    row |= statistics(samples) | {"limit_us": round(float(np.median(times[0])), 3)}
  return failed


def show(result):
  rows = [
    [
      r["variant"], "same" if r["same"] else f"{r['us']:.1f}" if "us" in r else "-",
      *(str(r.get(k, "-")) for k in FIGURES),
      r.get("refused", ""),
    ]
    for r in result["variants"]
  ]  # fmt: skip
  head = ("variant", "us", *FIGURES, "refused")
  print_table(f"{result['program']}: {result.get('params', '')}", head, rows)
  print(*result["failed"], sep="\n", flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, default=Path("out"))
  parser.add_argument("--seconds", type=float, default=300.0)
  parser.add_argument("names", nargs="*", default=SUBJECTS, metavar="PROGRAM")
  options = parser.parse_args()
  if unknown := {n for n in options.names if "/" not in n} - set(NAMES):
    parser.error(f"no such golden program: {', '.join(sorted(unknown))}")
  target = present_target()
  gpu = gpu_of(target) if target is not None else None
  deadline = time.monotonic() + options.seconds
  about = facts() if gpu is not None else cpu_facts(("numpy", "cuda-core"))
  found = about | {"programs": [], "left_out": []}
  for name in options.names:
    if time.monotonic() > deadline:
      found["left_out"].append(name)
      continue
    try:
      result = measure(name, target or H200, gpu)
    except RejectionError as error:
      result = {"program": name, "variants": [], "failed": [str(error)[:300]]}
    found["programs"].append(result)
    show(result)
    write_text(options.out / "ablation.json", json.dumps(found, indent=1) + "\n")
  return 1 if any(r.get("wrong") for p in found["programs"] for r in p["variants"]) else 0


if __name__ == "__main__":
  sys.exit(main())
