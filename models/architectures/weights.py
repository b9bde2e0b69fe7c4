"""Reads the exported graphs and makes their weights again, from a seed.

A file ``NAME.onnx`` in the archive ``graphs.tar.xz`` is the exporter's graph in which every weight
is a name, a type and a shape, without what is ``implied`` and with ``short_names``; ``load`` gives
them values by the rule below, so less than one kB stands for a model. No torch is needed.
"""

import hashlib
import math
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parent
sys.path += [str(FOLDER.parent), str(FOLDER)]

import graph_archive  # noqa: E402
import implied  # noqa: E402
import short_names  # noqa: E402

ARCHIVE = FOLDER / "graphs.tar.xz"
#: Weights of at least this many bytes are left out of the files. Their ``doc_string`` is a source:
#: the parameter's name and what the exporter did with it, each fold behind a ``^``.
LEFT_OUT_BYTES = 32
LINEAR_STD, EMBEDDING_STD, VECTOR_STD = 0.08, 0.5, 0.1
_FOLDS = {
  "T": np.transpose,
  "vector": np.asarray,  # one dimension, stored with more
  "float32": lambda a: a.astype(np.float32),  # a half before
  "+1": lambda a: a + 1,
  "-exp": lambda a: -np.exp(a.astype(np.float64)).astype(np.float32),
}
#: How parameters become weights. The first rows of a parameter are drawn first, so that its name
#: alone also stands for those.
SPELLINGS = (
  "", "^T", "^vector", "^float32", "^vector^float32", "^vector^float32^+1", "^float32^-exp",
)  # fmt: skip
_NUMPY = {
  onnx.TensorProto.FLOAT16: np.dtype(np.float16),
  onnx.TensorProto.FLOAT: np.dtype(np.float32),
  onnx.TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def names(folder=""):
  """The architectures that were exported, or the models of another folder, ``models/``."""
  found = (n.removeprefix(folder) for n in _graphs() if n.startswith(folder))
  return tuple(sorted(n for n in found if "/" not in n))


def _graphs():
  """Each graph without its weights, by name."""
  return graph_archive.read(ARCHIVE)


def store(name, graph):
  """Put a graph without its weights into the archive."""
  graph_archive.store(ARCHIVE, {name: graph})


def values(name, shape, data_type):
  """The weight ``name``: the same on every machine.

  A vector is about 1 (a bias about 0), so that no term of a norm vanishes; a matrix keeps
  activations of the order of one.
  """
  seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
  noise = np.random.default_rng(seed).standard_normal(shape)
  if len(shape) == 1:
    drawn = VECTOR_STD * noise + (0.0 if name.endswith("bias") else 1.0)
  else:
    drawn = (EMBEDDING_STD if "embed" in name or "wte" in name else LINEAR_STD) * noise
  return drawn.astype(_NUMPY[data_type])


def load(name):
  """The model with its weights."""
  return filled(_graphs()[name])


def filled(graph):
  """The model of a graph without its weights."""
  model = onnx.load_from_string(graph)
  short_names.put_in(model.graph)
  for tensor in model.graph.initializer:
    if tensor.doc_string:
      array = _made(tensor.doc_string, tuple(tensor.dims), tensor.data_type)
      tensor.raw_data = np.ascontiguousarray(array).tobytes()
      tensor.ClearField("doc_string")
  implied.put_in(model)
  return model


def bare(model, parameters):
  """The graph that ``filled`` makes the model of, whose ``parameters`` have ``values``.

  Raises:
      ValueError: the graph says something that ``implied`` does not.
  """
  parameters = tuple(parameters)
  implied.leave_out(model)
  for tensor in model.graph.initializer:
    if len(tensor.raw_data) >= LEFT_OUT_BYTES and (source := _source(tensor, parameters)):
      tensor.ClearField("raw_data")
      tensor.doc_string = source
  short_names.leave_out(model.graph)
  return model.SerializeToString(deterministic=True)


def _made(source, shape, data_type):
  """The weight of this shape that an exporter folds out of a parameter."""
  name, *folds = source.split("^")
  shape = shape[::-1] if "T" in folds else (math.prod(shape),) if "vector" in folds else shape
  array = values(name, shape, onnx.TensorProto.FLOAT16 if "float32" in folds else data_type)
  for fold in folds:
    array = _FOLDS[fold](array)
  return array


def _source(tensor, parameters):
  """The source that the weight is made of; empty if there is none.

  torch's exp may differ from ours in the last two bits.
  """
  if (dtype := _NUMPY.get(tensor.data_type)) is None:
    return ""
  stored = np.frombuffer(tensor.raw_data, dtype)
  for parameter in parameters:
    for spelling in SPELLINGS:
      array = _made(parameter + spelling, tuple(tensor.dims), tensor.data_type).ravel()
      close = "exp" in spelling and np.allclose(array, stored, rtol=2.0**-22, atol=0)
      if close or array.astype(dtype).tobytes() == tensor.raw_data:
        return parameter + spelling
  return ""
