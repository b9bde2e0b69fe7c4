"""The exported models as graphs without weights, and the weights again from their seeds.

    python models/packed.py [NAME ...]

writes ``NAME.onnx`` beside every ``NAME.onnx.xz`` (``make build``, the tests and ``bench/h200.sh``
do so by themselves). A packed file is the exporter's file without the weights that
``export.randomize`` drew, and without what is ``implied``; for each weight it says where in the
stream of normal numbers it begins. What is written is the exporter's file byte for byte: its digest
is in the packed one. No torch is needed.
"""

import hashlib
import lzma
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import implied
import numpy as np
import onnx
from torch_normal import Normal

FOLDER = Path(__file__).resolve().parent
SUFFIX = ".onnx.xz"
#: The key of ``metadata_props`` with "SHA256 SEED INITIALIZER=FIRST:MEAN:STD[^T][!INDEX:BITS] ...".
MARK = "weights drawn by torch"
#: Behind a weight that exporters fold into its transpose.
TRANSPOSED = "^T"
#: The share of a weight's elements that may be listed one by one. torch's vector code differs from
#: numpy in the last bit of a float32 now and then, which rounds one weight in 30000 otherwise.
MAX_OTHER = 2e-3


@dataclass(frozen=True, slots=True)
class Draw:
    """One parameter as it was drawn: float16(mean + std * normal numbers) of ``shape``."""

    shape: tuple[int, ...]
    mean: float
    std: float

    @property
    def count(self):
        """How many numbers it takes."""
        return math.prod(self.shape)

    def values(self, normal):
        """The parameter, float16[shape], from its ``count`` numbers."""
        drawn = np.float32(self.mean) + np.float32(self.std) * normal
        return drawn.astype(np.float16).reshape(self.shape)


def names():
    """The models that are packed."""
    return tuple(sorted(p.name.removesuffix(SUFFIX) for p in FOLDER.glob(f"*{SUFFIX}")))


def pack(data, seed, draws):
    """The packed form of the ONNX file ``data``, whose parameters were drawn in this order.

    Raises:
        ValueError: types or names of nodes are not the ``implied`` ones.
    """
    model = onnx.load_from_string(data)
    implied.leave_out(model)
    normal, first, made = Normal(seed), 0, list[tuple[str, np.ndarray]]()
    for draw in draws:
        array = draw.values(normal.draw(draw.count))
        source = f"{first}:{draw.mean}:{draw.std}"
        made.append((source, array))
        if array.ndim == 2:
            made.append((source + TRANSPOSED, array.T))
        first += draw.count
    dropped = []
    for tensor in model.graph.initializer:
        if source := _source(tensor, made):
            tensor.ClearField("raw_data")
            dropped.append(f"{tensor.name}={source}")
    words = (hashlib.sha256(data).hexdigest(), str(seed), *dropped)
    model.metadata_props.add(key=MARK, value=" ".join(words))
    graph = model.SerializeToString(deterministic=True)
    return lzma.compress(graph, preset=9 | lzma.PRESET_EXTREME)


def _source(tensor, made):
    """Where the weight comes from, with its few other elements; empty if from none of ``made``.

    It may be the first rows of a parameter.
    """
    if tensor.data_type != onnx.TensorProto.FLOAT16 or not tensor.dims:
        return ""
    bits = np.frombuffer(tensor.raw_data, np.uint16)
    for source, array in made:
        if array.shape[-1] == tensor.dims[-1] and array.size >= bits.size:
            other = np.flatnonzero(bits != array.ravel()[: bits.size].view(np.uint16))
            if len(other) <= MAX_OTHER * bits.size:
                return source + "".join(f"!{i}:{bits[i]}" for i in other)
    return ""


def unpack(packed):
    """The ONNX file that was packed.

    Raises:
        ValueError: the weights that were made again are not those of the exporter's file.
    """
    model = onnx.load_from_string(lzma.decompress(packed))
    (listed,) = (p.value for p in model.metadata_props if p.key == MARK)
    digest, seed, *entries = listed.split()
    sources = dict(entry.split("=") for entry in entries)
    tensors = [t for t in model.graph.initializer if t.name in sources]
    count = max(_first(sources[t.name]) + math.prod(t.dims) for t in tensors)
    stream = Normal(int(seed)).draw(count)
    for tensor in tensors:
        tensor.raw_data = _weight(tuple(tensor.dims), sources[tensor.name], stream).tobytes()
    del model.metadata_props[:]
    implied.put_in(model)
    data = model.SerializeToString(deterministic=True)
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError("the weights that were made again differ from the exported ones")
    return data


def _first(source):
    return int(source.split(":")[0])


def _weight(shape, source, stream):
    """The weight as the file holds it, float16[shape], from the stream of normal numbers."""
    where, *others = source.split("!")
    first, mean, std = where.removesuffix(TRANSPOSED).split(":")
    turned = where.endswith(TRANSPOSED)
    draw = Draw(shape[::-1] if turned else shape, float(mean), float(std))
    array = draw.values(stream[int(first) : int(first) + draw.count])
    array = np.ascontiguousarray(array.T if turned else array)
    for other in others:
        index, bits = map(int, other.split(":"))
        array.view(np.uint16).reshape(-1)[index] = bits
    return array


def write(chosen=()):
    """Unpack the models named (default: all) that have no file yet, or one older than the packed.

    Several processes may do so at once. Returns what was written.
    """
    written = []
    for name in tuple(chosen) or names():
        source, target = FOLDER / f"{name}{SUFFIX}", FOLDER / f"{name}.onnx"
        if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
            continue
        data = unpack(source.read_bytes())
        with tempfile.NamedTemporaryFile(dir=FOLDER, suffix=".part", delete=False) as file:
            file.write(data)
        Path(file.name).chmod(0o644)
        os.replace(file.name, target)
        written.append(target)
    return tuple(written)


if __name__ == "__main__":
    for path in write(sys.argv[1:]):
        print(f"wrote {path.relative_to(FOLDER.parent)}")
