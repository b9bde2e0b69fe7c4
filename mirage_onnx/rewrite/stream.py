"""The bytes of a model, written part by part: protobuf makes two more copies of all weights at once.

A message is its fields in the order of their numbers, each with its tag and, of texts, bytes and messages,
its length. So all that stands before the weights, every weight, and all that stands behind them are
made one after the other. The bytes are those that ``SerializeToString(deterministic=True)`` gives.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

from google.protobuf.message import EncodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import GraphProto, ModelProto, TensorProto

#: What protobuf writes and reads as one message.
MOST_BYTES = (1 << 31) - 1
_GRAPH = ModelProto.DESCRIPTOR.fields_by_name["graph"].number
_INITIALIZER = GraphProto.DESCRIPTOR.fields_by_name["initializer"].number
_RAW = TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number


def write_model(model: ModelProto, stream: BinaryIO) -> None:
  """Write a model; the largest copy that is made is of one weight.

  Raises:
      OSError: it cannot be written.
      EncodeError, ValueError: it is longer than a message can be.
  """
  graph = model.graph
  try:
    parts = None if _has_unknown(model) else _halves(model, "graph", _GRAPH)
    inner = _halves(graph, "initializer", _INITIALIZER)
  except UnicodeDecodeError:  # a text that is none
    parts = None
  if parts is None or not model.HasField("graph"):  # unknown fields stand at places of their own
    stream.write(model.SerializeToString(deterministic=True))
    return
  (before, behind), (first, last) = parts, inner
  sizes = [t.ByteSize() for t in graph.initializer]
  inside = len(first) + len(last) + sum(len(_tag(_INITIALIZER, n)) + n for n in sizes)
  head = _tag(_GRAPH, inside)
  if len(before) + len(head) + inside + len(behind) > MOST_BYTES:
    raise EncodeError("a model of more than 2 GB")
  stream.write(before + head + first)
  for tensor, size in zip(graph.initializer, sizes, strict=True):
    stream.write(_tag(_INITIALIZER, size))
    for part in _tensor(tensor):
      stream.write(part)
  stream.write(last + behind)


def _tensor(tensor: TensorProto) -> Iterator[bytes]:
  if not tensor.HasField("raw_data") or _has_unknown(tensor):
    yield tensor.SerializeToString(deterministic=True)
    return
  try:
    before, behind = _halves(tensor, "raw_data", _RAW)
  except UnicodeDecodeError:
    yield tensor.SerializeToString(deterministic=True)
    return
  data = tensor.raw_data
  yield before + _tag(_RAW, len(data))
  yield data
  yield behind


def _halves(message: Message, without: str, number: int) -> tuple[bytes, bytes]:
  """The fields of a message before and behind one of them."""
  halves: list[Any] = [type(message)(), type(message)()]
  for field, value in message.ListFields():
    if field.name == without:
      continue
    half = halves[field.number > number]
    if hasattr(value, "extend"):  # repeated; what says so of a field differs between versions of protobuf
      getattr(half, field.name).extend(value)
    elif field.message_type is not None:
      getattr(half, field.name).CopyFrom(value)
    else:
      setattr(half, field.name, value)
  return halves[0].SerializeToString(deterministic=True), halves[1].SerializeToString(deterministic=True)


def _tag(number: int, length: int) -> bytes:
  """Of a field that is told its length, with that."""
  return _varint(number << 3 | 2) + _varint(length)


def _varint(value: int) -> bytes:
  found = bytearray()
  while value > 127:
    found.append(value & 127 | 128)
    value >>= 7
  found.append(value)
  return bytes(found)


def _has_unknown(message: Message) -> bool:
  """Whether a message, its graph or one of its weights has fields that this onnx does not know."""
  parts = [message]
  if isinstance(message, ModelProto):
    parts += [message.graph, *message.graph.initializer]
  return any(len(UnknownFieldSet(p)) for p in parts)
