"""The data file of a model that is written: named by its content, so that one rename changes both.

    OUT.onnx   OUT.onnx.4f2a90cc31d07be5.data

Model and weights that were renamed one after the other could be an old model with new weights: a kill
between the two, or a copy of ``OUT.onnx`` elsewhere in its folder. Under a name of its own new data
takes nobody's place. What no model needs any more is removed by whoever writes ``OUT.onnx`` next.
"""

import contextlib
import hashlib
import mmap
import os
import queue
import re
import threading
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from mirage_onnx.rewrite.external import written_parts

#: Data is looked at in pieces of this size, as they lie in the file; those of zeros do not count.
_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)
#: 64 bits: a name against accidents, no signature.
DIGITS = 16


def data_path(target: Path, digits: str) -> Path:
  """Where data lies beside the model ``target``."""
  return target.with_name(f"{target.name}.{digits}.data")


def data_digits(data: Path) -> str:
  """What the name of data, still under another one, will say of its content.

  Where the file system keeps holes they are not read, and they are the zeros that they stand for.

  Raises:
      OSError: the file cannot be read.
  """
  with data.open("rb", buffering=0) as file:
    size = os.fstat(file.fileno()).st_size
    return _digits(file, size, written_parts(file.fileno(), 0, size))


class NamedBeside:
  """``data_digits`` of a file of ``size`` that is being written, of what is there so far.

  Who writes tells each stretch that is in the file, in order; what was never told is zeros. So the file is
  not read once more when it is whole, by then from a disk where it is larger than memory.
  """

  def __init__(self, data: Path, size: int) -> None:
    self._data, self._size = data, size
    self._told = queue.SimpleQueue[tuple[int, int] | None]()
    self._left, self._found, self._error = False, "", OSError("was not read")
    self._thread = threading.Thread(target=self._read, name="name", daemon=True)

  def told(self, begin: int, end: int) -> None:
    """These bytes have been written, and flushed."""
    self._told.put((begin, end))

  @property
  def digits(self) -> str:
    """Behind the ``with``.

    Raises:
        OSError: the file could not be read.
    """
    if not self._found or self._left:
      raise self._error
    return self._found

  def __enter__(self) -> Self:
    self._thread.start()
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._left = kind is not None
    self._told.put(None)
    self._thread.join()

  def _read(self) -> None:
    parts = (part for part in iter(self._told.get, None) if not self._left)
    try:
      with self._data.open("rb", buffering=0) as file:
        self._found = _digits(file, self._size, parts)
    except OSError as error:
      self._error = error


def _digits(file: FileIO, size: int, parts: Iterable[tuple[int, int]]) -> str:
  """Of a file whose bytes outside of ``parts`` are zeros."""
  found, room = hashlib.sha256(size.to_bytes(8, "little")), memoryview(bytearray(_PIECE_BYTES))
  for at in _pieces(parts):
    file.seek(at)
    count = 0
    while new := file.readinto(room[count:]):
      count += new
    piece = room[:count]
    if piece != _ZEROS[: len(piece)]:
      found.update(at.to_bytes(8, "little"))
      found.update(piece)
  return found.hexdigest()[:DIGITS]


def _pieces(parts: Iterable[tuple[int, int]]) -> Iterator[int]:
  """Where the pieces begin that hold some of ``parts``, each as soon as a later one has begun."""
  last = -1
  for begin, end in parts:
    for piece in range(begin // _PIECE_BYTES, -(-end // _PIECE_BYTES)):
      if piece > last >= 0:
        yield last * _PIECE_BYTES
      last = max(last, piece)
  if last >= 0:
    yield last * _PIECE_BYTES


def temporary(path: Path) -> Path:
  """Where this process writes what will be ``path``."""
  return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove_leftovers(target: Path, source: Path | None = None) -> None:
  """Remove what earlier writers of ``target`` left: temporary files, and data that no model mentions.

  Models are those of its folder that end in ``.onnx``, and ``source``. While another process writes
  ``target``, data stays: a writer has a temporary file from before its data has its name until its
  model has.
  """
  # In this order: what is listed first, and whose writer has no temporary file then, is mentioned.
  data, files = _data_files(target), _temporary_files(target)
  for file, pid in files:
    if not _runs(pid):
      with contextlib.suppress(OSError):
        file.unlink()
  if not data or any(_runs(pid) and pid != os.getpid() for _, pid in files):
    return
  others = (p for p in _listed(target.parent) if p.suffix == ".onnx" and p != target)
  models = [target, *([source] if source is not None else []), *others]
  for file in data:
    if not any(_mentions(m, file.name) for m in models):
      with contextlib.suppress(OSError):
        file.unlink()


def is_named_by_content(path: Path) -> bool:
  """Whether a file has a name of ``data_path``: another content would have another one."""
  return re.fullmatch(rf".+\.[0-9a-f]{{{DIGITS}}}\.data", path.name) is not None


def _data_files(target: Path) -> list[Path]:
  pattern = re.compile(re.escape(target.name) + rf"\.[0-9a-f]{{{DIGITS}}}\.data")
  return [p for p in _listed(target.parent) if pattern.fullmatch(p.name)]


def _temporary_files(target: Path) -> list[tuple[Path, int]]:
  """Temporary files of writers of ``target``, with their processes."""
  pattern = re.compile(rf"\.{re.escape(target.name)}(?:\.data)?\.(\d+)\.tmp")
  found = ((p, pattern.fullmatch(p.name)) for p in _listed(target.parent))
  return [(p, int(match[1])) for p, match in found if match]


def _listed(folder: Path) -> Iterator[Path]:
  with contextlib.suppress(OSError):  # a folder that may be written, but not be read
    yield from sorted(folder.iterdir())


def _mentions(model: Path, name: str) -> bool:
  """Whether a file holds a name; what cannot be read may."""
  try:
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
      return text.find(name.encode()) >= 0
  except FileNotFoundError:
    return False
  except ValueError:  # it is empty
    return False
  except OSError:
    return True


def _runs(pid: int) -> bool:
  try:
    os.kill(pid, 0)
  except (ProcessLookupError, OverflowError):
    return False
  except OSError:  # it is somebody else's
    return True
  return True
