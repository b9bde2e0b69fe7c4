"""What a data file will hold, before a byte of it is written: its parts, where each lies, and who reads it.

    files beside the source, weights in the model, turned copies -> parts -> their bytes, references to them

So a data file of the same parts that is there already (``kept_data.py``) need not be written again.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from mirage_onnx.file_facts import settled
from mirage_onnx.rewrite.external import all_tensors, append_range, place_of, unheard
from mirage_onnx.rewrite.turned import Rooms, Turned, is_turned, turned_of

#: Alignment in a data file: a page, so that a tensor can be memory-mapped.
ALIGN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FileRange:
  """Bytes of a file, as they are."""

  path: Path
  start: int
  length: int


@dataclass(slots=True)
class Stretch:
  """``content`` lies at ``offset`` of the data file, where ``tensors`` find it. A tensor: its own bytes."""

  offset: int
  length: int
  content: FileRange | Turned | onnx.TensorProto
  tensors: list[onnx.TensorProto] = field(default_factory=list)


class DataParts:
  """Parts of one data file, in order; files are found from ``folder``."""

  def __init__(self, folder: Path | None) -> None:
    self._folder = folder
    self._parts: list[Stretch] = []

  @property
  def size_bytes(self) -> int:
    """Of the file."""
    return self._parts[-1].offset + self._parts[-1].length if self._parts else 0

  def add_external(self, model: onnx.ModelProto) -> None:
    """All external data of a model; what several tensors read comes once.

    Raises:
        MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    assert self._folder is not None
    found: dict[FileRange, Stretch] = {}
    for tensor in all_tensors(model):
      if uses_external_data(tensor) and not is_turned(tensor):
        place = FileRange(*place_of(tensor, self._folder))
        if place not in found:
          found[place] = self._add(place.length, place)
        found[place].tensors.append(tensor)

  def add_inline(self, tensors: Iterable[onnx.TensorProto]) -> None:
    """The data of tensors that lies in the model; text stays."""
    for tensor in tensors:
      if tensor.data_type == onnx.TensorProto.STRING:
        continue
      if not tensor.HasField("raw_data"):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
      self._add(len(tensor.raw_data), tensor).tensors.append(tensor)

  def add_turned(self, tensors: Iterable[onnx.TensorProto]) -> None:
    """The copies that tensors say (``turned.py``).

    Raises:
        MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    for tensor in tensors:
      if (made := turned_of(tensor)) is not None:
        assert self._folder is not None
        length = place_of(made.source, self._folder)[2]
        self._add(length, made).tensors.append(tensor)

  def _add(self, length: int, content: FileRange | Turned | onnx.TensorProto) -> Stretch:
    end = self.size_bytes
    self._parts.append(Stretch(end + -end % ALIGN_BYTES, length, content))
    return self._parts[-1]

  def write(self, stream: BinaryIO, told: Callable[[int, int], None] = unheard) -> None:
    """The bytes, to an empty file; turned copies in blocks. ``told``: of each stretch that is in the file.

    Raises:
        MirageError: EXTERNAL_DATA_MISSING, MODEL_INVALID.
    """
    rooms = Rooms()
    for part in self._parts:
      stream.write(bytes(part.offset - stream.tell()))
      content = part.content
      if isinstance(content, FileRange):
        append_range(content.path, content.start, content.length, stream, told)
      elif isinstance(content, Turned):
        assert self._folder is not None
        for block in content.blocks(self._folder, rooms):
          _append(block.reshape(-1).view(np.uint8).data, stream, told)
      else:
        _append(content.raw_data, stream, told)
      assert stream.tell() == part.offset + part.length

  def refer(self, location: str) -> None:
    """Let the tensors refer to the file of that name."""
    for part in self._parts:
      for tensor in part.tensors:
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", part.offset), ("length", part.length)):
          tensor.external_data.add(key=key, value=str(value))

  def facts(self) -> tuple[str, ...] | None:
    """What decides the bytes: of files which they are and when they changed, of others the content.

    None where that does not say it: a file has changed just now, or its times of change say nothing.
    """
    now, files = time.time(), dict[Path, str | None]()
    found = [*self._facts(now, files)]
    return None if None in files.values() else tuple(found)

  def _facts(self, now: float, files: dict[Path, str | None]) -> Iterator[str]:
    for part in self._parts:
      content = part.content
      if isinstance(content, onnx.TensorProto):
        yield f"{part.offset} bytes {hashlib.sha256(content.raw_data).hexdigest()}"
        continue
      if isinstance(content, Turned):
        assert self._folder is not None
        how = f"turned {content.source.data_type} {content.dims} {content.perm}"
        path, start, length = place_of(content.source, self._folder)
      else:
        how, path, start, length = "as it is", content.path, content.start, content.length
      if path not in files:
        files[path] = settled(path, now)
      yield f"{part.offset} {how} {start} {length} {files[path]}"


def _append(data: bytes | memoryview, stream: BinaryIO, told: Callable[[int, int], None]) -> None:
  begin = stream.tell()
  stream.write(data)
  stream.flush()
  told(begin, begin + len(data))
