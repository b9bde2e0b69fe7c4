"""What it costs to open a model: seconds of a session's start, and the GPU memory that it holds after a run.

    python3 bench/whole_opening.py MODEL.onnx [--cpu]

In a process of its own, behind a session of a model of one node (libraries, the CUDA context, cuBLAS are
there then), with default options. The last line is an object: ``session_start_s`` and ``gpu_memory_mib``
(what is free on the GPU before, less what is free after a run; no other process may use it meanwhile).
"""

import json
import subprocess
import sys
import time

#: Seconds of a start that are so many times as many may be luck.
UNLIKE = 1.1


def opening(path, *, cpu):
  """The figures of a model; run this in a fresh process."""
  if not cpu:
    import torch
  import numpy as np
  import onnx
  from onnx import helper
  from whole_model import feeds_of

  import mirage_onnx

  providers = ["CPUExecutionProvider"] if cpu else ["CUDAExecutionProvider", "CPUExecutionProvider"]
  value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, 64])  # noqa: E731
  graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [value("x")], [value("y")])
  small = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
  first = mirage_onnx.InferenceSession(small.SerializeToString(), providers=providers)
  first.run(None, {"x": np.zeros((64, 64), np.float32)})
  free = 0 if cpu else torch.cuda.mem_get_info()[0]
  start = time.perf_counter()
  session = mirage_onnx.InferenceSession(str(path), providers=providers)
  took = time.perf_counter() - start
  feeds = feeds_of(path)
  wide = {i.name for i in session.get_inputs() if i.type == "tensor(float)"}
  session.run(None, {n: x.astype(np.float32) if n in wide else x for n, x in feeds.items()})
  held = 0 if cpu else free - torch.cuda.mem_get_info()[0]
  return {"session_start_s": round(took, 3), "gpu_memory_mib": round(held / 2**20, 1)}


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


if __name__ == "__main__":
  from pathlib import Path

  sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
  print(json.dumps(opening(Path(sys.argv[1]), cpu="--cpu" in sys.argv)))
