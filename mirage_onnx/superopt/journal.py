"""The journal of a search: what every finished unit found, so that a run that was cut off goes on.

An append-only file of checked lines (``journal_lines.py``). A unit is a pure function of its key,
so an entry is never changed and a journal can never make a result differ: it only saves the time.

- One ``put`` is one line in one ``write``. A process that is killed leaves at most one unfinished
  line at the end, which the next one cuts off. Any other damage is an error and nothing is touched.
- A file of another setting or version is not used, and ``notice`` says why. It stays as it is until
  the first result of this setting is there, which then replaces it by an atomic rename.
- The file is locked while it is open; the lock is gone with the process, however it ends.
- Where the disk is full the run goes on without a journal, and ``failure`` says so.
"""

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Mapping
from errno import EACCES, EAGAIN, ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mirage_onnx.errors import MirageError
from mirage_onnx.superopt.atomic import sibling, write_whole
from mirage_onnx.superopt.journal_lines import entry_line, entry_value, header_line, read_lines
from mirage_onnx.superopt.search_setting import SettingText, entry_key

#: Of the searches of a model: some MB.
MOST_BYTES = 1 << 28


class Journal:
  """Entries by key, kept in the file ``path``, or in memory only where that is None.

  ``setting``: what all entries have in common (``search_setting.py``). All methods may be called
  from any thread of this process. ``known``: entries that the file had when it was opened.

  Raises:
      MirageError: JOURNAL, where the file is damaged, is no journal, cannot be opened, or is in
          use by another process.
  """

  def __init__(self, path: Path | None, setting: SettingText) -> None:
    self.path = Path(os.path.realpath(path)) if path is not None else None
    self.notice: str | None = None
    self.failure: str | None = None
    self._setting = dict(setting)
    self._entries: dict[str, bytes] = {}
    self._size_bytes = 0
    self._guard = threading.Lock()
    self._file: int | None = None
    if self.path is not None:
      self._file = _open_locked(self.path)
      try:
        self._read()
      except BaseException:
        os.close(self._file)
        raise
    self.known = len(self._entries)

  def key(self, region_text: str, unit: str) -> str:
    """The key of a unit, named ``unit``, of the search of the region with this text."""
    return entry_key(self._setting, region_text, unit)

  def get(self, key: str) -> dict[str, Any] | None:
    """The value put under ``key``, as JSON gives it back (tuples are lists)."""
    with self._guard:
      line = self._entries.get(key)
    return None if line is None else entry_value(line)

  def put(self, key: str, value: Mapping[str, Any]) -> None:
    """Keep ``value`` under ``key``; where there is an entry already, it is the same one.

    Raises:
        TypeError or ValueError: ``value`` has no JSON text.
    """
    line = entry_line(key, value)
    with self._guard:
      if key in self._entries:
        return
      self._entries[key] = line[:-1]
      if self._file is not None and self.failure is None:
        try:
          self._write(line)
        except OSError as error:
          self._give_up(error)

  def close(self) -> None:
    """Let the file go; everything that was put is on the disk then."""
    with self._guard:
      if self._file is None:
        return
      if self.notice is None and not self._size_bytes:
        assert self.path is not None
        self.path.unlink(missing_ok=True)  # it was opened in vain
      else:
        _synced(self._file)
      os.close(self._file)
      self._file = None

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    self.close()

  def _read(self) -> None:
    assert self._file is not None
    if os.fstat(self._file).st_size > MOST_BYTES:
      raise MirageError("JOURNAL", f"{self.path} is larger than {MOST_BYTES >> 20} MiB")
    with os.fdopen(os.dup(self._file), "rb") as stream:
      data = stream.read()
    contents = read_lines(data, self._setting, str(self.path))
    if contents.foreign is not None:
      self.notice = f"{self.path} is not used: {contents.foreign}; new results replace it"
      return
    self._entries = dict(contents.entries)
    self._size_bytes = contents.size_bytes
    if contents.size_bytes < len(data):
      os.ftruncate(self._file, contents.size_bytes)

  def _write(self, line: bytes) -> None:
    if self.notice is not None:
      self._replace(header_line(self._setting) + line)
      return
    assert self._file is not None
    data = line if self._size_bytes else header_line(self._setting) + line
    write_whole(self._file, data)
    self._size_bytes += len(data)

  def _replace(self, data: bytes) -> None:
    """The file of another setting gives way to a new one that is locked from its first byte."""
    assert self.path is not None
    assert self._file is not None
    temporary = sibling(self.path)
    temporary.unlink(missing_ok=True)
    new = _open_locked(temporary)
    try:
      write_whole(new, data)
      _synced(new)
      os.replace(temporary, self.path)
    except BaseException:
      os.close(new)
      temporary.unlink(missing_ok=True)
      raise
    os.close(self._file)
    self._file, self._size_bytes, self.notice = new, len(data), None

  def _give_up(self, error: OSError) -> None:
    assert self._file is not None
    self.failure = f"{self.path} is not written any more: {error.strerror or error}"
    if self.notice is None:
      with contextlib.suppress(OSError):
        os.ftruncate(self._file, self._size_bytes)


def _open_locked(path: Path) -> int:
  """A descriptor of the file at ``path``, made if need be, that this process alone holds."""
  try:
    while True:
      descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
      try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
          raise MirageError("JOURNAL", f"{path} is not a regular file")
        _lock(descriptor)
        if _is_at(descriptor, path):
          return descriptor
      except BaseException:
        os.close(descriptor)
        raise
      os.close(descriptor)  # another process has replaced or removed it meanwhile
  except OSError as error:
    busy = error.errno in (EAGAIN, EACCES) and error.filename is None
    reason = "another run is using it" if busy else error.strerror or str(error)
    raise MirageError("JOURNAL", f"{path}: {reason}") from error


def _lock(descriptor: int) -> None:
  """Hold the file alone. Where the file system has no locks, one line still is one write."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno not in (ENOLCK, ENOSYS, EOPNOTSUPP):
      raise


def _is_at(descriptor: int, path: Path) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False


def _synced(descriptor: int) -> None:
  """Wait for the disk. Some file systems cannot; the lines are with the kernel all the same."""
  with contextlib.suppress(OSError):
    os.fsync(descriptor)
