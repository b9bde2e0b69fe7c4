"""Attention by wgmma and by mma, and torch's ways, in one process, cold L2; each checked in float64.

    python bench/warpgroup_attention.py OUT.json [CASE ...]

Block graphs as the search finds them (a loop over keys, running maxima); numbers that
``superopt/warpgroup_chains.py`` ranks, those with mma that the cost model ranks first. Needs a Hopper GPU
and torch; ``--emulate``: small cases on a CPU instead, without times.
"""

import argparse
import json
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from os import sched_getaffinity

import numpy as np
from protocol import facts
from torch_arms import arm_times, attention_ways

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import parse_ugraph, ugraph_extents
from mirage_onnx.superopt.tiled_numbers import solve_tiled
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.target import H100


@dataclass(frozen=True)
class Case:
  """Heads are ``kv_heads`` x ``group``; tensors lie as (batch, length, heads, depth).

  ``mask``: "" none, "add" an fp16 one of queries and keys, "bool" the same of truth values, "keys" an fp16
  one of keys. Of constants: "causal" additive and the same for all; "window" truth values of the last quarter
  of the keys before a query; "exported" causal truth values, and those of keys that are there.
  """

  batch: int
  kv_heads: int
  group: int
  queries: int
  keys: int
  depth: int
  mask: str = ""

  @property
  def extents(self):
    names = ("a0", "a5", "a6", "a3", "a1", "a2", "a4")
    sizes = (self.batch, self.kv_heads, self.group, self.queries, self.keys, self.depth, self.depth)
    return dict(zip(names, sizes, strict=True))

  @property
  def mask_axes(self):
    own = {"add": "a0,a3,a1", "bool": "a0,a3,a1", "keys": "a0,a1"}
    return own.get(self.mask, "a3,a1" if self.constant else "")

  @property
  def constant(self):
    """What the data of the mask say, if it is a constant."""
    found = {
      "causal": "..0 else -65504 sharp",
      "window": f"{1 - self.keys // 4}..0 else 0 sharp",
      "exported": "..0 else 0 sharp",
    }
    return found.get(self.mask, "")

  @property
  def truth(self):
    return self.mask in ("bool", "window", "exported")

  @property
  def text(self):
    """The block graph."""
    lines, exact = [], self.depth in (64, 256)

    def op(text, layout, phase="loop"):
      lines.append(f"  %{len(lines)} = {text} {phase} {layout}")
      return f"%{len(lines) - 1}"

    grid = ",".join(a for a in ("a3", "a6", "a5", "a0") if a not in self.lone)
    scale = {64: "1/8", 128: "2896/32768", 256: "1/16", 32: "5793/32768"}[self.depth]

    def at_block(own):
      return ",".join(a if a in own.split(",") else "-" for a in grid.split(","))

    k = op(f"load i1 imap={at_block('a5,a0')} cmap=- fmap=a1 : f16[a0,a1,a5,a2]", "shared")
    q = op(f"load i0 imap={grid} cmap=- fmap=- : f16[a0,a3,a5,a6,a2]", "A_frag")
    c = op(f"const[{scale}] : f32[]", "uniform")
    if exact:
      wide = op(f"cast {q} : f32[a0,a2,a3,a5,a6]", "A_frag")
      wide = op(f"mul {wide} {c} : f32[a0,a2,a3,a5,a6]", "A_frag")
      q = op(f"cast {wide} : f16[a0,a2,a3,a5,a6]", "A_frag")
    at = "a0,a1,a3,a5,a6"
    s = op(f"matmul[a2] {q} {k} : f32[{at}]", "C_frag")
    s = s if exact else op(f"mul {s} {c} : f32[{at}]", "C_frag")
    if self.mask:
      own = self.mask_axes.split(",")
      kind = "bool" if self.truth else "f16"
      m = op(f"load i3 imap={at_block(self.mask_axes)} cmap=- fmap=a1 : {kind}[{self.mask_axes}]", "C_frag")
      if self.mask == "exported":
        there = op(f"load i4 imap={at_block('a0,a1')} cmap=- fmap=a1 : bool[a0,a1]", "column")
        own = ["a0", "a1", "a3"]
        m = op(f"mul {m} {there} : bool[a0,a1,a3]", "C_frag")
      m = op(f"cast {m} : f32[{','.join(sorted(own))}]", "C_frag")
      if self.truth:
        none, low = op("const[0] : f32[]", "uniform"), op("const[-65504] : f32[]", "uniform")
        m = op(f"select {m} {none} {low} : f32[{','.join(sorted(own))}]", "C_frag")
      s = op(f"add {m} {s} : f32[{at}]", "C_frag")
    rows = "a0,a3,a5,a6"
    top = op(f"rmax[a1] {s} : f32[{rows}]", "row")
    run = op(f"run_max {top} : f32[{rows}]", "row")
    p = op(f"sub {s} {run} : f32[{at}]", "C_frag")
    p = op(f"exp {p} : f32[{at}]", "C_frag")
    total = op(f"sum[a1] {p} : f32[{rows}]", "row")
    old = op(f"prev {run} : f32[{rows}]", "row")
    f = op(f"sub {old} {run} : f32[{rows}]", "row")
    f = op(f"exp {f} : f32[{rows}]", "row")
    total = op(f"acc_scaled {total} {f} : f32[{rows}]", "row", "post")
    v = op(f"load i2 imap={at_block('a5,a0')} cmap=- fmap=a1 : f16[a0,a1,a5,a4]", "shared")
    p = op(f"cast {p} : f16[{at}]", "A_frag")
    y = op(f"matmul[a1] {p} {v} : f32[a0,a3,a4,a5,a6]", "C_frag")
    y = op(f"acc_scaled {y} {f} : f32[a0,a3,a4,a5,a6]", "C_frag", "post")
    y = op(f"div {y} {total} : f32[a0,a3,a4,a5,a6]", "C_frag", "post")
    y = op(f"cast {y} : f16[a0,a3,a4,a5,a6]", "C_frag", "post")
    kind, role = "bool" if self.truth else "f16", "input"
    if self.constant:
      role = f"weight seen a1:a3 {self.constant}"
    mask = f"tensor i3 {kind}[{self.mask_axes}] {role}\n" if self.mask else ""
    mask += "tensor i4 bool[a0,a1] input\n" if self.mask == "exported" else ""
    text = (
      "ugraph 1\ntensor i0 f16[a0,a3,a5,a6,a2] input\ntensor i1 f16[a0,a1,a5,a2] input\n"
      f"tensor i2 f16[a0,a1,a5,a4] input\n{mask}tensor o0 f16[a0,a3,a5,a6,a4] output\n"
      f"kernel k0 grid={grid} cluster=- loop=a1\n" + "\n".join(lines) + f"\n  save o0 = {y} omap={grid}\n"
    )
    for axis in self.lone:
      text = re.sub(rf"{axis},|,{axis}\b", "", text)
    return text

  @property
  def lone(self):
    """Axes of one element: no axes of the block graph, whose grid has three."""
    return [a for a in ("a0", "a6") if self.extents[a] == 1]

  def drawn(self, rng):
    """Inputs, the mask with -65504 for what is hidden."""
    e = self.extents
    shapes = {"i0": "a0 a3 a5 a6 a2", "i1": "a0 a1 a5 a2", "i2": "a0 a1 a5 a4"}
    found = {n: rng.standard_normal([e[a] for a in s.split()]).astype(np.float16) for n, s in shapes.items()}
    if self.mask:
      shape = [e[a] for a in self.mask_axes.split(",")]
      seen = np.tri(*shape, dtype=bool) if self.constant else rng.random(shape) < 0.9
      if self.mask == "window":
        seen &= ~np.tri(*shape, -(self.keys // 4), dtype=bool)
      found["i3"] = seen if self.truth else np.where(seen, 0, -65504).astype(np.float16)
    if self.mask == "exported":
      # The first sample begins with keys that are not there: its first queries see nothing.
      found["i4"] = np.arange(self.keys)[None, :] >= np.where(np.arange(self.batch) == 0, 70, 0)[:, None]
    return found


CASES = {
  "8x12x512x64 add": Case(8, 12, 1, 512, 512, 64, "add"),
  "8x12x512x64 bool": Case(8, 12, 1, 512, 512, 64, "bool"),
  "8x12x512x64 keys": Case(8, 12, 1, 512, 512, 64, "keys"),
  "8x12x512x64": Case(8, 12, 1, 512, 512, 64),
  "32/8x2048x128 causal": Case(1, 8, 4, 2048, 2048, 128, "causal"),
  "32/8x2048x128": Case(1, 8, 4, 2048, 2048, 128),
  "2x12x1024x64 exported": Case(2, 12, 1, 1024, 1024, 64, "exported"),
  "32/8x2048x128 window": Case(1, 8, 4, 2048, 2048, 128, "window"),
  "2x12x1024x64 causal": Case(2, 12, 1, 1024, 1024, 64, "causal"),
  "16x8192x64": Case(1, 16, 1, 8192, 8192, 64),
  "1x12x197x64": Case(1, 12, 1, 197, 197, 64),
  "16x12x197x64": Case(16, 12, 1, 197, 197, 64),
  "1x12x1500x64": Case(1, 12, 1, 1500, 1500, 64),
  "4x12x77x64 keys": Case(4, 12, 1, 77, 77, 64, "keys"),
  "8/2x333x128, 1000 keys": Case(1, 4, 2, 333, 1000, 128),
  "8/2x1500x128 causal": Case(1, 4, 2, 1500, 1500, 128, "causal"),
  "2x12x197x64, 1000 keys add": Case(2, 12, 1, 197, 1000, 64, "add"),
  "1x4x1777x64 window": Case(1, 4, 1, 1777, 1777, 64, "window"),
}
SMALL = {
  "add": Case(1, 2, 1, 77, 200, 64, "add"),
  "bool": Case(1, 2, 1, 77, 208, 64, "bool"),
  "keys": Case(2, 1, 1, 64, 192, 64, "keys"),
  "causal": Case(1, 1, 2, 130, 130, 128, "causal"),
  "causal64": Case(2, 1, 1, 400, 400, 64, "causal"),
  "window": Case(1, 2, 1, 700, 700, 64, "window"),
  "exported": Case(2, 1, 1, 330, 330, 64, "exported"),
  "none": Case(1, 1, 2, 200, 500, 64),
}
MOST_WRONG = 4e-3


def jobs_of(name, case, keep, others):
  """(case, label, predicted us, source) of the numbers of a case."""
  graph, sizes = parse_ugraph(case.text), case.extents
  (kernel,), tensors = graph.kernels, {t.name: t for t in graph.tensors}
  points = list(chained_points(kernel, tensors, sizes, H100, keep))
  points += [(c.time_us, p) for c, p in solve_tiled(kernel, tensors, sizes, H100, keep=others)]
  found = []
  for us, p in points:
    try:
      source = emit_kernel(graph, kernel, p, ugraph_extents(graph, (p,), sizes), H100)
    except RejectionError as error:
      source = f"{error.rejection.code} {error.rejection.reason}"
    found.append((name, p.to_text(), us, source))
  return found


def compiled(job):
  if isinstance(job[3], str):
    return (*job, job[3])
  try:
    return (*job, compile_cubin(job[3].text, H100, name=job[3].name))
  except RejectionError as error:
    return (*job, f"{error.rejection.code} {error.rejection.reason}")


def oracle(xp, case, given):
  """With torch or numpy, of float64; (batch, length, kv_heads, group, depth)."""
  q, k, v = (given[n] for n in ("i0", "i1", "i2"))
  found = xp.empty_like(q)
  mask = given.get("i3")
  for b in range(case.batch):
    for h in range(case.kv_heads):
      s = xp.einsum("qgd,kd->gqk", q[b, :, h], k[b, :, h]) * case.depth**-0.5
      if mask is not None:
        m = mask if case.constant else mask[b]
        m = m & given["i4"][b] if case.mask == "exported" else m
        s = s + (xp.where(m, 0.0, -65504.0) if case.truth else m)
      p = xp.exp(s - xp.amax(s, -1)[..., None])
      found[b, :, h] = xp.einsum("gqk,kd->qgd", p / p.sum(-1)[..., None], v[b, :, h])
  return found


def peers(torch, case, given):
  """torch's ways that take these inputs, by name."""

  def heads(x):
    return x.reshape(*x.shape[:2], -1, x.shape[-1]).transpose(1, 2)

  q, k, v = (heads(given[n]) for n in ("i0", "i1", "i2"))
  more = {"enable_gqa": True} if case.group > 1 else {}
  if case.mask == "causal":
    more["is_causal"] = True
  elif case.mask == "window":
    more["attn_mask"] = given["i3"][None, None]
  elif case.mask == "exported":
    more["attn_mask"] = (given["i3"] & given["i4"][:, None])[:, None]
  elif case.mask:
    m = given["i3"]
    more["attn_mask"] = m[:, None] if m.dim() == 3 else m[:, None, None]

  return attention_ways(torch, q, k, v, ("FLASH", "CUDNN", "EFFICIENT"), **more)


def timed(name, case, jobs, gpu, torch):
  """The record of a case."""
  work = 4 * case.batch * case.kv_heads * case.group * case.queries * case.keys * case.depth
  record = {"flop": work, "us": {}, "refused": {}, "error": {}, "predicted_us": {}, "registers": {}}
  with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    drawn = case.drawn(np.random.default_rng(0))
    given = {n: torch.from_numpy(x).cuda() for n, x in drawn.items()}
    wide = {n: x if x.dtype is torch.bool else x.double() for n, x in given.items()}
    want, y = oracle(torch, case, wide), torch.empty_like(given["i0"])
    arms = {n: gpu.capture(f) for n, f in peers(torch, case, given).items()}
    at = {n: x.data_ptr() for n, x in given.items()} | {"o0": y.data_ptr()}
    for _, label, predicted_us, source, cubin in jobs:
      if isinstance(cubin, str):
        record["refused"][label] = cubin
        continue
      launch = partial(gpu.launch_source, gpu.load(cubin, source.name, source.smem_bytes), source, at)
      gpu.poison(at["o0"], 2 * y.numel())
      launch()
      gpu.wait()
      error = ((y.double() - want).abs().max() / want.abs().max()).item()
      record["error"][label], record["predicted_us"][label] = error, round(predicted_us, 2)
      record["registers"][label] = cubin.registers
      if not error < MOST_WRONG:
        record["refused"][label] = f"wrong by {error}"
      else:
        arms[label] = gpu.capture(launch)
  record["us"] = arm_times(gpu, arms)
  return record


def emulated(keep):
  """The small cases on a CPU: the largest error of each of their kernels."""
  from mirage_onnx.emulator import compile_kernels

  for name, case in SMALL.items():
    jobs = [j for j in jobs_of(name, case, keep, 0) if not isinstance(j[3], str)]
    for _, label, _, source in jobs:
      given = case.drawn(np.random.default_rng(0))
      y = np.full_like(given["i0"], np.nan)
      compile_kernels([source]).run({**given, "o0": y})
      want = oracle(np, case, {n: x if x.dtype == bool else x.astype(float) for n, x in given.items()})
      print(name, label, np.abs(y - want).max() / np.abs(want).max(), flush=True)


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("out")
  parser.add_argument("cases", nargs="*", default=list(CASES))
  parser.add_argument("--keep", type=int, default=12, help="numbers with wgmma")
  parser.add_argument("--others", type=int, default=4, help="numbers with mma")
  parser.add_argument("--emulate", action="store_true")
  args = parser.parse_args()
  if args.emulate:
    emulated(args.keep)
    return
  with ProcessPoolExecutor(len(sched_getaffinity(0))) as pool:
    every = [(n, CASES[n]) for n in args.cases]
    found = pool.map(partial(_jobs, keep=args.keep, others=args.others), every)
    jobs = list(pool.map(compiled, [job for own in found for job in own], chunksize=1))
  import torch

  from mirage_onnx.tune.device import Gpu

  result = {**facts(), "cases": {}}
  gpu = Gpu(H100)
  for name in args.cases:
    with gpu.scope():
      record = timed(name, CASES[name], [j for j in jobs if j[0] == name], gpu, torch)
    result["cases"][name] = record
    us = {k: v[0] for k, v in record["us"].items()}
    theirs = {k: t for k, t in us.items() if "=" not in k}
    for own in ("wgmma", ""):
      ours = {k: t for k, t in us.items() if "=" in k and ("wgmma" in k) == bool(own)}
      best = min(ours, key=ours.get, default="")
      print(f"{name}: {theirs}, ours {ours.get(best)} {best}", flush=True)
    with open(args.out, "w") as file:
      json.dump(result, file, indent=1)


def _jobs(case, keep, others):
  return jobs_of(*case, keep, others)


if __name__ == "__main__":
  main()
