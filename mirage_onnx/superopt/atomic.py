"""Writing a file so that a reader sees the old one or the whole new one."""

import contextlib
import os
from pathlib import Path

#: Bytes of a file's name, of 255: those beside it (data, lock, what is not done) have some fifty more.
LONGEST_NAME = 200


def sibling(path: Path) -> Path:
  """Where the new content of ``path`` is written before it takes the place of the old one."""
  return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def write_whole(descriptor: int, data: bytes) -> None:
  """Write all of ``data``: one ``write`` may take less, for example where a disk fills up.

  Raises:
      OSError: not everything could be written.
  """
  while data:
    data = data[os.write(descriptor, data) :]


def replace_file(path: Path, data: bytes) -> None:
  """Make ``data`` the content of ``path``; a link at ``path`` stays one.

  Raises:
      OSError: the folder or the file cannot be written; ``path`` is what it was.
  """
  target = Path(os.path.realpath(path))
  temporary = sibling(target)
  try:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
      write_whole(descriptor, data)
      os.fsync(descriptor)
    finally:
      os.close(descriptor)
    os.replace(temporary, target)
  finally:
    with contextlib.suppress(OSError):
      temporary.unlink()
