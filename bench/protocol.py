"""How this project measures: facts about the machine, the streaming limit, statistics.

Times come from ``Gpu.time_us``: T(flush + arm) - T(flush), where the flush is two clean reads of
256 MB, all arms on one stream of one process in interleaved order, on random data. Every arm is a
CUDA graph replay. A sample is the mean over 8 calls; medians and quartiles are over samples.
"""

import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from mirage_onnx.tune.rates import READ, streaming_limit  # noqa: F401  (for the scripts beside this one)

PROTOCOL = (
  "T(flush + arm) - T(flush), flush = two clean reads of 256 MB; CUDA graph replays, interleaved "
  "on one stream of one process; random data; a sample is the mean of 8 calls"
)
_PACKAGES = (
  "torch", "triton", "onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "cuda-bindings",
  "cuda-core", "nvidia-cuda-nvrtc", "nvidia-cublas", "nvidia-cudnn-cu13",
)  # fmt: skip
_SMI = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"


def output_of(*command):
  try:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError) as error:
    return f"unknown ({type(error).__name__})"


def gpu_state():
  """Name, driver and clocks at this moment."""
  return output_of("nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader")


def facts():
  """Everything a reader needs to know about a run."""
  from cuda.bindings import driver, nvrtc

  import mirage_onnx

  versions = {}
  for name in _PACKAGES:
    try:
      versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
      continue
  return {
    "date": datetime.now(UTC).isoformat(timespec="seconds"),
    "command": " ".join(["python3", *(Path(a).name if a[:1] == "/" else a for a in sys.argv)]),
    "mirage_onnx": mirage_onnx.__version__,
    "commit": os.environ.get("MIRAGE_COMMIT") or output_of("git", "rev-parse", "HEAD"),
    "gpu": gpu_state(),
    "gpu_columns": _SMI,
    "driver_cuda": int(driver.cuDriverGetVersion()[1]),
    "nvrtc": ".".join(map(str, nvrtc.nvrtcVersion()[1:])),
    "versions": versions,
    "protocol": PROTOCOL,
  }


def statistics(times):
  low, median, high = np.percentile(times, [25, 50, 75])
  return {"us": round(float(median), 3), "q1": round(float(low), 3), "q3": round(float(high), 3)}


def relative_error(got, want):
  """||got - want|| / ||want||, infinite where ``got`` is not finite."""
  error = float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))
  return error if np.isfinite(error) else float("inf")


def graph_nodes(gpu, work):
  """What ``work`` puts on the stream, as nodes of a CUDA graph: type -> number."""
  from cuda.bindings import driver as d

  mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
  d.cuStreamBeginCapture(gpu.stream, mode)
  work()
  _, graph = d.cuStreamEndCapture(gpu.stream)
  _, _, count = d.cuGraphGetNodes(graph)
  _, nodes, _ = d.cuGraphGetNodes(graph, count)
  kinds = Counter(d.cuGraphNodeGetType(n)[1].name for n in nodes)
  d.cuGraphDestroy(graph)
  return {k.removeprefix("CU_GRAPH_NODE_TYPE_").lower(): n for k, n in sorted(kinds.items())}


def print_table(title, head, rows):
  widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
  print(f"\n{title}")
  for row in (head, *rows):
    cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
    print("  ".join(cells))
  sys.stdout.flush()


def write_text(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, encoding="utf-8")
