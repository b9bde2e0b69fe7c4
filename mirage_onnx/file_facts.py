"""What says that a file has still the content it had, without reading it."""

import os
from pathlib import Path

#: A file that has changed less than so many seconds ago may change again and keep its times.
SETTLED_S = 2.0


def settled(path: Path, now: float) -> str | None:
  """Which file it is and when it changed last; None where it may have another content with the same.

  The time of a change of the file's entry (``ctime``) cannot be set by anybody.
  """
  try:
    facts = path.stat()
  except OSError:
    return None
  if os.name != "posix" or now - max(facts.st_mtime, facts.st_ctime) < SETTLED_S:
    return None
  return identity(facts)


def identity(facts: os.stat_result) -> str:
  """Which file it is, its size and when it changed last."""
  return f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
