"""When a run has to end: one object for all stages, and a check deep inside of their long steps.

A stage is handed its ``Ends`` and asks it between pieces of work. A single step may take seconds (an
oracle in float64, a proof, the extremes of a large weight), so such steps ask ``check`` as they go;
it raises ``OverdueError`` when the end is over that a caller has set by ``until``. Ends belong to a
thread, and of nested ones the earliest holds.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path


class OverdueError(BaseException):
  """A step was ended because its time is over; who set the end catches it.

  No ``Exception``: it is no failure of a region that was at work, and no net of these catches it.
  """


class _Thread(threading.local):
  end = inf
  began: float | None = None


_thread = _Thread()


@contextmanager
def until(end: float) -> Iterator[None]:
  """Inside, ``check`` raises after ``end`` (of ``time.monotonic``)."""
  before = _thread.end
  _thread.end = min(before, end)
  try:
    yield
  finally:
    _thread.end = before


def end() -> float:
  """When the present thread's time is over, for threads that work for it."""
  return _thread.end


def check() -> None:
  """Go on if there is time.

  Raises:
      OverdueError: there is none.
  """
  if _thread.end < inf and time.monotonic() > _thread.end:
    raise OverdueError


@dataclass(frozen=True, slots=True)
class Ends:
  """The end of a stage: a time (of ``time.monotonic``), or that the user asks for one."""

  at: float = inf
  stopped: Callable[[], bool] = lambda: False

  @property
  def seconds_left(self) -> float:
    return max(0.0, self.at - time.monotonic())

  @property
  def over(self) -> bool:
    return time.monotonic() > self.at or self.stopped()


NEVER = Ends()
#: Weights that are turned and written in a second, on a plain disk.
WRITTEN_PER_S = 2e8
#: What the check of a model takes that is written, and the largest share of a small budget for that.
FINISH_S, FINISH_SHARE = 6.0, 0.3
#: A step that is under way at the end may go on for this share of the whole budget.
SLACK = 0.05
#: Of /proc/PID/stat, behind the process's name.
_START_FIELD = 19


def process_start() -> float:
  """When this process began (of ``time.monotonic``); now, where the system does not say.

  What a command takes for its imports is part of its time.
  """
  now = time.monotonic()
  try:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    began = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
  except (OSError, ValueError, IndexError, AttributeError):
    return now
  return now - age if age > 0 else now


@contextmanager
def command(began: float) -> Iterator[None]:
  """Inside is a command whose time ``began`` then."""
  _thread.began = began
  try:
    yield
  finally:
    _thread.began = None


def command_began() -> float:
  """When the time of the present command began, or now."""
  return time.monotonic() if _thread.began is None else _thread.began


@dataclass(frozen=True, slots=True)
class Budget:
  """The time of a whole run, from ``start``: each stage ends so that later ones have their share.

  Regions have to be chosen, compiled, written and (where there is a GPU) timed after the search.
  ``written``: bytes that go to the output.
  """

  start: float
  seconds: float
  measure: bool
  written: int = 0

  @property
  def _before_writing(self) -> float:
    """The seconds until the output is begun: half of all where that is large."""
    finish = max(min(FINISH_S, FINISH_SHARE * self.seconds), self.written / WRITTEN_PER_S)
    return max(0.5 * self.seconds, self.seconds - finish)

  @property
  def search(self) -> float:
    return self.start + self._before_writing * (0.5 if self.measure else 0.8)

  @property
  def tune(self) -> float:
    """The rest is for the check of instances, the last choice, and to put the model together."""
    return self.start + self._before_writing * (0.7 if self.measure else 0.85)

  @property
  def checks(self) -> float:
    """When instances have to be checked: what was timed is of no use without. Then the whole is timed."""
    return self.start + self._before_writing * (0.8 if self.measure else 0.93)
