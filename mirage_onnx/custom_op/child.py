"""Something that may crash or never end, done by a process of its own.

The module that does it ends with ``if __name__ == "__main__": serve(work)``; the parent calls
``in_child`` with its name and a request that can be pickled. ``work`` says where it is, so that the
parent knows at what it ended: onnxruntime may bring a process down.
"""

import os
import pickle
import signal
import threading
from collections.abc import Callable
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


def in_child(module: str, request: object, seconds: float) -> Any:
  """What ``work`` of ``module`` returns for ``request``, or ``Ended``."""
  worker, late, at = WorkerProcess(module), threading.Event(), "its start"

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
      elif name == "failed":
        return Ended(at, arguments[0])
      else:
        return arguments[0]
  except (EOFError, BrokenPipeError):
    if late.is_set():
      return Ended(at, f"no end after {seconds:.0f} s", late=True)
    return Ended(at, _how(worker.wait()))
  finally:
    timer.cancel()
    worker.kill()
    worker.close()


def _how(status: int) -> str:
  if status < 0:
    return f"the process was ended by {signal.Signals(-status).name}"
  return f"the process ended with status {status}"


def serve(work: Callable[[Any, At], object]) -> None:
  """The child: one request, what it is at, one answer. It ends without a word where its parent has."""
  requests, answers = worker_streams()
  try:
    try:
      found = work(pickle.load(requests), lambda what: send(answers, ("at", what)))
    except (EOFError, BrokenPipeError):
      raise
    except Exception as error:  # told to the parent
      line = " ".join(str(error).split())
      send(answers, ("failed", f"{type(error).__name__}: {line[:400]}"))
    else:
      send(answers, ("result", found))
  except (EOFError, BrokenPipeError):
    os._exit(1)  # else the interpreter tries to flush what nobody reads
