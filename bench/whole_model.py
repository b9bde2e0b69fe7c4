"""Models of real size without their weights: graphs from a zip, weights drawn by parameter name.

A zip holds NAME.onnx (static shapes, weights as external data in ``weights.bin``) and NAME.json (which
parameter lies where). A block of 4 M numbers is drawn per parameter and repeated, so a model of 4 GB
takes seconds, and every process that makes it gets the same. Norms are about one, the rest is N(0, 0.02).
"""

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx

TYPES = {"FLOAT16": np.float16, "FLOAT": np.float32}
BLOCK = 1 << 22


def names_in(graphs):
  with zipfile.ZipFile(graphs) as z:
    return tuple(n.removesuffix(".onnx") for n in z.namelist() if n.endswith(".onnx"))


def rng_of(name):
  return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"))


def draw(name, shape, dtype):
  size = int(np.prod(shape))
  x = rng_of(name).standard_normal(min(size, BLOCK), np.float32)
  is_norm = len(shape) == 1 and "bias" not in name
  return np.resize((x * 0.1 + 1.0 if is_norm else x * 0.02).astype(dtype), size)


def make(graphs, name, folder):
  """DIR/model.onnx with its weights; what is there already stays."""
  path = Path(folder) / "model.onnx"
  if path.is_file():
    return path
  path.parent.mkdir(parents=True, exist_ok=True)
  with zipfile.ZipFile(graphs) as z:
    graph, info = z.read(f"{name}.onnx"), json.loads(z.read(f"{name}.json"))
  with open(path.with_name("weights.bin"), "wb") as file:
    for w in info["weights"]:
      data = draw(w["parameter"], w["shape"], TYPES[w["dtype"]])
      assert data.nbytes == w["bytes"], w
      file.seek(w["offset"])
      file.write(memoryview(data).cast("B"))
    file.truncate(max(info["bytes"], 1))
  path.write_bytes(graph)
  return path


def feeds_of(path):
  """Inputs of a model of static shapes: ids below 100 that their tables have, masks of ones, the rest normal.

  Of rows that are not there every kernel may make something else: ``error`` was 0.8 where a kernel read the
  two rows of BERT's token types itself.
  """
  found = {}
  graph = onnx.load(path, load_external_data=False).graph
  tables = {t.name: t.dims[0] for t in graph.initializer if t.dims}
  rows = {
    n.input[1]: tables[n.input[0]] for n in graph.node if n.op_type == "Gather" and n.input[0] in tables
  }
  for i in graph.input:
    t = i.type.tensor_type
    shape, rng = [d.dim_value for d in t.shape.dim], rng_of(i.name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
    if dtype.kind in "iub":
      one = dtype.kind == "b" or "mask" in i.name
      most = rows.get(i.name, 100)
      least = 3 if most > 3 else 0
      ids = rng.integers(least, min(most, 100), shape)
      found[i.name] = np.ones(shape, dtype) if one else ids.astype(dtype)
    else:
      found[i.name] = rng.standard_normal(shape, np.float32).astype(dtype)
  return found
