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
import re
from collections.abc import Iterator
from pathlib import Path

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
  size, done = data.stat().st_size, 0
  found = hashlib.sha256(size.to_bytes(8, "little"))
  with data.open("rb") as file:
    for begin, end in written_parts(file.fileno(), 0, size):
      for at in range(max(done, begin // _PIECE_BYTES * _PIECE_BYTES), end, _PIECE_BYTES):
        file.seek(at)
        piece = file.read(_PIECE_BYTES)
        if piece != _ZEROS[: len(piece)]:
          found.update(at.to_bytes(8, "little"))
          found.update(piece)
        done = at + _PIECE_BYTES
  return found.hexdigest()[:DIGITS]


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
  """Whether a file has a name of ``data_name``: another content would have another one."""
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
