"""The log with the running work in it: live lines on a terminal, now and then a line elsewhere.

    superopt: region 12 of 61, 0:35 of 5:00
    region at node_MatMul_62 (8 nodes): 4,569 states, 2,889/s, 32 of 35 units, best 7.4 µs
    dropped: 1,161 registers

What is shown is what is known: the stage, its region, the clock of the whole run against its budget; of a
search states, their rate and the best so far. There is no bar, because nobody knows how many states a
search has.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from mirage_onnx.events import (
  Event,
  RegionDone,
  RegionsStarted,
  RegionTuned,
  RunStarted,
  SearchProgress,
  StageEnded,
  StageStarted,
)
from mirage_onnx.report.log import NORMAL, EventLog
from mirage_onnx.report.pace import Pace

#: Without a terminal, a line is printed after so long a silence (looked at every ``BEAT_S``), also where a
#: stage has nothing new to say.
SILENT_S, BEAT_S = 10.0, 5.0
#: Reasons for which states were dropped that are shown, those of the most states first.
REASONS = 3
NOTE = "stopping: the best found so far is kept; Ctrl-C again aborts"


class Whole:
  """Where a run is: its stage, the region at hand, its clock."""

  def __init__(self, clock: Callable[[], float]) -> None:
    self._clock = clock
    self._began: float | None = None
    self._budget_s = 0.0
    self._stage, self._done, self._total = "", Counter[str](), Counter[str]()
    self.names: dict[str, tuple[str, ...]] = {}

  def note(self, event: Event) -> None:
    """Take in what an event says of it."""
    match event:
      case RunStarted(budget_s, seconds) if self._began is None:  # a run may have another one inside
        self._began, self._budget_s = self._clock() - seconds, budget_s
      case StageStarted(stage):
        self._stage = stage
        if stage != "tune":  # some are timed while others are searched
          self._done.clear()
          self._total.clear()
      case RegionsStarted(stage, regions):
        self._total[stage] = self._done[stage] + len(regions)
        self.names |= dict(regions)
      case RegionDone():
        self._done["superopt"] += 1
      case RegionTuned():
        self._done["tune"] += 1

  @property
  def line(self) -> str:
    """``superopt: region 12 of 61, 0:35 of 5:00``, as far as it is known."""
    total = self._total[self._stage]
    parts = [f"region {min(self._done[self._stage] + 1, total):,} of {total:,}"] if total else []
    if self._began is not None:
      parts.append(f"{minutes(self._clock() - self._began)} of {minutes(self._budget_s)}")
    return f"{self._stage}: {', '.join(parts)}" if parts else self._stage


def minutes(seconds: float) -> str:
  """``4:05``, ``1:00:00``."""
  whole = max(0, int(seconds))
  hours, rest = divmod(whole, 3600)
  return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


class ProgressLog(EventLog):
  """An ``EventLog`` that shows where the run is too, unless it is quiet.

  ``interrupted`` is asked whenever the live lines are drawn, so that a Ctrl-C shows at once,
  while the stage that runs is still on its way to the next point where it can stop.
  """

  def __init__(
    self,
    console: Console,
    verbosity: int = NORMAL,
    *,
    interrupted: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
  ) -> None:
    super().__init__(console, verbosity)
    self._interrupted, self._clock = interrupted, clock
    self._whole = Whole(clock)
    self._search: SearchProgress | None = None
    self._pace = Pace(clock)
    self._told = False
    self._printed = clock()
    self._over = threading.Event()

  def __enter__(self) -> Self:
    if not self._status and self._verbosity >= NORMAL:
      threading.Thread(target=self._beats, name="progress", daemon=True).start()
    return super().__enter__()

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._over.set()
    super().__exit__(kind, error, trace)

  def _beats(self) -> None:
    while not self._over.wait(BEAT_S):
      self.beat()

  def beat(self) -> None:
    """Say where the run is, if nothing was said for long."""
    if self._whole.line and self._clock() - self._printed >= SILENT_S:
      self._print(f"  {escape(self._whole.line)}", at=NORMAL)

  def _print(self, line: str, at: int) -> None:
    if self._verbosity >= at:
      self._printed = self._clock()
    super()._print(line, at)

  def __call__(self, event: Event) -> None:
    if not self._status and not self._told and self._interrupted():
      self._told = True
      self._print(f"[yellow]{NOTE}[/]", at=NORMAL)
    self._whole.note(event)
    if isinstance(event, SearchProgress):
      self._search = event
      self._show()
      return
    super().__call__(event)
    if isinstance(event, StageStarted | StageEnded):
      self._search = None
      self._pace.restart()
    if isinstance(event, StageStarted | RegionsStarted | RegionDone | RegionTuned):
      self._show()

  def _show(self) -> None:
    search = progress_lines(self._search, self._whole.names) if self._search else ()
    if self._status:
      self._status.update(_Live(self._whole, search, self._interrupted))
    elif self._pace.due:
      self._print(f"  {escape('; '.join((self._whole.line, *search)))}", at=NORMAL)


class _Live:
  """Lines beside the spinner, drawn anew several times a second."""

  def __init__(self, whole: Whole, lines: tuple[str, ...], interrupted: Callable[[], bool]) -> None:
    self._whole, self._lines, self._interrupted = whole, lines, interrupted

  def __rich__(self) -> RenderableType:
    note = [Text(NOTE, style="yellow")] if self._interrupted() else []
    shown = (self._whole.line, *self._lines)
    cut = (Text(line, no_wrap=True, overflow="ellipsis") for line in shown)
    return Group(*cut, *note)


def progress_lines(event: SearchProgress, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
  """What is known of a running search; the second line says why states were dropped, if any.

  ``names``: key of a region -> its nodes.
  """
  best = "no program yet" if event.best_us is None else f"best {event.best_us:.1f} µs"
  units = f"{event.units_done:,} of {event.units_known:,} units, " if event.units_known else ""
  ops = names.get(event.region, ())
  at = f"at {ops[0]} ({len(ops)} node{'s' * (len(ops) > 1)})" if ops else event.region
  first = f"region {at}: {event.states:,} states, {event.states_per_s:,.0f}/s, {units}{best}"
  ranked = sorted(event.pruned, key=lambda p: (-p[1], p[0]))
  shown = [f"{count:,} {reason}" for reason, count in ranked[:REASONS]]
  if rest := sum(count for _, count in ranked[REASONS:]):
    shown.append(f"{rest:,} for other reasons")
  return (first, f"dropped: {', '.join(shown)}") if shown else (first,)
