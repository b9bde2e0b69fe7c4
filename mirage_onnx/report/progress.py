"""The log with the running search in it: live lines on a terminal, now and then a line elsewhere.

What is shown is what is known: states, their rate, the best so far, the budget that is left. There
is no bar, because nobody knows how many states a search has.
"""

import time
from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from mirage_onnx.events import Event, SearchProgress, StageEnded, StageStarted
from mirage_onnx.report.log import NORMAL, EventLog

#: Without a terminal, a line is printed this often at most.
PLAIN_EVERY_S = 5.0
#: Reasons for which states were dropped that are shown, those of the most states first.
REASONS = 3
NOTE = "stopping: the best found so far is kept; Ctrl-C again aborts"


class ProgressLog(EventLog):
  """An ``EventLog`` that shows ``SearchProgress`` too, unless it is quiet.

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
    self._since: float | None = None
    self._told = False

  def __call__(self, event: Event) -> None:
    if not self._status and not self._told and self._interrupted():
      self._told = True
      self._print(f"[yellow]{NOTE}[/]", at=NORMAL)
    if isinstance(event, SearchProgress):
      self._show(event)
      return
    super().__call__(event)
    if isinstance(event, StageStarted) and self._status:
      self._status.update(_Live((event.stage,), self._interrupted))
    if isinstance(event, StageEnded):
      self._since = None

  def _show(self, event: SearchProgress) -> None:
    if self._status:
      self._status.update(_Live(progress_lines(event), self._interrupted))
      return
    now = self._clock()
    # Counted from the first event: a search that is shorter needs no line.
    self._since = now if self._since is None else self._since
    if now - self._since >= PLAIN_EVERY_S:
      self._since = now
      self._print(f"  {escape('; '.join(progress_lines(event)))}", at=NORMAL)


class _Live:
  """Lines beside the spinner, drawn anew several times a second."""

  def __init__(self, lines: tuple[str, ...], interrupted: Callable[[], bool]) -> None:
    self._lines, self._interrupted = lines, interrupted

  def __rich__(self) -> RenderableType:
    note = [Text(NOTE, style="yellow")] if self._interrupted() else []
    cut = (Text(line, no_wrap=True, overflow="ellipsis") for line in self._lines)
    return Group(*cut, *note)


def progress_lines(event: SearchProgress) -> tuple[str, ...]:
  """What is known of a running search; the second line says why states were dropped, if any."""
  best = "no program yet" if event.best_us is None else f"best {event.best_us:.1f} µs"
  units = f"{event.units_done:,} of {event.units_known:,} units, " if event.units_known else ""
  first = (
    f"region {event.region}: {event.states:,} states, {event.states_per_s:,.0f}/s, "
    f"{units}{best}, {event.budget_left_s:.0f} s left"
  )
  ranked = sorted(event.pruned, key=lambda p: (-p[1], p[0]))
  shown = [f"{count:,} {reason}" for reason, count in ranked[:REASONS]]
  if rest := sum(count for _, count in ranked[REASONS:]):
    shown.append(f"{rest:,} for other reasons")
  return (first, f"dropped: {', '.join(shown)}") if shown else (first,)
