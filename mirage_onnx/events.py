"""Frozen events that stages emit; the progress display, the log and the journal consume them.

Library code never prints. A stage takes ``emit: Emit`` and calls it with one of these.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
  """Base of all events."""


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
  """The whole run may take ``budget_s``, of which ``seconds`` are gone."""

  budget_s: float
  seconds: float


@dataclass(frozen=True, slots=True)
class StageStarted(Event):
  """A pipeline stage begins (``importer``, ``match``, ``superopt``, ...)."""

  stage: str


@dataclass(frozen=True, slots=True)
class StageEnded(Event):
  """A pipeline stage ended after ``seconds``; ``detail`` is one human sentence."""

  stage: str
  seconds: float
  detail: str


@dataclass(frozen=True, slots=True)
class SearchProgress(Event):
  """How far the search of a region is, several times a second at most.

  ``states_per_s``: of the last seconds. ``pruned``: (reason, states dropped for it). ``best_us``:
  predicted time of the best program so far. ``units_known``: pieces of work found so far; a
  search finds more of them as it goes, so this is no fraction to wait for.
  """

  region: str
  seconds: float
  states: int
  states_per_s: float
  pruned: tuple[tuple[str, int], ...]
  best_us: float | None
  budget_left_s: float
  units_done: int
  units_known: int


@dataclass(frozen=True, slots=True)
class RegionsStarted(Event):
  """A stage is about to work on these: key and nodes of each. Later ones of a stage are further ones."""

  stage: str
  regions: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class RegionTuned(Event):
  """A region was compiled, and timed where there is a GPU; ``kernel_us`` is predicted elsewhere.

  ``reason``: why it stays as it was.
  """

  region: str
  ops: tuple[str, ...]
  kernel_us: float | None
  reason: str | None


@dataclass(frozen=True, slots=True)
class RegionDone(Event):
  """A region was searched, with its best predicted time or the reason why there is none."""

  region: str
  ops: tuple[str, ...]
  states: int
  verified: int
  best_us: float | None
  reason: str | None


@dataclass(frozen=True, slots=True)
class WorkStarted(Event):
  """A worker begins with a region; ``kind``: ``search`` or ``compile`` (and what is timed there)."""

  kind: str
  worker: int
  region: str


@dataclass(frozen=True, slots=True)
class WorkEnded(Event):
  """The worker is done with it."""

  kind: str
  worker: int
  region: str


@dataclass(frozen=True, slots=True)
class Warned(Event):
  """Something the user should know that does not stop the run."""

  text: str


Emit = Callable[[Event], None]


def silent(event: Event) -> None:
  """The consumer that ignores everything."""


def both(first: Emit, second: Emit) -> Emit:
  """The consumer that hands every event to two."""

  def emit(event: Event) -> None:
    first(event)
    second(event)

  return emit


def at_stage(stage: str, begin: Callable[[], None], emit: Emit) -> Emit:
  """``emit``, in front of which something begins with a stage."""

  def told(event: Event) -> None:
    if isinstance(event, StageStarted) and event.stage == stage:
      begin()
    emit(event)

  return told


def one_at_a_time(emit: Emit) -> Emit:
  """The consumer to which several threads may tell something at once."""
  lock = threading.RLock()

  def locked(event: Event) -> None:
    with lock:
      emit(event)

  return locked
