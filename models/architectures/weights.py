"""Reads the exported graphs and makes their weights again, from a seed.

A file ``NAME.onnx`` in the archive ``graphs.tar.xz`` is the exporter's graph in which every weight
is a name, a type and a shape; ``load`` gives them values by the rule below, so one or two kB stand
for a model. No torch is needed.
"""

from __future__ import annotations

import functools
import hashlib
import io
import lzma
import tarfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx

ARCHIVE = Path(__file__).resolve().parent / "graphs.tar.xz"
#: Weights of at least this many bytes are left out of the files.
LEFT_OUT_BYTES = 32
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
    return tuple(sorted(_graphs()))


@functools.cache
def _graphs() -> dict[str, bytes]:
    """Each graph without its weights, by name."""
    found = {}
    with tarfile.open(ARCHIVE) as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.removesuffix(".onnx")] = file.read()
    return found


def store(name: str, graph: bytes) -> None:
    """Put a graph without its weights into the archive; the same graphs give the same bytes."""
    graphs = {**(_graphs() if ARCHIVE.exists() else {}), name: graph}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for member, data in sorted(graphs.items()):
            entry = tarfile.TarInfo(f"{member}.onnx")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    ARCHIVE.write_bytes(lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    _graphs.cache_clear()


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
    return filled(_graphs()[name])


def filled(graph: bytes) -> onnx.ModelProto:
    """The model of a graph without its weights."""
    model = onnx.load_from_string(graph)
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
