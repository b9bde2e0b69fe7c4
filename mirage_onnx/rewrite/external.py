"""External data: where tensors outside the model file lie, and how their bytes come to another file."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_stored
from mirage_onnx.rewrite.turned import location_of

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


def load_external(model: onnx.ModelProto, folder: Path) -> None:
  """Take all external data of a model into it.

  Raises:
      MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
  """
  for tensor in all_tensors(model):
    if uses_external_data(tensor):
      source, start, length = place_of(tensor, folder)
      with source.open("rb") as file:
        file.seek(start)
        tensor.raw_data = file.read(length)
      del tensor.external_data[:]
      tensor.ClearField("data_location")


def place_of(tensor: onnx.TensorProto, folder: Path) -> tuple[Path, int, int]:
  """File, offset and length of external data."""
  check_stored(tensor, folder)
  info = ExternalDataInfo(tensor)
  path = folder / os.path.normpath(info.location)
  start = info.offset or 0
  length = path.stat().st_size - start if info.length is None else info.length
  return path, start, length


def unheard(begin: int, end: int) -> None:
  """For who does not ask what has been written."""


def append_range(
  source: Path, start: int, length: int, stream: BinaryIO, told: Callable[[int, int], None] = unheard
) -> None:
  """Append bytes of a file in the kernel: shared where the file system can, holes stay holes.

  ``told``: of each stretch of the stream's file that has been written.
  """
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
        told(at + begin - done - start, at + begin - start)
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
