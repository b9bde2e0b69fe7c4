"""A child process with a time limit, and the most memory that it and its own took."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

#: Seconds between two looks.
INTERVAL_S = 0.25
_FIELDS = ("RssAnon:", "RssShmem:")


@dataclass(frozen=True, slots=True)
class Watched:
  """How a child ended.

  ``code``: of the exit, None where the limit ended it. ``memory``: most bytes, weights that lie in
  mapped files left out. ``text``: what was printed.
  """

  code: int | None
  seconds: float
  memory: int
  text: str


def watched(command, limit_s, log, env=None):
  """Run a command to its end, or to the limit; what it prints goes to the file ``log``."""
  start, most, code = time.monotonic(), 0, None
  with Path(log).open("wb") as out:
    child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, env=env)
    try:
      while (code := child.poll()) is None and time.monotonic() - start < limit_s:
        most = max(most, _memory(child.pid))
        time.sleep(INTERVAL_S)
    finally:
      if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
  seconds = time.monotonic() - start
  return Watched(code, round(seconds, 1), most, Path(log).read_text(errors="replace"))


def _memory(leader):
  """Bytes of the processes of a session that are not backed by files."""
  total = 0
  for folder in Path("/proc").iterdir():
    if not folder.name.isdigit():
      continue
    try:
      if os.getsid(int(folder.name)) == leader:
        lines = (line.split() for line in (folder / "status").read_text().splitlines())
        total += sum(1024 * int(line[1]) for line in lines if line and line[0] in _FIELDS)
    except (OSError, ValueError):  # it has ended
      continue
  return total
