"""Graphs of real size without their weights, and weights of the same kind made again from a seed.

    python models/architectures/real_archive.py NAME FOLDER    FOLDER/model.onnx and FOLDER/weights.bin
    python models/architectures/real_archive.py --list

``real.tar.xz`` holds each graph as its exporter wrote it, but that a weight is an external tensor
whose ``doc_string`` says how to draw it: mean, standard deviation, least and largest value of what
was exported, or the least and largest integer. A block of numbers is drawn by the weight's name and
repeated, so a model of gigabytes takes seconds. Needs onnx and numpy only.
"""

import hashlib
import json
import math
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parent
sys.path.append(str(FOLDER))

import graph_archive  # noqa: E402

ARCHIVE = FOLDER / "real.tar.xz"
LOCATION = "weights.bin"
#: Numbers that are drawn of one weight, and repeated.
BLOCK = 1 << 20
_ALIGNED = 4096
_FLOATS = {
  onnx.TensorProto.FLOAT16: np.dtype(np.float16),
  onnx.TensorProto.FLOAT: np.dtype(np.float32),
  onnx.TensorProto.DOUBLE: np.dtype(np.float64),
  onnx.TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
#: Drawn as they lie, so two numbers of four bits are one here.
_INTEGERS = {
  onnx.TensorProto.INT8: np.dtype(np.int8), onnx.TensorProto.UINT8: np.dtype(np.uint8),
  onnx.TensorProto.INT4: np.dtype(np.uint8), onnx.TensorProto.UINT4: np.dtype(np.uint8),
}  # fmt: skip
#: The metadata entry that says how inputs are drawn: name -> exclusive end of its integers, size of
#: a dynamic dimension.
INPUTS = "inputs"


def graphs():
  """The graphs by name."""
  return graph_archive.read(ARCHIVE)


def names():
  """The models of the archive."""
  return tuple(sorted(graphs()))


def store(new):
  """Put graphs (bytes by name) into the archive."""
  graph_archive.store(ARCHIVE, new)


def drawn_inputs(model):
  """What ``INPUTS`` says of a model: (ends of integer inputs, sizes of dynamic dimensions)."""
  said = {p.key: p.value for p in model.metadata_props}.get(INPUTS)
  found = json.loads(said) if said else {}
  return found.get("limits", {}), found.get("sizes", {})


def make(name, folder):
  """Write a model with its weights; the path of the model."""
  folder.mkdir(parents=True, exist_ok=True)
  model = onnx.load_from_string(graphs()[name])
  offset = 0
  with (folder / LOCATION).open("wb") as file:
    for tensor in model.graph.initializer:
      if tensor.data_location != onnx.TensorProto.EXTERNAL:
        continue
      data = _drawn(tensor)
      offset = -(-offset // _ALIGNED) * _ALIGNED
      file.seek(offset)
      file.write(data)
      place(tensor, offset, len(data))
      tensor.ClearField("doc_string")
      offset += len(data)
    file.truncate(max(offset, 1))
  path = folder / "model.onnx"
  path.write_bytes(model.SerializeToString(deterministic=True))
  return path


def place(tensor, offset, length):
  """Say where the data of an external tensor is."""
  del tensor.external_data[:]
  for key, value in (("location", LOCATION), ("offset", offset), ("length", length)):
    tensor.external_data.add(key=key, value=str(value))


def _drawn(tensor):
  rng = np.random.default_rng(int.from_bytes(hashlib.sha256(tensor.name.encode()).digest()[:7], "little"))
  count = math.prod(tensor.dims)
  rule = [float(x) for x in tensor.doc_string.split()]
  if tensor.data_type in _INTEGERS:
    half = tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    count = -(-count // 2) if half else count
    low, high = rule
    block = rng.integers(int(low), int(high) + 1, min(count, BLOCK))
    return np.resize(block.astype(_INTEGERS[tensor.data_type]), count).tobytes()
  mean, deviation, low, high = rule
  block = rng.standard_normal(min(count, BLOCK), dtype=np.float32) * deviation + mean
  return np.resize(np.clip(block, low, high).astype(_FLOATS[tensor.data_type]), count).tobytes()


if __name__ == "__main__":
  if sys.argv[1:] == ["--list"]:
    print(*names(), sep="\n")
  elif len(sys.argv) == 3:
    print(make(sys.argv[1], Path(sys.argv[2])))
  else:
    sys.exit(__doc__)
