"""Row kernels with many rows, at all their numbers: what starting their blocks takes.

    python3 bench/short_rows.py OUT.json

A norm over ``length`` elements of each of ``rows``: cold alone, and as one of ten in a CUDA graph.
"""

import json
import sys
from pathlib import Path

import numpy as np
from protocol import facts

from mirage_onnx.codegen import Cubin, compile_many, emit_kernel
from mirage_onnx.ir.text import parse_ugraph
from mirage_onnx.superopt.cost import features
from mirage_onnx.superopt.numbers import row_numbers
from mirage_onnx.target import H200
from mirage_onnx.tune.measure import gpu_of

NORM = """ugraph 1
tensor i0 f16[a0,a1] input
tensor o0 f16[a0,a1] output
kernel k0 grid=a0 cluster=- loop=-
  %0 = load i0 imap=a0 cmap=- fmap=- : f16[a0,a1] post vector
  %1 = mul %0 %0 : f32[a0,a1] post vector
  %2 = sum[a1] %1 : f32[a0] post uniform
  %3 = rsqrt %2 : f32[a0] post uniform
  %4 = mul %0 %3 : f32[a0,a1] post vector
  %5 = cast %4 : f16[a0,a1] post vector
  save o0 = %5 omap=a0
"""
SHAPES = [(131072, 128), (8192, 1024), (8192, 256), (8192, 16), (4096, 128), (512, 512), (256, 64)]


def main(out):
  graph, found = parse_ugraph(NORM), []
  (kernel,), tensors = graph.kernels, {t.name: t for t in graph.tensors}
  gpu = gpu_of(H200)
  for rows, length in SHAPES:
    extents = {"a0": rows, "a1": length}
    points = list(row_numbers(features(kernel, tensors, extents), tensors))
    sources = [emit_kernel(graph, kernel, p, extents, H200) for p in points]
    with gpu.scope():
      data = np.random.default_rng(0).standard_normal((rows, length)).astype(np.float16)
      at = {t: gpu.put(data) for t in tensors}
      compiled = zip(points, sources, compile_many(sources, H200, 16), strict=True)
      for params, source, image in compiled:
        if not isinstance(image, Cubin):
          continue
        function = gpu.load(image, source.name, source.smem_bytes)

        def launch(count, function=function, source=source, at=at):
          for _ in range(count):
            gpu.launch_source(function, source, at)

        arms = [gpu.capture(lambda n=n: launch(n)) for n in (1, 11)]
        one, many = np.median(gpu.time_us(arms, 9), axis=1)
        row = [rows, length, params.to_text(), float(one), float(many - one) / 10]
        found.append(row)
        print(*row, flush=True)
  columns = ["rows", "length", "numbers", "cold_us", "chained_us"]
  Path(out).write_text(json.dumps({**facts(), "columns": columns, "kernels": found}))


if __name__ == "__main__":
  main(sys.argv[1])
