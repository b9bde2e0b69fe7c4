"""Events as a trace for Perfetto and chrome://tracing: ``--trace FILE``.

The JSON array form of the Trace Event Format, whose end may be missing: a run that is killed leaves a
trace of what it did. Tracks: the stages, one for each worker that searches, one for compiling and timing; the
rate of each running search is a counter.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any, TextIO

from mirage_onnx.events import (
  Event,
  RegionDone,
  SearchProgress,
  StageEnded,
  StageStarted,
  Warned,
  WorkEnded,
  WorkStarted,
)

#: Number of the track of stages; workers of a kind of work have the next ones.
_STAGES = 0
_FIRST = {"search": 1, "compile": 1001}
_NAMES = {"search": "search worker", "compile": "compile and time"}


class Trace:
  """An ``Emit`` that writes them; ``close`` ends what is still running.

  A reader that goes away ends nothing: the rest is not written, and ``lost`` says why.
  """

  def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
    self._stream: TextIO | None = stream
    self.lost: OSError | None = None
    self._clock, self._start = clock, clock()
    self._first = True
    self._named: set[int] = set()
    self._open: dict[int, str] = {}
    self._write("[\n")
    self._event("M", _STAGES, "process_name", args={"name": "mirage-onnx optimize"})
    self._name(_STAGES, "stages")

  def __call__(self, event: Event) -> None:
    match event:
      case StageStarted(stage):
        self._begin(_STAGES, stage, {})
      case StageEnded(stage, _, detail):
        self._end(_STAGES, {"detail": detail} if detail else {})
      case WorkStarted(kind, worker, region):
        track = _FIRST[kind] + worker
        self._name(track, f"{_NAMES[kind]} {worker}" if kind == "search" or worker else _NAMES[kind])
        self._begin(track, f"{kind} {region}", {"region": region})
      case WorkEnded(kind, worker, region):
        self._end(_FIRST[kind] + worker, {})
        if kind == "search":
          self._event("C", _STAGES, "states per second", args={region: 0})
      case SearchProgress():
        rate = {event.region: round(event.states_per_s)}
        self._event("C", _STAGES, "states per second", args=rate)
      case RegionDone():
        args = {
          "best_us": event.best_us,
          "reason": event.reason,
          "states": event.states,
          "ops": list(event.ops),
        }
        self._event("i", _STAGES, f"region {event.region}", s="p", args=args)
      case Warned(text):
        self._event("i", _STAGES, "warning", s="g", args={"text": text})

  def close(self) -> None:
    """Ends what is still running, and the list."""
    for track in list(self._open):
      self._end(track, {"cut off": True})
    self._write("\n]\n")

  def _name(self, track: int, name: str) -> None:
    if track not in self._named:
      self._named.add(track)
      self._event("M", track, "thread_name", args={"name": name})
      self._event("M", track, "thread_sort_index", args={"sort_index": track})

  def _begin(self, track: int, name: str, args: dict[str, Any]) -> None:
    if track in self._open:
      self._end(track, {})
    self._open[track] = name
    self._event("B", track, name, args=args)

  def _end(self, track: int, args: dict[str, Any]) -> None:
    if track in self._open:
      self._event("E", track, self._open.pop(track), args=args)

  def _event(self, kind: str, track: int, name: str, **more: Any) -> None:
    at_us = round((self._clock() - self._start) * 1e6)
    found = {"ph": kind, "pid": os.getpid(), "tid": track, "ts": at_us, "name": name, "cat": "mirage", **more}
    self._write(("" if self._first else ",\n") + json.dumps(found, ensure_ascii=True))
    self._first = False

  def _write(self, text: str) -> None:
    if self._stream is None:
      return
    try:
      self._stream.write(text)
      self._stream.flush()
    except OSError as error:
      self._stream, self.lost = None, error
