"""Graphs whose declared types and sizes are not those of the plan, through onnxruntime, by seed.

    LD_PRELOAD=libasan.so python tests/support/graph_types.py FIRST COUNT LIBRARY DRIVER

The custom-op library and the stand-in driver are built under the sanitizers, so a write beyond a
tensor ends the process. Prints the number of runs that were right, refused while the session was
made, and refused in the run; anything else is a fault, whose seed is told.
"""

import os
import random
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import numpy as np
import onnx
import onnxruntime

from mirage_onnx.custom_op import InferenceSession, InputSpec, OutputSpec, const, dim, write_bundle
from mirage_onnx.custom_op.bundle import Bundle
from tests.custom_op.conftest import Models, add_plan

TYPES = (0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 14, 16, 17, 21, 22, 23)
SIZES = (0, 1, 4, 5, 100, 101, 1 << 20)


def changed(rng, value):
  """One declared type of the graph is another."""
  edit = rng.randrange(6)
  tensor = value.type.tensor_type
  if edit < 2:
    tensor.elem_type = rng.choice(TYPES)
  elif edit == 2:
    tensor.ClearField("shape")
  elif edit == 3:
    tensor.ClearField("shape")
    for _ in range(rng.randrange(4)):
      tensor.shape.dim.add(dim_value=rng.choice(SIZES))
  elif edit == 4:
    elem = tensor.elem_type
    value.type.Clear()
    value.type.sequence_type.elem_type.tensor_type.elem_type = elem
  else:
    tensor.shape.dim.add(dim_param="m")


def case(seed):
  """(model, length of the vectors)"""
  rng = random.Random(seed)
  n, models = rng.choice((0, 1, 4, 5, 100)), Models(str(seed % 7))
  fields = {}
  if rng.random() < 0.6:
    fields["workspace"] = rng.choice((const(64), dim(0, 0) * 8, dim(1, 0) + 3, const(0)))
  if rng.random() < 0.3:
    fields["inputs"] = tuple(InputSpec("f32", (rng.choice((None, n, 4)),)) for _ in range(2))
  if rng.random() < 0.2:
    fields["outputs"] = (OutputSpec("f32", (rng.choice((dim(1, 0), dim(0, 0).max(1), const(n))),)),)
  plan = add_plan(**fields)
  data = write_bundle(Bundle((models.standin_cubin((plan,), standin_add=[8, 8, 8, 4]),), (plan.to_text(),)))
  made = models.add(data, workspace="workspace" in fields, nodes=rng.randrange(1, 3))
  model = onnx.load_from_string(made)
  graph = model.graph
  values = [*graph.value_info, *graph.output, *graph.input]
  for _ in range(rng.choice((0, 1, 1, 2))):
    changed(rng, rng.choice(values))
  return model.SerializeToString(), n


def run(seed, driver):
  """ "right", "creation" or "run" (where it was refused); anything else is a fault."""
  data, n = case(seed)
  options = onnxruntime.SessionOptions()
  options.log_severity_level = 4
  try:
    session = InferenceSession(data, options, ["CPUExecutionProvider"], ep="host", driver=driver)
  except Exception as error:
    return "creation" if str(error) else "an error without a text"
  feeds = {name: np.arange(n, dtype=np.float32) + k for k, name in enumerate("ab")}
  try:
    got = session.run(None, feeds)[0]
  except Exception as error:
    return "run" if str(error) else "an error without a text"
  times = sum(name.startswith("node") for name in (c.name for c in onnx.load_from_string(data).graph.node))
  want = feeds["a"] + times * feeds["b"]
  same = got.dtype == np.float32 and got.shape == want.shape and np.allclose(got, want)
  return "right" if same else f"a wrong result: {got!r:.80}"


def main():
  first, count, library, driver = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
  os.environ["MIRAGE_ONNX_OPS_LIBRARY"] = library
  found = {"right": 0, "creation": 0, "run": 0}
  for seed in range(first, first + count):
    print(seed, file=sys.stderr)
    end = run(seed, driver)
    if end not in found:
      print(f"seed {seed}: {end}")
      return 1
    found[end] += 1
  print(*found.values())
  return 0


if __name__ == "__main__":
  sys.exit(main())
