"""Frozen events that stages emit; the progress display, the log and the journal consume them.

Library code never prints. A stage takes ``emit: Emit`` and calls it with one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""


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
class RegionDone(Event):
    """A region was searched, with its best predicted time or the reason why there is none."""

    region: str
    ops: tuple[str, ...]
    states: int
    verified: int
    best_us: float | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something the user should know that does not stop the run."""

    text: str


Emit = Callable[[Event], None]


def silent(event: Event) -> None:
    """The consumer that ignores everything."""
