"""Which data files were written of which weights: the same are not written, or read to be named, again.

    parts (``data_parts.py``) -> digits of the name that their bytes have
    parts, the model's name   -> which file that is, and when it changed last

A data file is taken as it is if nothing has touched it since it was written; else it is written again, under
the name that is known if only it has gone. A weight's file counts by what it is and when it changed last.
"""

import os
import re
from pathlib import Path

from mirage_onnx.file_facts import identity
from mirage_onnx.rewrite.data_file import DIGITS, data_path
from mirage_onnx.rewrite.data_parts import DataParts
from mirage_onnx.source_digest import source_digest
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.superopt.kept_folder import KeptFolder

#: Smaller data files are written: that takes no time.
LEAST_BYTES = 1 << 24


class KeptData:
  """Data files of the outputs at one path; nothing is kept where ``folder`` is None."""

  def __init__(self, folder: Path | None, target: Path) -> None:
    setting = {"source": source_digest("rewrite")} if folder is not None else {}
    self._store, self._target = KeptFolder(folder, setting), target

  @classmethod
  def of_user(cls, target: Path) -> "KeptData":
    """In the user's cache folder."""
    return cls(cache_folder("data"), target)

  def facts(self, parts: DataParts) -> tuple[str, ...]:
    """What is asked about; nothing where nothing is kept."""
    if self._store.folder is None or parts.size_bytes < LEAST_BYTES:
      return ()
    return parts.facts() or ()

  def digits(self, facts: tuple[str, ...]) -> str:
    """Those of the name, empty where nobody has written such a file."""
    value = self._store.get(self._store.key("name", *facts)) if facts else None
    found = value.get("digits") if value else None
    return found if isinstance(found, str) and re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", found) else ""

  def is_there(self, facts: tuple[str, ...], digits: str) -> bool:
    """Whether the data file lies beside the model as it was written."""
    if not facts or not digits:
      return False
    value = self._store.get(self._file_key(facts))
    try:
      file = data_path(self._target, digits)
      return value == {"digits": digits, "file": identity(os.lstat(file))}
    except OSError:
      return False

  def keep(self, facts: tuple[str, ...], digits: str) -> None:
    """Remember the file that was written just now."""
    if not facts:
      return
    try:
      file = identity(os.lstat(data_path(self._target, digits)))
    except OSError:
      return
    self._store.put(self._store.key("name", *facts), {"digits": digits})
    self._store.put(self._file_key(facts), {"digits": digits, "file": file})

  def _file_key(self, facts: tuple[str, ...]) -> str:
    return self._store.key("file", str(self._target), *facts)
