"""Norms of many rows: how many rows a block should have, cold L2; each checked in float64.

    python bench/norm_rows.py OUT.json [ROWSxWIDTH ...] [--cpu]

A LayerNorm, and one of a sum, with every number of warps and rows of a block that the code generator takes.
Needs a GPU and torch; ``--cpu``: only what compiles.
"""

import argparse
import json
from functools import partial
from os import sched_getaffinity
from pathlib import Path

import numpy as np
from protocol import facts, write_text

from mirage_onnx.codegen.emit import emit_kernel
from mirage_onnx.compiler.compile import compile_many
from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import KernelParams, parse_ugraph
from mirage_onnx.target import H100

SIZES = (
  "4096x768", "3152x768", "1500x768", "512x768", "128x768", "4096x384", "4096x1024", "8192x512", "2048x2048",
  "512x4096",
)  # fmt: skip
WARPS, ROWS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16)
#: Elements of a lane. With more of them kernels spill, and take long to compile: 2048 (16 rows of 4096 by one
#: warp) take ptxas 85 s, for which this bench once had nothing to show.
MOST_ELEMENTS = 160
NORM = """ugraph 1
tensor i1 f16[a1,a0] input
{more}tensor i0 f16[a0] weight
tensor i3 f16[a0] weight
tensor o0 f16[a1,a0] output
kernel k0 grid=a1 cluster=- loop=-
  %0 = load i3 imap=- cmap=- fmap=- : f16[a0] post vector
  %1 = load i0 imap=- cmap=- fmap=- : f16[a0] post vector
  %2 = load i1 imap=a1 cmap=- fmap=- : f16[a1,a0] post vector
  %3 = load {second} imap=a1 cmap=- fmap=- : f16[a1,a0] post vector
  %4 = const[-1] : f32[] post uniform
  %5 = extent[a0] : f32[] post uniform
  %6 = recip %5 : f32[] post uniform
  %7 = cast %2 : f32[a0,a1] post vector
  %8 = cast %3 : f32[a0,a1] post vector
  %9 = add %7 %8 : f32[a0,a1] post vector
  %10 = sum[a0] %9 : f32[a1] post uniform
  %11 = mul %4 %6 : f32[] post uniform
  %12 = mul %11 %10 : f32[a1] post uniform
  %13 = add %9 %12 : f32[a0,a1] post vector
  %14 = const[2748779/274877906944] : f32[] post uniform
  %15 = square %13 : f32[a0,a1] post vector
  %16 = sum[a0] %15 : f32[a1] post uniform
  %17 = mul %6 %16 : f32[a1] post uniform
  %18 = add %14 %17 : f32[a1] post uniform
  %19 = rsqrt %18 : f32[a1] post uniform
  %20 = cast %1 : f32[a0] post vector
  %21 = mul %19 %20 : f32[a0,a1] post vector
  %22 = mul %21 %13 : f32[a0,a1] post vector
  %23 = cast %0 : f32[a0] post vector
  %24 = add %23 %22 : f32[a0,a1] post vector
  %25 = cast %24 : f16[a0,a1] post vector
  save o0 = %25 omap=a1
"""
#: Of one input twice (read once), and of the sum of two.
TEXTS = {
  "norm": NORM.format(more="", second="i1"),
  "sum": NORM.format(more="tensor i2 f16[a1,a0] input\n", second="i2"),
}


def sources(size, text):
  rows, width = map(int, size.split("x"))
  graph = parse_ugraph(text)
  for warps in WARPS:
    for tile in ROWS:
      if tile * width > 32 * warps * MOST_ELEMENTS:
        continue
      p = KernelParams((tile,), warps=warps)
      try:
        yield p, emit_kernel(graph, graph.kernels[0], p, {"a1": rows, "a0": width}, H100)
      except RejectionError:
        continue


def timed(size, kind, made, gpu, torch):
  """The record of a size: us and the largest error by numbers."""
  rows, width = map(int, size.split("x"))
  record = {"us": {}, "error": {}, "registers": {}}
  with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream_address)):
    torch.manual_seed(0)
    x, z = (torch.randn(rows, width, device="cuda").half() for _ in range(2))
    gain, bias = (torch.randn(width, device="cuda").half() for _ in range(2))
    y, arms = torch.empty_like(x), {}
    own = x.double() + (z if kind == "sum" else x).double()
    want = torch.nn.functional.layer_norm(own, (width,), gain.double(), bias.double(), eps=1e-5)
    at = {"i0": gain, "i1": x, "i2": z, "i3": bias, "o0": y}
    at = {n: t.data_ptr() for n, t in at.items()}
    for p, source, cubin in made:
      if isinstance(cubin, Cubin):
        launch = partial(gpu.launch_source, gpu.load(cubin, source.name, source.smem_bytes), source, at)
        gpu.poison(at["o0"], 2 * y.numel())
        launch()
        gpu.wait()
        record["error"][p.to_text()] = (y.double() - want).abs().max().item()
        record["registers"][p.to_text()] = cubin.registers
        arms[p.to_text()] = gpu.capture(launch)
    arms["torch"] = gpu.capture(lambda: torch.nn.functional.layer_norm(x, (width,), gain, bias))
    times = gpu.time_us(list(arms.values()), 9)
  record["us"] = {n: round(float(np.median(t)), 2) for n, t in zip(arms, times, strict=True)}
  return record


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("out", type=Path)
  parser.add_argument("sizes", nargs="*", default=list(SIZES))
  parser.add_argument("--cpu", action="store_true")
  args = parser.parse_args()
  if not args.cpu:
    import torch

    from mirage_onnx.tune.device import Gpu

    result, gpu = {**facts(), "sizes": {}}, Gpu(H100)
  for size in args.sizes:
    for kind, text in TEXTS.items():
      work = list(sources(size, text))
      images = compile_many([source for _, source in work], H100, len(sched_getaffinity(0)))
      made = [(*w, i) for w, i in zip(work, images, strict=True)]
      compiled = sum(isinstance(i, Cubin) for i in images)
      print(f"{size} {kind}: {len(work)} kernels, {compiled} compile", flush=True)
      if args.cpu:
        continue
      with gpu.scope():
        record = timed(size, kind, made, gpu, torch)
      result["sizes"][f"{size} {kind}"] = record
      best = sorted((t, n) for n, t in record["us"].items())
      print(size, kind, best[:4], [b for b in best if "tile=1 " in b[1] or b[1] == "torch"][:3], flush=True)
      print("  largest error", max(record["error"].values()), flush=True)
      write_text(args.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
  main()
