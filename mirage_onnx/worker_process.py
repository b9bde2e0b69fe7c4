"""Both ends of a worker: a program of its own that takes messages on stdin.

Workers are not forked: a process that has run onnxruntime has threads, and a fork of it can wait
for ever on a lock that one of them held. Nor are they started through ``multiprocessing``, which
would run the caller's script again. A worker is no member of the terminal's process group: Ctrl-C
is for its parent, which ends it.

Messages are pickled, or lists of bytes (``send_parts``) where the worker may be damaged by what it
works on: whatever comes back is then bytes.
"""

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

_COUNT = struct.Struct("<Q")
#: For glibc: a worker keeps what it has freed for its next arrays, up to 128 MiB. Without, each array of some
#: MB is new memory, which the kernel makes page by page: a third of a proof's processor time.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
#: Of a process that yields: it has a third of what others have.
NICE = 5
#: Parts of a list of bytes, and bytes of one: what is more is no answer but damage.
MOST_PARTS, MOST_PART_BYTES = 1 << 24, 1 << 31


class WorkerProcess:
  """The parent's end of ``python -m module``; ``quiet``: nobody sees what it says on stderr."""

  def __init__(self, module: str, *, quiet: bool = False) -> None:
    self._process = subprocess.Popen(
      [sys.executable, "-m", module],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL if quiet else None,
      env={**MALLOC, **os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
      process_group=0,
    )

  @property
  def pid(self) -> int:
    """Of the process."""
    return self._process.pid

  def yields(self, nice: int = NICE) -> None:
    """From now on it has what other processes leave of the cores."""
    with suppress(OSError):
      os.setpriority(os.PRIO_PROCESS, self.pid, nice)

  def send(self, value: object) -> None:
    """Send one message.

    Raises:
        BrokenPipeError: the worker has ended.
    """
    assert self._process.stdin is not None
    send(self._process.stdin, value)

  def send_parts(self, parts: Sequence[bytes]) -> None:
    """Send a list of bytes.

    Raises:
        BrokenPipeError: the worker has ended.
    """
    assert self._process.stdin is not None
    send_parts(self._process.stdin, parts)

  def receive_parts(self) -> list[bytes]:
    """The next list of bytes from the worker, once there is one.

    Raises:
        EOFError: the worker has ended, or sends something else.
    """
    assert self._process.stdout is not None
    return receive_parts(self._process.stdout)

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

  def end_input(self) -> None:
    """No more messages: a worker that still lives ends."""
    assert self._process.stdin is not None
    with suppress(BrokenPipeError):
      self._process.stdin.close()

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


def send(stream: IO[bytes], value: object) -> None:
  """Write one message, or one answer."""
  pickle.dump(value, stream)
  stream.flush()


def send_parts(stream: IO[bytes], parts: Sequence[bytes]) -> None:
  """Write a list of bytes: their number, and each with its length before it."""
  stream.write(_COUNT.pack(len(parts)))
  for part in parts:
    stream.write(_COUNT.pack(len(part)))
    stream.write(part)
  stream.flush()


def receive_parts(stream: IO[bytes]) -> list[bytes]:
  """What ``send_parts`` wrote.

  Raises:
      EOFError: the stream ends, or is something else.
  """

  def count(most: int) -> int:
    (value,) = _COUNT.unpack(exactly(_COUNT.size))
    if value > most:
      raise EOFError
    return int(value)

  def exactly(size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
      raise EOFError
    return data

  return [exactly(count(MOST_PART_BYTES)) for _ in range(count(MOST_PARTS))]


def worker_streams() -> tuple[IO[bytes], IO[bytes]]:
  """The worker's end: where its requests come from and where its answers go.

  From now on stdout is stderr, so that nothing that prints gets among the answers.
  """
  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)
  return sys.stdin.buffer, answers
