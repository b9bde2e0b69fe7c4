"""External data: where tensors outside the model file lie, and how they move to another file."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_stored
from mirage_onnx.rewrite.turned import is_turned, location_of, turned_of

#: Alignment in a data file: a page, so that a tensor can be memory-mapped.
ALIGN_BYTES = 4096
_CHUNK_BYTES = 1 << 26
#: How ``copy_file_range`` says that two files cannot be copied in the kernel.
_NOT_IN_KERNEL = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
  """Every tensor of a model: initializers and attributes, in subgraphs and functions too."""
  yield from _graph_tensors(model.graph)
  for function in model.functions:
    yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
  yield from graph.initializer
  for sparse in graph.sparse_initializer:
    yield from (sparse.values, sparse.indices)
  yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
  for node in nodes:
    for attribute in node.attribute:
      if attribute.HasField("t"):
        yield attribute.t
      yield from attribute.tensors
      if attribute.HasField("g"):
        yield from _graph_tensors(attribute.g)
      for graph in attribute.graphs:
        yield from _graph_tensors(graph)


def inline_bytes(tensor: onnx.TensorProto) -> int:
  """How much of the model file a tensor takes."""
  return len(tensor.raw_data) or tensor.ByteSize()


def data_files(model: onnx.ModelProto, folder: Path) -> set[Path]:
  """The files that a model in ``folder`` keeps its weights in."""
  locations = {location_of(t) for t in all_tensors(model) if uses_external_data(t)}
  return {Path(os.path.realpath(folder / location)) for location in locations}


def copy_external(model: onnx.ModelProto, location: str, stream: BinaryIO, folder: Path) -> None:
  """Append all external data of a model from ``folder`` to ``stream`` and refer to that.

  Raises:
      MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
  """
  written: dict[tuple[Path, int, int], int] = {}
  for tensor in all_tensors(model):
    if uses_external_data(tensor) and not is_turned(tensor):
      place = source, start, length = _place(tensor, folder)
      if place not in written:
        written[place] = _align(stream)
        _stream(source, start, length, stream)
      _refer(tensor, location, written[place], length)


def load_external(model: onnx.ModelProto, folder: Path) -> None:
  """Take all external data of a model into it.

  Raises:
      MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
  """
  for tensor in all_tensors(model):
    if uses_external_data(tensor):
      source, start, length = _place(tensor, folder)
      with source.open("rb") as file:
        file.seek(start)
        tensor.raw_data = file.read(length)
      del tensor.external_data[:]
      tensor.ClearField("data_location")


def move_inline(tensors: Iterable[onnx.TensorProto], location: str, stream: BinaryIO) -> None:
  """Append the data of tensors to ``stream`` and refer to that; text stays."""
  for tensor in tensors:
    if tensor.data_type == onnx.TensorProto.STRING:
      continue
    if not tensor.HasField("raw_data"):
      tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    offset = _align(stream)
    length = stream.write(tensor.raw_data)
    tensor.ClearField("raw_data")
    _refer(tensor, location, offset, length)


def write_turned(tensors: Iterable[onnx.TensorProto], location: str, stream: BinaryIO, folder: Path) -> None:
  """Append the copies that tensors say (``turned.py``) to ``stream``, in blocks, and refer to them.

  Raises:
      MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
  """
  for tensor in tensors:
    if (made := turned_of(tensor)) is not None:
      offset = _align(stream)
      length = sum(stream.write(block.reshape(-1).view(np.uint8).data) for block in made.blocks(folder))
      _refer(tensor, location, offset, length)


def rename_location(model: onnx.ModelProto, old: str, new: str) -> None:
  """Let all tensors that refer to the file ``old`` refer to ``new``."""
  for tensor in all_tensors(model):
    if uses_external_data(tensor):
      for entry in tensor.external_data:
        if (entry.key, entry.value) == ("location", old):
          entry.value = new


def _refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
  del tensor.external_data[:]
  tensor.data_location = onnx.TensorProto.EXTERNAL
  for key, value in (("location", location), ("offset", offset), ("length", length)):
    tensor.external_data.add(key=key, value=str(value))


def _place(tensor: onnx.TensorProto, folder: Path) -> tuple[Path, int, int]:
  """File, offset and length of external data."""
  check_stored(tensor, folder)
  info = ExternalDataInfo(tensor)
  path = folder / os.path.normpath(info.location)
  start = info.offset or 0
  length = path.stat().st_size - start if info.length is None else info.length
  return path, start, length


def _stream(source: Path, start: int, length: int, stream: BinaryIO) -> None:
  """Append bytes of a file in the kernel: shared where the file system can, holes stay holes."""
  stream.flush()
  out, at = stream.fileno(), stream.tell()
  with source.open("rb", buffering=0) as file:
    if os.fstat(file.fileno()).st_size < start + length:
      raise MirageError("EXTERNAL_DATA_MISSING", f"{source} was cut off while read")
    for begin, end in written_parts(file.fileno(), start, start + length):
      while begin < end:
        done = _copy(file.fileno(), begin, out, at + begin - start, end - begin)
        if not done:
          raise MirageError("EXTERNAL_DATA_MISSING", f"{source} was cut off while read")
        begin += done
  os.ftruncate(out, at + length)
  stream.seek(at + length)


def written_parts(file: int, start: int, end: int) -> Iterator[tuple[int, int]]:
  """The parts of ``start .. end`` of an open file that are no holes, in order."""
  while start < end:
    try:
      begin = os.lseek(file, start, os.SEEK_DATA)
      hole = os.lseek(file, begin, os.SEEK_HOLE)
    except OSError as error:
      if error.errno == errno.EINVAL:  # a file system that knows no holes
        yield start, end
      elif error.errno != errno.ENXIO:  # else: no data up to the end of the file
        raise
      return
    if begin < end:
      yield begin, min(hole, end)
    start = hole


def _copy(source: int, begin: int, target: int, at: int, count: int) -> int:
  """Copy up to ``count`` bytes between two open files; returns how many, 0 at the end."""
  count = min(count, _CHUNK_BYTES)
  try:
    return os.copy_file_range(source, target, count, begin, at)
  except OSError as error:
    if error.errno not in _NOT_IN_KERNEL:
      raise
  return os.pwrite(target, os.pread(source, count, begin), at)


def _align(stream: BinaryIO) -> int:
  offset = stream.tell()
  padding = -offset % ALIGN_BYTES
  stream.write(bytes(padding))
  return offset + padding
