"""Reads the exported graphs and makes their weights again, from a seed.

A file ``NAME.onnx.xz`` is the exporter's graph in which every large weight is a name, a type and a
shape; ``load`` gives them values by the rule below, so a file of a few kB stands for a model. No
torch is needed.
"""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

FOLDER = Path(__file__).resolve().parent
#: Weights of at least this many bytes are left out of the files.
LEFT_OUT_BYTES = 256
#: The key of ``metadata_props`` that lists them: initializer=parameter, separated by blanks.
MARK = "weights made from a seed"
#: Behind the name of a parameter that is stored transposed.
TRANSPOSED = "^T"
LINEAR_STD, EMBEDDING_STD, VECTOR_STD = 0.08, 0.5, 0.1
_NUMPY = {
    onnx.TensorProto.FLOAT16: np.dtype(np.float16),
    onnx.TensorProto.FLOAT: np.dtype(np.float32),
    onnx.TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}


def names() -> tuple[str, ...]:
    """The models that were exported."""
    return tuple(sorted(p.name.removesuffix(".onnx.xz") for p in FOLDER.glob("*.onnx.xz")))


def values(name: str, shape: tuple[int, ...], data_type: int) -> np.ndarray:
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


def load(name: str) -> onnx.ModelProto:
    """The model with its weights."""
    model = onnx.load_from_string(lzma.decompress((FOLDER / f"{name}.onnx.xz").read_bytes()))
    listed = {p.key: p.value for p in model.metadata_props}.get(MARK, "")
    sources = dict(entry.split("=") for entry in listed.split())
    for tensor in model.graph.initializer:
        if source := sources.get(tensor.name):
            shape, parameter = tuple(tensor.dims), source.removesuffix(TRANSPOSED)
            turned = source != parameter
            array = values(parameter, shape[::-1] if turned else shape, tensor.data_type)
            tensor.raw_data = np.ascontiguousarray(array.T if turned else array).tobytes()
    del model.metadata_props[:]
    return model
