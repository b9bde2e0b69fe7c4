"""A model file to its message, of a large one weight by weight: read whole, all weights are in memory twice.

What lies between the weights is one small message, to which each weight is added in its order. A file that
cannot be taken apart in this way is parsed whole, and that says what is wrong with it.
"""

import os
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto

#: Files of this size are parsed in parts.
IN_PARTS_BYTES = 64 << 20
#: What is so large and no weight is made part of the message by itself.
LARGE_BYTES = 1 << 20
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_GRAPH = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number


class _OtherError(Exception):
  """Not what is read here."""


def parse_model(path: Path) -> ModelProto:
  """The model in a file.

  Raises:
      OSError: it cannot be read.
      DecodeError: it is no such message.
  """
  if path.stat().st_size >= IN_PARTS_BYTES:
    try:
      with path.open("rb") as file:
        return _in_parts(file)
    except (_OtherError, DecodeError):
      pass
  return ModelProto.FromString(path.read_bytes())


def _in_parts(file: BinaryIO) -> ModelProto:
  end = os.fstat(file.fileno()).st_size
  model, rest = ModelProto(), bytearray()
  while (start := file.tell()) < end:
    number, kind = _head(file)
    if (number, kind) != (_GRAPH, _BYTES):
      rest += _read(file, _length(file, start, kind, end), end)
      continue
    length = _varint(file)
    if model.HasField("graph") or file.tell() + length > end:
      raise _OtherError
    _graph(file, file.tell() + length, model.graph)
  model.MergeFromString(bytes(rest))
  return model


def _graph(file: BinaryIO, end: int, graph: GraphProto) -> None:
  graph.SetInParent()
  rest, start = bytearray(), file.tell()
  while start < end:
    number, kind = _head(file)
    if (number, kind) == (_INITIALIZER, _BYTES):
      graph.initializer.add().ParseFromString(_read(file, _varint(file), end))
    elif (length := _length(file, start, kind, end)) < LARGE_BYTES:
      rest += _read(file, length, end)
    else:  # the trees of a node, a table: in memory once
      graph.MergeFromString(bytes(rest))
      rest.clear()
      graph.MergeFromString(_read(file, length, end))
    start = file.tell()
  if start != end:
    raise _OtherError
  graph.MergeFromString(bytes(rest))


def _length(file: BinaryIO, start: int, kind: int, end: int) -> int:
  """The bytes of a field from its head at ``start`` on; the head was read, and is next again."""
  if kind == _VARINT:
    _varint(file)
    behind = file.tell()
  elif kind == _BYTES:
    behind = _varint(file) + file.tell()
  elif kind in _FIXED_BYTES:
    behind = _FIXED_BYTES[kind] + file.tell()
  else:
    raise _OtherError
  if behind > end:
    raise _OtherError
  file.seek(start)
  return behind - start


def _read(file: BinaryIO, length: int, end: int) -> bytes:
  if file.tell() + length > end:
    raise _OtherError
  data = file.read(length)
  if len(data) != length:
    raise _OtherError
  return data


def _head(file: BinaryIO) -> tuple[int, int]:
  """The number of a field, and its kind."""
  tag = _varint(file)
  if not 0 < tag >> 3 < 1 << 29:
    raise _OtherError
  return tag >> 3, tag & 7


def _varint(file: BinaryIO) -> int:
  value = 0
  for n in range(10):
    byte = file.read(1)
    if not byte:
      raise _OtherError
    value |= (byte[0] & 127) << 7 * n
    if byte[0] < 128:
      return value
  raise _OtherError
