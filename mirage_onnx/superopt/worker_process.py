"""Both ends of a worker: a program of its own that takes pickled messages on stdin.

Workers are not forked: a process that has run onnxruntime has threads, and a fork of it can wait
for ever on a lock that one of them held. Nor are they started through ``multiprocessing``, which
would run the caller's script again. A worker is no member of the terminal's process group: Ctrl-C
is for its parent, which ends it.
"""

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from typing import IO, Any

from mirage_onnx.superopt.remote_hooks import send


class WorkerProcess:
  """The parent's end of ``python -m module``."""

  def __init__(self, module: str) -> None:
    self._process = subprocess.Popen(
      [sys.executable, "-m", module],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
      process_group=0,
    )

  @property
  def pid(self) -> int:
    """Of the process."""
    return self._process.pid

  def send(self, value: object) -> None:
    """Send one message.

    Raises:
        BrokenPipeError: the worker has ended.
    """
    assert self._process.stdin is not None
    send(self._process.stdin, value)

  def receive(self) -> tuple[str, tuple[Any, ...]]:
    """The name and the arguments of the next message from the worker, once there is one.

    Raises:
        EOFError: the worker has ended.
    """
    assert self._process.stdout is not None
    try:
      name, *arguments = pickle.load(self._process.stdout)
    except pickle.UnpicklingError as error:  # it ended in the middle of a message
      raise EOFError from error
    return name, tuple(arguments)

  def wait(self) -> int:
    """The exit status of a worker that has ended, or is about to; a signal's number is negative."""
    return self._process.wait()

  def kill(self) -> None:
    """End the worker, whatever it is doing; ``close`` then lets go of what it held."""
    self._process.kill()

  def close(self) -> None:
    """Wait for the end of a worker that was killed, and close its pipes."""
    self._process.wait()
    for pipe in (self._process.stdin, self._process.stdout):
      if pipe is not None:
        with suppress(BrokenPipeError):  # It did not read all that was sent.
          pipe.close()


def worker_streams() -> tuple[IO[bytes], IO[bytes]]:
  """The worker's end: where its requests come from and where its answers go.

  From now on stdout is stderr, so that nothing that prints gets among the answers.
  """
  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)
  return sys.stdin.buffer, answers
