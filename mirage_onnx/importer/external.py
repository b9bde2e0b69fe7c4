"""Weights on disk: whether the files are there, and the values of small tensors."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.graph import subgraphs

#: Tensors in files are read where they are from this size on.
MAPPED_BYTES = 1 << 16
#: What numpy holds.
MAX_RANK = 64
#: A value of more elements fits into no memory.
MAX_ELEMENTS = 1 << 48
#: An offset or a length, as every reader understands it.
_NUMBER = re.compile(r"[0-9]{1,18}\Z")
#: Bits of the types that pack several elements into a byte; onnx gains more with time.
_PACKED_BITS: dict[int, int] = {
  TensorProto.DataType.Value(name): bits
  for name, bits in {
    "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6,
  }.items()
  if name in TensorProto.DataType.keys()  # noqa: SIM118 (no mapping)
}  # fmt: skip
#: Those that are so in the field of integers, too; of others each entry is an element.
_PACKED_IN_INTS = {kind for kind, bits in _PACKED_BITS.items() if bits < 6}
#: Typed fields, and how many entries one element takes.
_TYPED_FIELDS: dict[int, tuple[str, int]] = {
  TensorProto.FLOAT: ("float_data", 1), TensorProto.DOUBLE: ("double_data", 1),
  TensorProto.INT64: ("int64_data", 1), TensorProto.UINT64: ("uint64_data", 1),
  TensorProto.UINT32: ("uint64_data", 1), TensorProto.STRING: ("string_data", 1),
  TensorProto.COMPLEX64: ("float_data", 2), TensorProto.COMPLEX128: ("double_data", 2),
}  # fmt: skip


def check_file(path: Path) -> None:
  """A model's path leads to a file.

  Raises:
      MirageError: FILE_MISSING, FILE_UNREADABLE.
  """
  if not os.path.exists(path):  # of any text
    raise MirageError("FILE_MISSING", f"{str(path)!r} does not exist")
  if not os.path.isfile(path):
    what = "is a folder, not a file" if os.path.isdir(path) else "is not a file"
    raise MirageError("FILE_UNREADABLE", f"{str(path)!r} {what}")
  if not is_text(path):
    raise MirageError("FILE_UNREADABLE", f"{str(path)!r} is not UTF-8, which onnx wants: rename it")


def is_text(path: Path) -> bool:
  """Whether a path can be said in UTF-8, as onnx and onnxruntime want it."""
  return not any("\ud800" <= c <= "\udfff" for c in str(path))


def stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
  """Every tensor of a graph: initializers, attribute tensors, and those of its subgraphs."""
  yield from graph.initializer
  for sparse in graph.sparse_initializer:
    yield from (sparse.values, sparse.indices)
  for node in graph.node:
    for a in node.attribute:
      if a.HasField("t"):
        yield a.t
      yield from a.tensors
    for inner in subgraphs(node):
      yield from stored_tensors(inner)


def size_bytes(tensor: TensorProto) -> int | None:
  """Bytes that the elements take in raw form; None for strings and unknown types."""
  count = math.prod(tensor.dims)
  if bits := _PACKED_BITS.get(tensor.data_type):
    return (count * bits + 7) // 8
  if tensor.data_type == TensorProto.STRING:
    return None
  try:
    return count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
  except KeyError:
    return None


def weight_bytes(model: ModelProto) -> int:
  """Of all weights of the main graph, wherever they are; strings and unknown types count as nothing."""
  return sum(size_bytes(t) or 0 for t in model.graph.initializer)


def check_stored(tensor: TensorProto, base_dir: Path | None) -> None:
  """The data of a tensor is there and has the size of its shape.

  Raises:
      MirageError: EXTERNAL_DATA_MISSING or MODEL_INVALID.
  """
  if any(d < 0 for d in tensor.dims):
    raise MirageError("MODEL_INVALID", f"the tensor {tensor.name!r} has a negative dimension")
  if len(tensor.dims) > MAX_RANK:
    raise MirageError(
      "MODEL_INVALID",
      f"the tensor {tensor.name!r} has {len(tensor.dims)} dimensions, more than {MAX_RANK}",
    )
  if tensor.HasField("segment"):
    raise MirageError(
      "MODEL_INVALID", f"the tensor {tensor.name!r} is a segment of one: no reader joins these"
    )
  if math.prod(max(d, 1) for d in tensor.dims) > MAX_ELEMENTS:
    shape = "x".join(map(str, tensor.dims))
    raise MirageError("MODEL_INVALID", f"the tensor {tensor.name!r} of shape {shape} fits into no memory")
  if tensor.data_location == TensorProto.EXTERNAL:
    _check_external(tensor, base_dir)
    return
  need = size_bytes(tensor)
  if tensor.HasField("raw_data"):
    if need is not None and len(tensor.raw_data) != need:
      raise MirageError(
        "MODEL_INVALID",
        f"the tensor {tensor.name!r} of shape {list(tensor.dims)} holds "
        f"{len(tensor.raw_data)} bytes instead of {need}",
      )
    return
  field, per_element = _TYPED_FIELDS.get(tensor.data_type, ("int32_data", 1))
  found, count = len(getattr(tensor, field)), math.prod(tensor.dims) * per_element
  if tensor.data_type in _PACKED_IN_INTS:  # a byte in each entry
    count = size_bytes(tensor) or 0
  if found != count:
    raise MirageError(
      "MODEL_INVALID",
      f"the tensor {tensor.name!r} of shape {list(tensor.dims)} holds "
      f"{found // per_element} elements instead of {count // per_element}",
    )


def _check_external(tensor: TensorProto, base_dir: Path | None) -> None:
  info = {e.key: e.value for e in tensor.external_data}
  location = info.get("location", "")
  who = f"the tensor {tensor.name!r}"
  if len(info) < len(tensor.external_data):
    raise MirageError("MODEL_INVALID", f"{who} says one thing of its external data twice")
  if not location:
    raise MirageError("EXTERNAL_DATA_MISSING", f"{who} is external but names no file")
  # Lexically: weight folders of model hubs are links to a store elsewhere.
  parts = PureWindowsPath(location).parts
  normal = os.path.normpath(location)
  if PureWindowsPath(location).anchor or ".." in (normal.split(os.sep)[0], *parts[:1]):
    raise MirageError("EXTERNAL_DATA_MISSING", f"{who} refers to {location!r}, outside the model's folder")
  if base_dir is None:
    raise MirageError(
      "EXTERNAL_DATA_MISSING",
      f"{who} is in the file {location!r}, and a model in memory has no folder",
    )
  size = _file_bytes(base_dir / normal)
  if size is None:
    raise MirageError("EXTERNAL_DATA_MISSING", f"{who} is in the file {location!r}")
  given = [info.get(key, "0") for key in ("offset", "length")]
  # int() takes more spellings than other readers of the file; protobuf gives what is no text as bytes.
  if not all(isinstance(x, str) and _NUMBER.match(x) for x in given):
    raise MirageError("MODEL_INVALID", f"{who} has an external offset or length that is not a number")
  offset, length = int(given[0]), int(given[1]) if "length" in info else None
  need = size_bytes(tensor)
  if length is not None and need is not None and length < need:
    raise MirageError("MODEL_INVALID", f"{who} needs {need} bytes, its external entry has {length}")
  end = offset + (need or length or 0)
  if size < end:
    raise MirageError(
      "EXTERNAL_DATA_MISSING",
      f"{who} ends at byte {end} of {location!r}, which has {size} bytes",
    )


def _file_bytes(path: Path) -> int | None:
  """The size of a file; None where there is none, or where no file can have that name."""
  try:
    return path.stat().st_size if path.is_file() else None
  except OSError:
    return None


def read_tensor(tensor: TensorProto, base_dir: Path | None) -> np.ndarray:
  """The values of a tensor that ``check_stored`` has passed."""
  if tensor.data_location != TensorProto.EXTERNAL:
    return numpy_helper.to_array(tensor)
  info = ExternalDataInfo(tensor)
  size = size_bytes(tensor) or 0
  if size >= MAPPED_BYTES and tensor.data_type not in _PACKED_BITS:
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    assert base_dir is not None
    path = base_dir / os.path.normpath(info.location)
    # Pages come when they are read and are the kernel's to take back; a plain array, as of any other.
    return np.asarray(np.memmap(path, dtype, "r", info.offset or 0, tuple(tensor.dims)))
  inline = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
  assert base_dir is not None
  with (base_dir / info.location).open("rb") as file:
    file.seek(info.offset or 0)
    inline.raw_data = file.read(size)
  return numpy_helper.to_array(inline)
