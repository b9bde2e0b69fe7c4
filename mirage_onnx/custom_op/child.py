"""Something that may crash or never end, done by a process of its own.

The module that does it ends with ``if __name__ == "__main__": serve(work)``; the parent calls
``in_child`` with its name and a request that can be pickled, or begins a ``Child`` before it has one: that
loads its libraries meanwhile, and takes one request after another. ``work`` says where it is, so that the
parent knows at what it ended: onnxruntime may bring a process down.
"""

import os
import pickle
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mirage_onnx.worker_process import WorkerProcess, send, worker_streams

#: Tells the parent what is done next.
At = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ended:
  """A child without an answer: ``at`` is what it did last, ``how`` it ended, in words.

  ``late``: it was ended because its time was over.
  """

  at: str
  how: str
  late: bool = False

  def __str__(self) -> str:
    return f"{self.at}: {self.how}"


class Child:
  """The process of ``module``; where it ends without an answer, the next request has a new one."""

  def __init__(self, module: str) -> None:
    self._module = module
    self._worker: WorkerProcess | None = None

  def begin(self) -> None:
    """Start it, if it does not run."""
    if self._worker is None:
      self._worker = WorkerProcess(self._module)

  def yields(self) -> None:
    """From now on it has what other processes leave of the cores."""
    if self._worker is not None:
      self._worker.yields()

  def kill(self) -> None:
    """Let what another thread has asked end without an answer."""
    if (worker := self._worker) is not None:
      worker.kill()

  def close(self) -> None:
    """End it."""
    if self._worker is not None:
      self._worker.kill()
      self._worker.close()
      self._worker = None

  def ask(self, request: object, seconds: float) -> Any:
    """What ``work`` returns for ``request``, or ``Ended``."""
    self.begin()
    worker, late, at, answered = self._worker, threading.Event(), "its start", False
    assert worker is not None

    def end() -> None:
      late.set()
      worker.kill()

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), end)
    timer.daemon = True
    timer.start()
    try:
      worker.send(request)
      while True:
        name, arguments = worker.receive()
        if name == "at":
          at = arguments[0]
          continue
        answered = not late.is_set()
        return Ended(at, arguments[0]) if name == "failed" else arguments[0]
    except (EOFError, BrokenPipeError):
      if late.is_set():
        return Ended(at, f"no end after {seconds:.0f} s", late=True)
      return Ended(at, _how(worker.wait()))
    finally:
      timer.cancel()
      if not answered:
        self.close()


def in_child(module: str, request: object, seconds: float) -> Any:
  """What ``work`` of ``module`` returns for ``request``, or ``Ended``."""
  child = Child(module)
  try:
    return child.ask(request, seconds)
  finally:
    child.close()


def _how(status: int) -> str:
  if status < 0:
    return f"the process was ended by {signal.Signals(-status).name}"
  return f"the process ended with status {status}"


def serve(work: Callable[[Any, At], object], ready: Callable[[], object] = lambda: None) -> None:
  """The child: a request, what it is at, an answer, and again; before all that it is made ``ready``.

  It ends without a word where its parent has.
  """
  requests, answers = worker_streams()
  with suppress(Exception):  # whoever needs what failed will say so
    ready()
  try:
    while True:
      request = pickle.load(requests)
      try:
        found = work(request, lambda what: send(answers, ("at", what)))
      except (EOFError, BrokenPipeError):
        raise
      except Exception as error:  # told to the parent
        line = " ".join(str(error).split())
        send(answers, ("failed", f"{type(error).__name__}: {line[:400]}"))
      else:
        send(answers, ("result", found))
  except (EOFError, BrokenPipeError):
    os._exit(1)  # else the interpreter tries to flush what nobody reads
