"""What takes a core for long beside whoever times regions, in processes of their own: texts, rankings.

The compiler takes no lock of Python's, but writing a text does (40 ms), and reading machine code (100 ms of a
kernel with wgmma), and ranking numbers (seconds): in threads of the one process they hold up whoever has the
GPU. Programs that were made once are known here as long as this lives.
"""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from mirage_onnx import deadline
from mirage_onnx.compiler import candidates
from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import Rejection
from mirage_onnx.ir import Candidate, Region
from mirage_onnx.target import Target
from mirage_onnx.worker_process import WorkerProcess, send, worker_streams

MODULE = "mirage_onnx.compiler.compile_processes"
#: A process costs a second to start: with fewer cores threads make programs.
LEAST_CORES = 4
#: They have less than who times, and twice what searches have (``worker_process.NICE``).
NICE = 2
_LATE = Rejection("BUDGET", "the time ended before it was compiled")
_T = TypeVar("_T")
_present = list["CompileProcesses"]()


@contextmanager
def compiling_in(count: int) -> Iterator[None]:
  """Inside, so many processes make the programs of ``compile_candidates`` that may have several workers."""
  if count < LEAST_CORES:
    yield
    return
  processes = CompileProcesses(count)
  with candidates.made_elsewhere(processes):
    _present.append(processes)
    try:
      yield
    finally:
      _present.remove(processes)
      processes.close()


def apart(function: Callable[..., _T], *arguments: Any) -> _T:
  """What a function of a module makes of these, in a process of ``compiling_in`` if there are any."""
  if _present:
    found = _present[-1].call(function, arguments, deadline.end())
    if found is not None:
      return cast(_T, found[0])
  return function(*arguments)


class CompileProcesses:
  """At most ``count`` of them, started when they are needed first; may be asked by any thread.

  ``asked``: how often processes were asked.
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
        known = self._program(sent, candidate, end)
        if isinstance(known, Compiled) or (known and known.code != "BUDGET"):
          self._made[region.key, target, candidate] = known
      return known

    with ThreadPoolExecutor(min(self._count, len(some)), thread_name_prefix="made") as pool:
      return list(pool.map(one, some))

  def _program(self, sent: bytes, candidate: Candidate, end: float) -> Compiled | Rejection | None:
    if end <= time.monotonic():
      return _LATE
    found = self.call(program, (sent, candidate), end)
    if found is None:
      return _LATE if self._closed else None
    return found[0] if isinstance(found[0], Rejection) else Compiled(candidate, *found[0])

  def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], end: float) -> tuple[Any] | None:
    """What a process makes of it, ``end``: of ``time.monotonic``; None where it ends, or fails at it."""
    worker = self._idle.get()
    try:
      if self._closed:
        return None
      if worker is None:
        worker = self._start()
        self._started.append(worker)
      self.asked += 1
      worker.send((function, arguments, end - time.monotonic()))
      name, found = worker.receive()
    except (EOFError, OSError, ValueError):
      worker = None
      return None
    finally:
      self._idle.put(worker)
    return found if name == "done" else None

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


def program(sent: bytes, candidate: Candidate) -> tuple[object, object] | Rejection:
  """The texts and images of a candidate; ``sent``: its region and target."""
  region, target = pickle.loads(sent)
  done, refused = candidates.compile_candidates(region, [candidate], target, keep=1)
  return (done[0].sources, done[0].cubins) if done else refused[0]


def _serve() -> None:
  """A process: (function, arguments, seconds) -> what it makes, until stdin ends."""
  requests, answers = worker_streams()
  while True:
    try:
      function, arguments, seconds = pickle.load(requests)
    except EOFError:
      return
    answer: tuple[object, ...]
    try:
      with deadline.until(time.monotonic() + seconds):
        answer = "done", function(*arguments)
    except Exception as error:  # who asks makes it itself, and meets the same error
      answer = "failed", f"{type(error).__name__}: {error}"
    send(answers, answer)


if __name__ == "__main__":
  with suppress(KeyboardInterrupt, BrokenPipeError):
    _serve()
