"""The rates of a profile (``mirage_onnx/target.py``), measured on this machine's GPU.

    python3 bench/rates.py OUT.json

``stream_tbps`` and ``ramp_us``: a line through the times of pure reads of 16 MB and more from a cold L2
(the best of several launch shapes, ``bench/protocol.py``); ``launch_us``: one more empty kernel in a
CUDA graph, where it is not hidden behind another; ``mma_tflops``: torch's product of 8192^3 in fp16.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from protocol import facts, streaming_limit

from mirage_onnx.codegen.compile import compile_cubin
from mirage_onnx.target import TARGETS
from mirage_onnx.tune.device import Gpu, present_gpu

SIZES_MB = (1, 4, 16, 33.5, 67, 134, 235, 352)
SAMPLES = 15


def empty_us(gpu):
  """Microseconds of one more empty kernel in a graph."""
  kernel = gpu.load(compile_cubin('extern "C" __global__ void nop() {}', gpu.target, name="nop"), "nop")

  def replay(count):
    return gpu.capture(lambda: [gpu.launch(kernel, (132, 1, 1), 128, []) for _ in range(count)])

  few, many = np.median(gpu.time_us([replay(1), replay(41)], SAMPLES), axis=1)
  return float(many - few) / 40


def mma_tflops():
  import torch

  a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
  for _ in range(3):
    a @ b
  torch.cuda.synchronize()
  start = time.perf_counter()
  for _ in range(20):
    a @ b
  torch.cuda.synchronize()
  return 20 * 2 * 8192**3 / (time.perf_counter() - start) / 1e12


def main():
  present = present_gpu()
  target = present.target or next(t for t in TARGETS.values() if t.capability == present.capability)
  gpu, reads = Gpu(target), []
  for mb in SIZES_MB:
    with gpu.scope():
      replay, how = streaming_limit(gpu, int(mb * 1e6))
      reads.append((mb, float(np.median(gpu.time_us([replay], SAMPLES))), how))
  launch_us = empty_us(gpu)
  large = [(mb, us) for mb, us, _ in reads if mb >= 16]
  slope, at_zero = np.polyfit([mb for mb, _ in large], [us for _, us in large], 1)
  found = {
    **facts(), "present": str(present),
    "launch_us": round(launch_us, 3), "ramp_us": round(float(at_zero) - launch_us, 3),
    "stream_tbps": round(1 / slope, 3), "mma_tflops": round(mma_tflops(), 1),
    "reads": [{"mb": mb, "us": round(us, 2), "how": how} for mb, us, how in reads],
  }  # fmt: skip
  Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")
  print({k: found[k] for k in ("present", "launch_us", "ramp_us", "stream_tbps", "mma_tflops")})


if __name__ == "__main__":
  main()
