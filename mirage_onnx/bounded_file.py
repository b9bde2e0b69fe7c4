"""Small files that others may have put beside a model or into a cache: read whole, and never more than that.

A name can also lead to a pipe nobody writes to, or to a device without an end.
"""

import os
import stat
from errno import EFBIG, EINVAL
from pathlib import Path

#: Settings, locks, results of one search: none of ours is larger.
MOST_BYTES = 1 << 26


def read_bounded(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
  """All of a regular file.

  Raises:
      OSError: it cannot be read, is no regular file, or is larger than ``most_bytes``.
  """
  descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for a pipe's writer
  try:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
      what = "it is a folder" if stat.S_ISDIR(found.st_mode) else "it is no regular file"
      raise OSError(EINVAL, what, str(path))
    with open(descriptor, "rb", closefd=False) as stream:
      data = stream.read(most_bytes + 1) if found.st_size <= most_bytes else b""
  finally:
    os.close(descriptor)
  if max(len(data), found.st_size) > most_bytes:
    raise OSError(EFBIG, f"it is larger than {most_bytes >> 20} MiB", str(path))
  return data
