"""Many damaged files, each in a worker that may hang or die without ending the run."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

#: A file that takes more seconds of processor time is a hang; a busy machine is none.
LIMIT_S = 30.0
#: Seconds by the clock after which it is one in any case.
ASLEEP_S = 600.0
#: Importing the packages and making the subjects.
START_S = 300.0
#: Address space is bounded, and threads and their arenas take of it by the number of a machine's cores.
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
CASE = Path(__file__).with_name("fuzz_case.py")


class Worker:
  """``case``: the program that answers; ``limit_s``: of processor time for one seed."""

  def __init__(self, case=CASE, limit_s=LIMIT_S):
    self._process, self._case, self._limit_s = None, case, limit_s

  def ask(self, seed):
    process = self._process or self._start()
    process.stdin.write(f"{seed}\n")
    process.stdin.flush()
    line = self._answer(process)
    if line:
      return dict(json.loads(line))
    process.poll()
    outcome = "HANG" if line is None else "CRASH"
    self.stop()
    what = f"no answer in {self._limit_s:.0f} s" if line is None else f"exit {process.returncode}"
    return {"seed": seed, "kind": "", "outcome": outcome, "faults": [what], "seconds": None}

  def _start(self):
    with tempfile.TemporaryFile() as said:
      self._process = subprocess.Popen(
        [sys.executable, str(self._case)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, **ALONE},
      )  # fmt: skip
      if self._line(self._process, START_S) != "ready\n":
        self.stop()
        said.seek(0)
        raise RuntimeError(f"the worker did not start: {said.read()[-2000:].decode(errors='replace')}")
    return self._process

  def _answer(self, process):
    start, used = time.monotonic(), processor_s(process.pid)
    while time.monotonic() - start < ASLEEP_S:
      line = self._line(process, self._limit_s / 6)
      if line is not None:
        return line
      if processor_s(process.pid) - used > self._limit_s:
        return None
    return None

  @staticmethod
  def _line(process, seconds):
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else None

  def stop(self):
    if self._process is not None:
      self._process.kill()
      self._process.communicate()
      self._process = None


def processor_s(pid):
  """Seconds of processor time of a process so far (proc(5): fields 14 and 15 of stat)."""
  fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
  return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(seeds, case=CASE, limit_s=LIMIT_S):
  worker = Worker(case, limit_s)
  try:
    for seed in seeds:
      yield worker.ask(seed)
  finally:
    worker.stop()


def counts(found):
  return dict(Counter(a["outcome"] for a in found).most_common())
