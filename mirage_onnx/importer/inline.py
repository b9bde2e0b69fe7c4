"""A model in one file for other processes: its weights stay in the file, where they already are.

Data inside of a model file lies there as it is, at some offset. A worker is given the model with
external data that names its own file, so that it maps what it reads and holds no copy.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from onnx import GraphProto, ModelProto, TensorProto

from mirage_onnx.importer.load import LoadedModel

#: Data of a tensor stays in the model from below this size.
LEAST_BYTES = 1 << 16
#: Numbers of the fields on the way to the data.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


def sent(loaded: LoadedModel) -> ModelProto:
  """What another process makes the model of, with ``loaded.known``."""
  return outside(loaded.proto if loaded.flat else loaded.given or loaded.proto, loaded.path)


def outside(proto: ModelProto, path: Path | None) -> ModelProto:
  """``proto``, the content of the file ``path``, with large initializers in that file as external data.

  ``proto`` itself where there is none, or where the file is not written in the usual way.
  """
  large = [n for n, t in enumerate(proto.graph.initializer) if len(t.raw_data) >= LEAST_BYTES]
  places = _places(path, proto.graph) if path is not None and large else None
  if path is None or places is None:
    return proto
  result = ModelProto()
  for field, value in proto.ListFields():
    if field.name == "graph":
      _copy_graph(result.graph, value, places, path.name)
    elif field.is_repeated:
      getattr(result, field.name).extend(value)
    else:
      setattr(result, field.name, value)
  return result


def _copy_graph(to: GraphProto, graph: GraphProto, places: list[tuple[int, int]], location: str) -> None:
  for field, value in graph.ListFields():
    if field.name == "initializer":
      for tensor, (offset, length) in zip(value, places, strict=True):
        if length < LEAST_BYTES:
          to.initializer.add().CopyFrom(tensor)
          continue
        made = to.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        made.data_location = TensorProto.EXTERNAL
        for key, entry in (("location", location), ("offset", offset), ("length", length)):
          made.external_data.add(key=key, value=str(entry))
    elif field.is_repeated:
      getattr(to, field.name).extend(value)
    else:
      setattr(to, field.name, value)


def _places(path: Path, graph: GraphProto) -> list[tuple[int, int]] | None:
  """Offset and length of the data of each initializer in the file; None if it is another file."""
  try:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
      graphs = [at for number, *at in _fields(data, 0, len(data)) if number == _GRAPH]
      if len(graphs) != 1:  # parts of a message are merged
        return None
      found = []
      for number, start, end in _fields(data, *graphs[0]):
        if number == _INITIALIZER:
          raw = [(s, e - s) for n, s, e in _fields(data, start, end) if n == _RAW_DATA]
          found.append(raw[-1] if raw else (0, 0))
  except (OSError, ValueError, IndexError):
    return None
  lengths = [len(t.raw_data) for t in graph.initializer]
  return found if [length for _, length in found] == lengths else None


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
  """Number, start and end of the fields of a message that have a length; others are passed over.

  Raises:
      ValueError: it is no message.
  """
  at = start
  while at < end:
    key, at = _varint(data, at)
    match key & 7:
      case 0:
        _, at = _varint(data, at)
      case 1:
        at += 8
      case 5:
        at += 4
      case 2:
        length, at = _varint(data, at)
        yield key >> 3, at, at + length
        at += length
      case _:
        raise ValueError("groups are not read")
  if at != end:
    raise ValueError("a field goes beyond its message")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
  value = shift = 0
  while True:
    byte = data[at]
    value |= (byte & 0x7F) << shift
    at, shift = at + 1, shift + 7
    if not byte & 0x80:
      return value, at
