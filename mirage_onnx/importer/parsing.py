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
  while file.tell() < end:
    number, kind, head = _head(file)
    if (number, kind) != (_GRAPH, _BYTES):
      rest += head + _value(file, kind, end)
      continue
    length, _ = _varint(file)
    if model.HasField("graph") or file.tell() + length > end:
      raise _OtherError
    _graph(file, file.tell() + length, model.graph)
  model.MergeFromString(bytes(rest))
  return model


def _graph(file: BinaryIO, end: int, graph: GraphProto) -> None:
  graph.SetInParent()
  rest, start = bytearray(), file.tell()
  while start < end:
    number, kind, _ = _head(file)
    if (number, kind) == (_INITIALIZER, _BYTES):
      length, _ = _varint(file)
      graph.initializer.add().ParseFromString(_read(file, length, end))
    else:
      _skip(file, kind, end)
      length = file.tell() - start
      file.seek(start)
      if length < LARGE_BYTES:
        rest += _read(file, length, end)
      else:  # the trees of a node, a table: in memory once
        graph.MergeFromString(bytes(rest))
        rest.clear()
        graph.MergeFromString(_read(file, length, end))
    start = file.tell()
  if start != end:
    raise _OtherError
  graph.MergeFromString(bytes(rest))


def _skip(file: BinaryIO, kind: int, end: int) -> None:
  """Go behind a value."""
  if kind == _VARINT:
    _varint(file)
    return
  if kind != _BYTES and kind not in _FIXED_BYTES:
    raise _OtherError
  behind = (_varint(file)[0] if kind == _BYTES else _FIXED_BYTES[kind]) + file.tell()
  if behind > end:
    raise _OtherError
  file.seek(behind)


def _value(file: BinaryIO, kind: int, end: int) -> bytes:
  if kind == _VARINT:
    return _varint(file)[1]
  if kind == _BYTES:
    length, head = _varint(file)
    return head + _read(file, length, end)
  if kind not in _FIXED_BYTES:
    raise _OtherError
  return _read(file, _FIXED_BYTES[kind], end)


def _read(file: BinaryIO, length: int, end: int) -> bytes:
  if file.tell() + length > end:
    raise _OtherError
  data = file.read(length)
  if len(data) != length:
    raise _OtherError
  return data


def _head(file: BinaryIO) -> tuple[int, int, bytes]:
  tag, head = _varint(file)
  if not 0 < tag >> 3 < 1 << 29:
    raise _OtherError
  return tag >> 3, tag & 7, head


def _varint(file: BinaryIO) -> tuple[int, bytes]:
  """A number, and its bytes."""
  value, data = 0, b""
  while len(data) < 10:
    byte = file.read(1)
    if not byte:
      raise _OtherError
    value |= (byte[0] & 127) << 7 * len(data)
    data += byte
    if byte[0] < 128:
      return value, data
  raise _OtherError
