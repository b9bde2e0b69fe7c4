"""Events as log lines: which appear at which verbosity."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from mirage_onnx.events import RegionDone, StageEnded, StageStarted, Warned
from mirage_onnx.report.log import EventLog, stderr_console
from mirage_onnx.report.log_file import write_log

EVENTS = [
  StageStarted("importer"),
  Warned("the [odd] name"),
  StageEnded("importer", 0.25, "12 nodes"),
  RegionDone("r0", ("a", "b"), 100, 3, 9.5, None),
  RegionDone("r1", ("c",), 7, 0, None, "NO_CANDIDATE"),
]


@pytest.mark.parametrize("verbosity", [0, 1, 2])
def test_lines(verbosity, golden):
  console = Console(file=io.StringIO(), width=160)
  with EventLog(console, verbosity) as log:
    for event in EVENTS:
      log(event)
  assert console.file.getvalue() == golden


def test_spinner_ends_on_a_terminal():
  console = Console(file=io.StringIO(), width=160, force_terminal=True)
  with EventLog(console) as log:
    log(StageStarted("superopt"))
  text = console.file.getvalue()
  assert "\x1b[?25l" in text  # the cursor is hidden, then shown again
  assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_a_file_gets_whole_lines():
  assert stderr_console().width >= 160


def test_a_log_takes_any_text(tmp_path, monkeypatch):
  monkeypatch.setenv("MIRAGE_LOG_DIR", str(tmp_path))
  path = write_log("no UTF-8: \udcff, and no ASCII: µ")
  assert "no UTF-8: \\udcff, and no ASCII: µ" in Path(path).read_text(encoding="utf-8")
