"""The search on a terminal and elsewhere."""

import io
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from mirage_onnx.events import (
  RegionDone,
  RegionsStarted,
  RegionTuned,
  RunStarted,
  SearchProgress,
  StageEnded,
  StageStarted,
  Warned,
)
from mirage_onnx.report.log import NORMAL, QUIET, VERBOSE
from mirage_onnx.report.pace import PLAIN_EVERY_S
from mirage_onnx.report.progress import (
  NOTE,
  SILENT_S,
  ProgressLog,
  Whole,
  minutes,
  progress_lines,
)

PROGRESS = SearchProgress(
  region="3f2a9c1b",
  seconds=12.0,
  states=1234567,
  states_per_s=45678.9,
  pruned=(("registers", 5), ("shared memory", 4000), ("a [odd] reason", 3), ("d", 2), ("e", 1)),
  best_us=12.345,
  budget_left_s=48.2,
  units_done=45,
  units_known=1200,
)
FIRST = "region at norm_1 (3 nodes): 1,234,567 states, 45,679/s, 45 of 1,200 units, best 12.3 µs"
SECOND = "dropped: 4,000 shared memory, 5 registers, 3 a [odd] reason, 3 for other reasons"


NAMES = {"3f2a9c1b": ("norm_1", "gate", "up")}
REGIONS = RegionsStarted("superopt", (*NAMES.items(), ("b", ("proj",)), ("c", ("out",))))
DONE = RegionDone("b", ("proj",), 1, 0, None, None)


def test_lines():
  assert progress_lines(PROGRESS, NAMES) == (FIRST, SECOND)
  one = progress_lines(PROGRESS, {"3f2a9c1b": ("norm_1",)})[0]
  assert one.startswith("region at norm_1 (1 node): ")
  early = replace(PROGRESS, best_us=None, pruned=(), units_known=0, states=0, states_per_s=0.0)
  assert progress_lines(early, {}) == ("region 3f2a9c1b: 0 states, 0/s, no program yet",)
  few = replace(PROGRESS, pruned=PROGRESS.pruned[:2])
  assert progress_lines(few, {})[1] == "dropped: 4,000 shared memory, 5 registers"


class Screen:
  def __init__(self, *, terminal, width=160):
    self.file, self.now, self.interrupted = io.StringIO(), 0.0, False
    self.console = Console(file=self.file, width=width, force_terminal=terminal)

  def log(self, verbosity=NORMAL):
    return ProgressLog(self.console, verbosity, interrupted=lambda: self.interrupted, clock=lambda: self.now)

  @property
  def text(self):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.file.getvalue())

  def until(self, text):
    end = time.monotonic() + 60
    while text not in self.text:
      assert time.monotonic() < end, self.text
      time.sleep(0.01)


def test_live_on_a_terminal():
  screen = Screen(terminal=True)
  with screen.log() as log:
    log(RunStarted(300.0, 2.0))
    log(StageStarted("superopt"))
    screen.until("superopt: 0:02 of 5:00")
    log(REGIONS)
    screen.until("superopt: region 1 of 3, 0:02 of 5:00")
    log(PROGRESS)
    screen.until(FIRST)
    screen.until(SECOND)
    log(DONE)
    screen.now = 63.0  # no event comes: the clock goes on all the same
    screen.until("superopt: region 2 of 3, 1:05 of 5:00")
    log(replace(PROGRESS, best_us=7.0))
    screen.until("best 7.0 µs")
    assert NOTE not in screen.text
    screen.interrupted = True  # no event comes: it is drawn all the same
    screen.until(NOTE)
    log(StageEnded("superopt", 3.0, "done"))
    log(StageStarted("tune"))
    screen.until("tune: 1:05 of 5:00")
    assert screen.text.rindex(NOTE) > screen.text.rindex("tune: 1:05")
  ends = screen.file.getvalue()
  assert ends.rindex("\x1b[?25h") > ends.rindex("\x1b[?25l")  # the cursor is shown again


def test_a_narrow_terminal_cuts_lines():
  screen = Screen(terminal=True, width=50)
  with screen.log() as log:
    log(PROGRESS)
    screen.until("…")
  assert max(map(len, re.split(r"[\r\n]", screen.text))) <= 50


@pytest.mark.parametrize(("step_s", "seconds"), [(0.2, 23.0), (1.0, 23.0), (0.2, 4.0), (7.0, 23.0)])
def test_plain_lines_elsewhere(step_s, seconds):
  screen = Screen(terminal=False)
  with screen.log() as log:
    log(RunStarted(300.0, 1.0))
    log(StageStarted("superopt"))
    log(REGIONS)
    while screen.now < seconds:
      log(PROGRESS)
      screen.now += step_s
  lines = screen.text.splitlines()
  assert {re.sub(r"\d:\d\d of", "T of", line) for line in lines} <= {
    f"  superopt: region 1 of 3, T of 5:00; {FIRST}; {SECOND}"
  }
  assert len(lines) == int((seconds - 1e-6) // max(step_s, PLAIN_EVERY_S))
  assert "\x1b" not in screen.file.getvalue()


def test_plain_lines_start_anew_with_a_stage():
  screen = Screen(terminal=False)
  with screen.log() as log:
    log(PROGRESS)
    screen.now += PLAIN_EVERY_S - 1
    log(StageEnded("superopt", 4.0, ""))
    screen.now += 2
    log(PROGRESS)
  assert FIRST not in screen.text and "superopt" in screen.text


def test_a_stage_that_says_nothing_is_told_all_the_same():
  screen = Screen(terminal=False)
  with screen.log() as log:
    log.beat()
    log(RunStarted(300.0, 1.0))
    log(StageStarted("write"))
    for _ in range(3):
      log.beat()
      screen.now += SILENT_S / 2
    log.beat()
    log.beat()
  assert screen.text == "  write: 0:11 of 5:00\n"


def test_an_interruption_is_told_once_elsewhere():
  screen = Screen(terminal=False)
  with screen.log() as log:
    screen.interrupted = True
    log(PROGRESS)
    log(RegionDone("r", (), 1, 0, None, None))
  assert screen.text == f"{NOTE}\n"


def test_kernels_that_are_timed_are_counted_elsewhere_too():
  """Nothing but their ends is told there. Regions that take the place of refused ones are further ones."""
  screen = Screen(terminal=False)
  with screen.log() as log:
    log(RunStarted(3600.0, 0.0))
    log(StageStarted("tune"))
    log(RegionsStarted("tune", (("a", ("x",)), ("b", ("y",)))))
    for key in "abc":
      screen.now += PLAIN_EVERY_S + 1
      log(RegionTuned(key, (key,), 1.0, None))
      if key == "b":
        log(RegionsStarted("tune", (("c", ("z",)),)))
  assert screen.text.splitlines() == [
    "  tune: region 2 of 2, 0:06 of 1:00:00",
    "  tune: region 2 of 2, 0:12 of 1:00:00",
    "  tune: region 3 of 3, 0:18 of 1:00:00",
  ]


def test_a_run_inside_a_run_has_its_clock():
  """As where a lock is taken up after a run that was cut off."""
  screen = Screen(terminal=False)
  with screen.log() as log:
    log(RunStarted(60.0, 0.0))
    screen.now = 50.0
    log(RunStarted(60.0, 50.0))
    log(StageStarted("lock"))
    screen.now = 59.0
    log(RegionsStarted("lock", (("a", ("x",)),)))
  assert screen.text == "  lock: region 1 of 1, 0:59 of 1:00\n"


@pytest.mark.parametrize(
  ("seconds", "text"),
  [(0, "0:00"), (59.9, "0:59"), (61, "1:01"), (3600, "1:00:00"), (36061, "10:01:01"), (-1, "0:00")],
)
def test_minutes(seconds, text):
  assert minutes(seconds) == text


def test_verbose_says_what_became_of_every_region():
  screen = Screen(terminal=False)
  with screen.log(VERBOSE) as log:
    log(RegionTuned("k", ("x", "y"), 3.25, None))
    log(RegionTuned("k", ("x",), None, "KERNEL_WRONG"))
    log(RegionTuned("k", ("x",), 9.0, "NOT_FASTER"))
  assert screen.text.splitlines() == [
    "  k: 2 nodes, 3.2 µs", "  k: 1 nodes, no kernel (KERNEL_WRONG)", "  k: 1 nodes, 9.0 µs (NOT_FASTER)",
  ]  # fmt: skip


def test_quiet():
  for terminal in (False, True):
    screen = Screen(terminal=terminal)
    with screen.log(QUIET) as log:
      for _ in range(3):
        log(PROGRESS)
        screen.now += 100
      screen.interrupted = True
      log(StageEnded("superopt", 4.0, ""))
      assert screen.text == ""
      log(Warned("odd"))
    assert screen.text == "warning: odd\n"


def test_what_is_timed_while_others_are_searched_is_counted_apart():
  whole = Whole(lambda: 0.0)
  whole.note(StageStarted("superopt"))
  whole.note(RegionsStarted("superopt", tuple((str(n), ("a",)) for n in range(4))))
  whole.note(RegionDone("0", ("a",), 1, 1, 1.0, None))
  whole.note(RegionsStarted("tune", (("0", ("a",)), ("1", ("a",)))))
  whole.note(RegionTuned("0", ("a",), 1.0, None))
  assert whole.line == "superopt: region 2 of 4"
  whole.note(StageStarted("tune"))
  assert whole.line == "tune: region 2 of 2"
