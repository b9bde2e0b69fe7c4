"""Standard streams that are closed before a command begins, full, or without a reader.

None of that changes what a command writes to its files, and what cannot be said on stderr ends nothing.
"""

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from _typeshed import ReadableBuffer

_STDERR = 2


def keep_streams() -> None:
  """Let descriptors 0 to 2 be open, ``sys.stdout``, ``sys.stderr`` be there, and messages raise nothing."""
  _open_missing()
  for name in ("stdout", "stderr"):
    if getattr(sys, name) is None:  # it was closed before the start
      setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (as long as the process)
  if isinstance(sys.stdout, io.TextIOWrapper):  # as stderr does: another encoding than UTF-8 ends no command
    sys.stdout.reconfigure(errors="backslashreplace")
  if type(sys.stderr) is io.TextIOWrapper and sys.stderr.fileno() == _STDERR:
    stream, was = io.BufferedWriter(_Messages()), sys.stderr
    sys.stderr = io.TextIOWrapper(stream, was.encoding, was.errors, line_buffering=True)


def _open_missing() -> None:
  """A file opened later must not have the number of a stream: libraries write their messages there."""
  while (opened := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
    os.set_inheritable(opened, True)  # processes of ours are no better off without
  os.close(opened)


class _Messages(io.RawIOBase):
  """What stderr takes; the rest goes nowhere, as where a disk is full or who read it has gone."""

  def writable(self) -> bool:
    return True

  def fileno(self) -> int:
    return _STDERR

  def isatty(self) -> bool:
    return os.isatty(_STDERR)

  def write(self, data: "ReadableBuffer", /) -> int:
    try:
      return os.write(_STDERR, data)
    except OSError:
      return memoryview(data).nbytes
