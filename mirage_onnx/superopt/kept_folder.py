"""A folder of small files named by the hash of what decides their content: one value a file.

The form is that of a journal with one entry (``journal_lines.py``), so that damage shows; what is
damaged is as if it were not there, and the next who finds it out replaces it. Values are JSON, never
pickles. A folder or file that cannot be read or written is no error: it only costs the time again.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.journal_lines import UNREADABLE, entry_line, entry_value, header_line, read_lines
from mirage_onnx.superopt.search_setting import SettingText, entry_key

#: Files that stay, and for how many seconds after they were written.
MOST, OLDEST_S = 50_000, 180 * 86400.0


class KeptFolder:
  """Values by key in ``folder``; nothing is kept where that is None. For any thread.

  ``setting``: what all values have in common: another setting finds none of them.
  """

  def __init__(self, folder: Path | None, setting: SettingText, *, most: int = MOST) -> None:
    self.folder, self._setting, self._most = folder, dict(setting), most
    self._trimmed = False

  def key(self, kind: str, *parts: str) -> str:
    """The key of what is decided by these texts."""
    return entry_key(self._setting, "\0".join(parts), kind)

  def path(self, key: str) -> Path | None:
    return None if self.folder is None else self.folder / f"{key}.json"

  def get(self, key: str) -> dict[str, Any] | None:
    """The value that was put under ``key``, or None."""
    path = self.path(key)
    try:
      if path is None or time.time() - path.stat().st_mtime > OLDEST_S:
        return None
      line = read_lines(read_bounded(path), self._setting, str(path)).entries.get(key)
      return None if line is None else entry_value(line)
    except (OSError, MirageError, *UNREADABLE):
      return None

  def put(self, key: str, value: Mapping[str, Any]) -> None:
    """Keep ``value``, in place of what was there."""
    path = self.path(key)
    if path is None:
      return
    with contextlib.suppress(OSError):
      path.parent.mkdir(parents=True, exist_ok=True)
      replace_file(path, header_line(self._setting) + entry_line(key, value))
      if not self._trimmed:
        self._trimmed = True
        trim(path.parent, self._most)


def trim(folder: Path, most: int = MOST, oldest_s: float = OLDEST_S) -> None:
  """Remove the files of a folder that are too old, and the oldest of those that are too many."""
  found = []
  with contextlib.suppress(OSError), os.scandir(folder) as entries:
    for entry in entries:
      with contextlib.suppress(OSError):
        if entry.is_file(follow_symlinks=False):
          found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
  found.sort(reverse=True)
  now = time.time()
  for n, (written, path) in enumerate(found):
    if n >= most or now - written > oldest_s:
      with contextlib.suppress(OSError):
        os.unlink(path)
