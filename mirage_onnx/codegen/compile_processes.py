"""Programs made by processes of their own: their text, their image, and what is checked of it.

Who times regions makes hundreds of programs meanwhile. The compiler takes no lock of Python's, but writing a
text does (40 ms), and so does reading machine code (100 ms of a kernel with wgmma): in threads of the one
process they hold up whoever has the GPU. What was made once is known here as long as this lives.
"""

import pickle
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from mirage_onnx import deadline
from mirage_onnx.codegen import candidates
from mirage_onnx.codegen.candidates import Compiled
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region
from mirage_onnx.target import Target
from mirage_onnx.worker_process import WorkerProcess, send, worker_streams

MODULE = "mirage_onnx.codegen.compile_processes"
#: A process costs a second to start: with fewer cores threads make programs.
LEAST_CORES = 4
#: They have less than who times, and twice what searches have (``worker_process.NICE``).
NICE = 2
_LATE = Rejection("BUDGET", "the time ended before it was compiled")


@contextmanager
def compiling_in(count: int) -> Iterator[None]:
  """Inside, so many processes make the programs of ``compile_candidates`` that may have several workers."""
  if count < LEAST_CORES:
    yield
    return
  made_by = CompileProcesses(count)
  with candidates.made_elsewhere(made_by):
    try:
      yield
    finally:
      made_by.close()


class CompileProcesses:
  """At most ``count`` of them, started when they are needed first; may be asked by any thread.

  ``asked``: how many programs processes were asked for.
  """

  def __init__(self, count: int) -> None:
    self._count, self._closed, self.asked = count, False, 0
    self._idle = SimpleQueue[WorkerProcess | None]()
    for _ in range(count):
      self._idle.put(None)
    self._started = list[WorkerProcess]()
    self._made = dict[tuple[str, Target, Candidate], Compiled | Rejection]()

  def __call__(
    self, region: Region, some: Sequence[Candidate], target: Target
  ) -> list[Compiled | Rejection | None]:
    """Each program, or why there is none; None of what has to be made here."""
    sent, end = pickle.dumps((region, target)), deadline.end()

    def one(candidate: Candidate) -> Compiled | Rejection | None:
      known = self._made.get((region.key, target, candidate))
      if known is None:
        known = self._asked(sent, candidate, end)
        if isinstance(known, Compiled) or (known and known.code != "BUDGET"):
          self._made[region.key, target, candidate] = known
      return known

    with ThreadPoolExecutor(min(self._count, len(some)), thread_name_prefix="made") as pool:
      return list(pool.map(one, some))

  def _asked(self, sent: bytes, candidate: Candidate, end: float) -> Compiled | Rejection | None:
    """What a process makes of it; None where it ends, or fails at it."""
    worker = self._idle.get()
    try:
      if self._closed:
        return _LATE
      left = end - time.monotonic()
      if left <= 0:
        return _LATE
      if worker is None:
        worker = self._start()
        self._started.append(worker)
      self.asked += 1
      worker.send((sent, candidate, left))
      name, found = worker.receive()
    except (EOFError, OSError, ValueError):
      worker = None
      return _LATE if self._closed else None
    finally:
      self._idle.put(worker)
    if name == "refused":
      return found[0] if isinstance(found[0], Rejection) else None
    return Compiled(candidate, *found) if name == "made" else None

  def _start(self) -> WorkerProcess:
    worker = WorkerProcess(MODULE)
    worker.yields(NICE)
    return worker

  def close(self) -> None:
    """End them, whatever they are at."""
    self._closed = True
    for worker in self._started:
      with suppress(OSError):
        worker.kill()
        worker.close()


def _serve() -> None:
  """A process: (region and target, candidate, seconds) -> what was made, until stdin ends."""
  requests, answers = worker_streams()
  while True:
    try:
      sent, candidate, seconds = pickle.load(requests)
    except EOFError:
      return
    region, target = pickle.loads(sent)
    answer: tuple[object, ...]
    try:
      with deadline.until(time.monotonic() + seconds):
        done, refused = candidates.compile_candidates(region, [candidate], target, keep=1)
    except Exception as error:  # who asks makes it itself, and meets the same error
      answer = "failed", f"{type(error).__name__}: {error}"
    else:
      answer = ("made", done[0].sources, done[0].cubins) if done else ("refused", refused[0])
    send(answers, answer)


if __name__ == "__main__":
  with suppress(KeyboardInterrupt, BrokenPipeError):
    _serve()
