"""What it costs to open a model: seconds of a session's start, and the GPU memory that it holds after a run.

    python3 bench/whole_opening.py MODEL.onnx [--cpu]
    python3 bench/whole_opening.py ORIGINAL.onnx OPTIMIZED.onnx --rounds 30 [--cpu]

In a process of its own, behind a session of a model of one node (libraries, the CUDA context, cuBLAS are
there then), with default options. The last line is an object: ``session_start_s`` and ``gpu_memory_mib``
(what is free on the GPU before, less what is free after a run; no other process may use it meanwhile).
The second line: sessions of both in turns in one process, each closed before the next; the ratio of the
medians of their starts, with the interval that holds 95 % of it over draws of rounds.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

#: Seconds of a start that are so many times as many may be luck.
UNLIKE = 1.1


def _ready(cpu):
  """Providers, behind a session of a model of one node."""
  import numpy as np
  import onnx
  from onnx import helper

  import mirage_onnx

  providers = ["CPUExecutionProvider"] if cpu else ["CUDAExecutionProvider", "CPUExecutionProvider"]
  value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 64])  # noqa: E731
  graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [value("x")], [value("y")])
  small = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
  first = mirage_onnx.InferenceSession(small.SerializeToString(), providers=providers)
  first.run(None, {"x": np.zeros((64, 64), np.float32)})
  assert first.get_providers()[0] == providers[0], first.get_providers()
  return first, providers


def _started(path, providers):
  """A session and the seconds of its start."""
  import mirage_onnx

  start = time.perf_counter()
  session = mirage_onnx.InferenceSession(str(path), providers=providers)
  return session, time.perf_counter() - start


def opening(path, *, cpu):
  """The figures of a model; run this in a fresh process."""
  if not cpu:
    import torch
  import numpy as np
  from whole_model import feeds_of

  _first, providers = _ready(cpu)
  free = 0 if cpu else torch.cuda.mem_get_info()[0]
  session, took = _started(path, providers)
  feeds = feeds_of(path)
  wide = {i.name for i in session.get_inputs() if i.type == "tensor(float)"}
  session.run(None, {n: x.astype(np.float32) if n in wide else x for n, x in feeds.items()})
  held = 0 if cpu else free - torch.cuda.mem_get_info()[0]
  return {"session_start_s": round(took, 3), "gpu_memory_mib": round(held / 2**20, 1)}


def starts(paths, *, cpu, rounds):
  """Starts of the sessions of two models in turns, in this process: medians, their ratio."""
  if not cpu:
    import torch  # noqa: F401  (loads the libraries that onnxruntime needs)
  import numpy as np
  from whole_arms import ratio_of

  _first, providers = _ready(cpu)
  found = np.empty((2, rounds))
  for r in range(rounds):
    for k in (0, 1) if r % 2 else (1, 0):
      found[k, r] = _started(paths[k], providers)[1]
  ratio, interval = ratio_of(found[::-1])
  medians = [round(float(m), 4) for m in np.median(found, axis=1)]
  return {
    "session_start_s": dict(zip(("original", "optimized"), medians, strict=True)), "rounds": rounds,
    "ratio": ratio, "ratio_95": interval,
  }  # fmt: skip


def openings(paths, *, cpu, rounds=2, most=6):
  """Of each of ``paths`` the least of a few processes, in turns; a failure is its text.

  Starts that are ``UNLIKE`` after ``rounds`` are asked again, all of them, ``most`` times at most: of 27
  pairs two were 1.21 and 1.28 apart, whose models start no other kernels than their neighbours'.
  """
  found = [[] for _ in paths]
  for n in range(most):
    if n >= rounds and ratio_of(found, "session_start_s") < UNLIKE:
      break
    for k, path in enumerate(paths):
      command = [sys.executable, __file__, str(path), *(["--cpu"] if cpu else [])]
      done = subprocess.run(command, capture_output=True, text=True, timeout=120)
      lines = done.stdout.splitlines()
      if done.returncode or not lines:
        return {"opening_failed": f"{path}: {done.stderr.strip()[-300:]}"}
      found[k].append(json.loads(lines[-1]))
  result = {"openings": len(found[0])}
  for name in ("session_start_s", "gpu_memory_mib"):
    least = [min(row[name] for row in rows) for rows in found]
    result[name] = dict(zip(("original", "optimized"), least, strict=True))
    result[f"{name}_ratio"] = round(least[1] / least[0], 3) if least[0] else None
  return result


def ratio_of(found, name):
  """The least of the second of ``found`` over that of the first."""
  first, second = (min(row[name] for row in rows) for rows in found)
  return second / first if first else 0.0


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("paths", type=Path, nargs="+")
  parser.add_argument("--cpu", action="store_true")
  parser.add_argument("--rounds", type=int, default=30)
  o = parser.parse_args()
  sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
  one = len(o.paths) == 1
  print(json.dumps(opening(o.paths[0], cpu=o.cpu) if one else starts(o.paths, cpu=o.cpu, rounds=o.rounds)))


if __name__ == "__main__":
  main()
