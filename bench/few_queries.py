"""Attention of few queries and many keys, which blocks share, beside torch's ways; cold L2, float64.

    python bench/few_queries.py OUT.json [CASE ...] [--keep 8]

Two programs: ranks of a cluster share the keys, or the next kernel adds up what blocks have made of theirs.
Numbers are those that ``superopt/warpgroup_chains.py`` ranks first (fed ones and others), and of the kernel
that adds up the ``ROWS`` below. Every program is launched ``AGAIN`` times: all bits are those of the first.
Needs a Hopper GPU and torch.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from os import sched_getaffinity
from pathlib import Path

from protocol import facts, write_text
from torch_arms import arm_times, attention_ways, unlike

from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, KernelParams, parse_ugraph, ugraph_extents
from mirage_onnx.superopt.warpgroup_chains import chained_points
from mirage_onnx.target import H100

#: Heads, queries, keys, elements a head.
CASES = {
  "2x256x64, 4096 keys": (2, 256, 4096, 64),
  "32x64x128, 4096 keys": (32, 64, 4096, 128),
  "32x64x128, 3000 keys": (32, 64, 3000, 128),
  "4x128x64, 2048 keys": (4, 128, 2048, 64),
}
#: Rows and columns of a block that adds up, and its warps.
ROWS = (((1, 64, 1), 2), ((4, 64, 1), 4), ((8, 64, 1), 8), ((1, 32, 1), 1), ((2, 64, 1), 4))
MOST_WRONG, AGAIN = 4e-3, 200
_IN_LOOP = """kernel k0 grid={grid} cluster=a1 loop=a1
  %0 = load i1 imap={q} cmap=- fmap=- : f16[a0,a3,a4] loop A_frag
  %1 = load i2 imap={k} cmap=a1 fmap=a1 : f16[a0,a1,a4] loop shared
  %2 = matmul[a4] %0 %1 : f32[a0,a1,a3] loop C_frag
  %3 = rmax[a1] %2 : f32[a0,a3] loop row
  %4 = acc_max %3 : f32[a0,a3] post row
  %5 = red_max %4 : f32[a0,a3] post row
  %6 = const[-1] : f32[] loop uniform
  %7 = run_max %3 : f32[a0,a3] loop row
  %8 = mul %6 %7 : f32[a0,a3] loop row
  %9 = add %8 %2 : f32[a0,a1,a3] loop C_frag
  %10 = exp %9 : f32[a0,a1,a3] loop C_frag
  %11 = sum[a1] %10 : f32[a0,a3] loop row
  %12 = prev %7 : f32[a0,a3] loop row
  %13 = sub %12 %7 : f32[a0,a3] loop row
  %14 = exp %13 : f32[a0,a3] loop row
  %15 = acc_scaled %11 %14 : f32[a0,a3] post row
  %16 = sub %4 %5 : f32[a0,a3] post row
  %17 = exp %16 : f32[a0,a3] post row
  %18 = mul %15 %17 : f32[a0,a3] post row
  %19 = red_sum %18 : f32[a0,a3] post row
  %20 = load i0 imap={v} cmap=a1 fmap=a1 : f16[a0,a1,a2] loop shared
  %21 = cast %10 : f16[a0,a1,a3] loop A_frag
  %22 = matmul[a1] %21 %20 : f32[a0,a2,a3] loop C_frag
  %23 = acc_scaled %22 %14 : f32[a0,a2,a3] post C_frag
  %24 = mul %23 %17 : f32[a0,a2,a3] post C_frag
  %25 = red_sum %24 : f32[a0,a2,a3] post C_frag
"""
_INPUTS = """ugraph 1
tensor i0 f16[a0,a1,a2] input
tensor i1 f16[a0,a3,a4] input
tensor i2 f16[a0,a1,a4] input
"""
BY_RANKS = (
  _INPUTS + "tensor o0 f16[a0,a3,a2] output\n"
  + _IN_LOOP.format(grid="a2,a3,a0", q="-,a3,a0", k="-,-,a0", v="a2,-,a0")
  + """  %26 = recip %19 : f32[a0,a3] post row
  %27 = mul %25 %26 : f32[a0,a2,a3] post C_frag
  %28 = cast %27 : f16[a0,a2,a3] post C_frag
  save o0 = %28 omap=a2,a3,a0
"""
)  # fmt: skip
BY_PARTS = (
  _INPUTS + """tensor t0 f32[a0,a3,a1/k0] temp
tensor t1 f32[a0,a3,a1/k0] temp
tensor t2 f32[a0,a2,a3,a1/k0] temp
tensor o0 f16[a0,a3,a2] output
""" + _IN_LOOP.format(grid="a1,a3,a0", q="-,a3,a0", k="a1,-,a0", v="a1,-,a0")
  + """  save t0 = %5 omap=a1/k0,a3,a0
  save t1 = %19 omap=a1/k0,a3,a0
  save t2 = %25 omap=a1/k0,a3,a0
kernel k1 grid=a3,a2,a0 cluster=- loop=-
  %0 = load t1 imap=a3,-,a0 cmap=- fmap=- : f32[a0,a3,a1/k0] post vector
  %1 = const[-1] : f32[] post uniform
  %2 = load t0 imap=a3,-,a0 cmap=- fmap=- : f32[a0,a3,a1/k0] post vector
  %3 = rmax[a1/k0] %2 : f32[a0,a3] post uniform
  %4 = mul %1 %3 : f32[a0,a3] post uniform
  %5 = add %4 %2 : f32[a0,a1/k0,a3] post vector
  %6 = exp %5 : f32[a0,a1/k0,a3] post vector
  %7 = mul %0 %6 : f32[a0,a1/k0,a3] post vector
  %8 = sum[a1/k0] %7 : f32[a0,a3] post uniform
  %9 = recip %8 : f32[a0,a3] post uniform
  %10 = load t2 imap=a3,a2,a0 cmap=- fmap=- : f32[a0,a2,a3,a1/k0] post vector
  %11 = mul %6 %10 : f32[a0,a1/k0,a2,a3] post vector
  %12 = sum[a1/k0] %11 : f32[a0,a2,a3] post uniform
  %13 = mul %9 %12 : f32[a0,a2,a3] post uniform
  %14 = cast %13 : f16[a0,a2,a3] post uniform
  save o0 = %14 omap=a3,a2,a0
"""
)  # fmt: skip


#: The same with what blocks have made in other orders: each part by itself, and rows before columns.
FIRST = BY_PARTS.replace("t2 f32[a0,a2,a3,a1/k0] temp", "t2 f32[a1/k0,a0,a3,a2] temp")
ROWS_FIRST = BY_PARTS.replace("t2 f32[a0,a2,a3,a1/k0] temp", "t2 f32[a0,a3,a2,a1/k0] temp")


def extents_of(name):
  heads, queries, keys, depth = CASES[name]
  return {"a0": heads, "a1": keys, "a2": depth, "a3": queries, "a4": depth}


def jobs_of(name, keep):
  """(case, label, predicted us of the first kernel, graph, params, sources)."""
  sizes, found = extents_of(name), []
  for how, text in (("ranks", BY_RANKS), ("parts", BY_PARTS), ("first", FIRST), ("rows", ROWS_FIRST)):
    graph = parse_ugraph(text)
    tensors = {t.name: t for t in graph.tensors}
    behind = (
      [KernelParams(tile, 1, 0, warps, 1) for tile, warps in ROWS] if len(graph.kernels) > 1 else [None]
    )
    for (us, p), more in product(chained_points(graph.kernels[0], tensors, sizes, H100, keep), behind):
      params = (p, more) if more else (p,)
      label = f"{how} {p.to_text()}" + (f" / {more.to_text()}" if more else "")
      try:
        sources = emit_candidate(Candidate(graph, params), sizes, H100, "k")
      except RejectionError as error:
        sources = f"{error.rejection.code} {error.rejection.reason}"
      found.append((name, label, us, graph, params, sources))
  return found


def compiled(job):
  if isinstance(job[-1], str):
    return (*job, job[-1])
  try:
    return (*job, [compile_cubin(s.text, H100, name=s.name) for s in job[-1]])
  except RejectionError as error:
    return (*job, f"{error.rejection.code} {error.rejection.reason}")


def timed(name, jobs, gpu, torch):
  """The record of a case."""
  heads, queries, keys, depth = CASES[name]
  record = {"us": {}, "refused": {}, "error": {}, "predicted_us": {}}
  with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    torch.manual_seed(0)
    q, k, v = (torch.randn(heads, n, depth, device="cuda") for n in (queries, keys, keys))
    q, k, v = (q * depth**-0.5).half(), k.half(), v.half()
    want = torch.softmax(q.double() @ k.double().transpose(1, 2), -1) @ v.double()
    y = torch.empty(heads, queries, depth, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    heads_of_one = (q[None], k[None], v[None])
    peers = attention_ways(torch, *heads_of_one, ("FLASH", "CUDNN"), scale=1.0)  # queries are scaled already
    arms = {n: gpu.capture(f) for n, f in peers.items()}
    kept, at, room = [], {"i0": v.data_ptr(), "i1": q.data_ptr(), "i2": k.data_ptr(), "o0": y.data_ptr()}, {}
    for _, label, us, graph, params, sources, cubins in jobs:
      if isinstance(cubins, str):
        record["refused"][label] = cubins
        continue
      extents = ugraph_extents(graph, params, extents_of(name))
      for t in graph.tensors:
        if t.name not in at and room.get(t.name, torch.empty(0)).numel() < t.bytes(extents):
          room[t.name] = torch.empty(t.bytes(extents), device="cuda", dtype=torch.uint8)
      own = at | {n: x.data_ptr() for n, x in room.items()}
      loaded = [(gpu.load(c, s.name, s.smem_bytes), s) for c, s in zip(cubins, sources, strict=True)]

      def launch(loaded=loaded, own=own):
        for function, source in loaded:
          gpu.launch_source(function, source, own)

      for x in room.values():
        x.fill_(0xFF)
      y.view(torch.int16).fill_(-1)
      launch()
      gpu.wait()
      error = ((y.double() - want).abs().max() / want.abs().max()).item()
      record["error"][label], record["predicted_us"][label] = error, round(us, 2)
      differs = unlike(torch, gpu, launch, y, AGAIN)
      if not error < MOST_WRONG or differs:
        record["refused"][label] = f"wrong by {error}, {differs} of {AGAIN} launches differ"
      else:
        kept.append(room.copy())
        arms[label] = gpu.capture(launch)
    record["us"] = arm_times(gpu, arms)
  return record


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("out", type=Path)
  parser.add_argument("cases", nargs="*", default=list(CASES))
  parser.add_argument("--keep", type=int, default=8)
  args = parser.parse_args()
  with ProcessPoolExecutor(max(1, len(sched_getaffinity(0)) - 1)) as pool:
    found = list(pool.map(jobs_of, args.cases, [args.keep] * len(args.cases)))
    made = [pool.map(compiled, own) for own in found]
    import torch

    from mirage_onnx.tune.device import Gpu

    result, gpu = {**facts(), "cases": {}}, Gpu(H100)
    for name, jobs in zip(args.cases, made, strict=True):
      with gpu.scope():
        record = timed(name, list(jobs), gpu, torch)
      result["cases"][name] = record
      us = {n: v[0] for n, v in record["us"].items()}
      print(f"{name}: {[(n, t) for n, t in us.items() if '=' not in n]}", flush=True)
      for how in ("ranks", "parts", "first", "rows"):
        print(*sorted((t, n) for n, t in us.items() if n.startswith(how))[:4], sep="\n  ", flush=True)
      write_text(args.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
