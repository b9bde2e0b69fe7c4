"""Rough choices in a process of their own: who times regions does not wait for them.

What is timed next is chosen again and again (``tune/exploring.py``), among thousands of places of 28 layers:
54 CPU seconds of a run of four layers of LLaMA, in which others waited for Python's lock. The process is told
once of what there is to choose from; a question is places and prices.
"""

import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, cast

from mirage_onnx.choosing.disappearing import Place
from mirage_onnx.choosing.partition import choose
from mirage_onnx.ir.program import Program
from mirage_onnx.worker_process import WorkerProcess, send, worker_streams

MODULE = "mirage_onnx.choosing.choice_process"


class RoughChoice(Protocol):
  """Candidates with their prices, and until when (of ``time.monotonic``): which are chosen, by index."""

  def __call__(
    self, candidates: Sequence[Place], times_us: Sequence[float], until: float
  ) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class RoughHere:
  """Chosen in this process."""

  program: Program
  node_us: Mapping[str, float]
  alone: Mapping[str, tuple[str, float]] | None

  def __call__(self, candidates: Sequence[Place], times_us: Sequence[float], until: float) -> tuple[int, ...]:
    """As of ``RoughChoice``."""
    return choose(self.program, candidates, times_us, self.node_us, self.alone, until, rough=True)


class RoughApart:
  """Chosen in a process, which ends when this is left; here where it fails.

  ``candidates``: all that may be asked about.
  """

  def __init__(self, here: RoughHere, candidates: Sequence[Place]) -> None:
    self._here, self._candidates = here, candidates
    self._place = {id(c): i for i, c in enumerate(candidates)}
    self._worker: WorkerProcess | None = None
    self._begun = False

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._end()

  def __call__(self, candidates: Sequence[Place], times_us: Sequence[float], until: float) -> tuple[int, ...]:
    """As of ``RoughChoice``; of one thread."""
    places = [self._place.get(id(c)) for c in candidates]
    self._begin()
    if self._worker is not None and None not in places:
      try:
        self._worker.send((places, list(times_us), until - time.monotonic()))
        name, found = self._worker.receive()
        if name == "chosen":
          return cast(tuple[int, ...], found[0])
      except (EOFError, OSError):
        pass
      self._end()
    return self._here(candidates, times_us, until)

  def _begin(self) -> None:
    """With the first question: a run that repeats another one has none."""
    if self._begun:
      return
    self._begun, self._worker = True, WorkerProcess(MODULE)
    slim = [(c.nodes, c.outputs, c.reads) for c in self._candidates]
    with suppress(BrokenPipeError):  # the question is answered here then
      self._worker.send((self._here.program, slim, dict(self._here.node_us), self._here.alone))

  def _end(self) -> None:
    if self._worker is not None:
      self._worker.kill()
      self._worker.close()
      self._worker = None


@dataclass(frozen=True, slots=True)
class _Known:
  """A ``Place``, without the region."""

  nodes: frozenset[str]
  outputs: frozenset[str]
  reads: tuple[str, ...]


def _serve() -> None:
  """The process: what there is, then (places, prices, seconds) -> a choice, until stdin ends."""
  requests, answers = worker_streams()
  program, slim, node_us, alone = pickle.load(requests)
  every = [_Known(*known) for known in slim]
  here = RoughHere(program, node_us, alone)
  while True:
    try:
      places, times_us, seconds = pickle.load(requests)
    except EOFError:
      return
    try:
      answer: tuple[str, Any] = (
        "chosen",
        here([every[i] for i in places], times_us, time.monotonic() + seconds),
      )
    except Exception as error:  # who asks chooses itself, and meets the same error
      answer = "failed", f"{type(error).__name__}: {error}"
    send(answers, answer)


if __name__ == "__main__":
  with suppress(KeyboardInterrupt, BrokenPipeError):
    _serve()
