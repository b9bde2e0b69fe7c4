"""Streams that are closed, full or without a reader, each of a real process."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_onnx.errors import Exit

ROOT = Path(__file__).parents[1]
#: The number of the first file that a command opens.
OPENS = "import os; from mirage_onnx.standard_streams import keep_streams as k; k(); "


def run(code, streams):
  command = f"{sys.executable} -c '{code}' {streams}"
  return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_no_file_has_the_number_of_a_stream(closed, tmp_path):
  """What a library says would be in a model, else."""
  file = tmp_path / "file"
  write = (
    f'f = os.open("{file}", 65); os.write(f, str(f).encode()); print("said", file=__import__("sys").stderr)'
  )
  assert run(OPENS + write, closed).returncode == 0
  assert int(file.read_text()) > 2


MESSAGE = 'import sys; from mirage_onnx.cli import main; sys.exit(main(["inspect", "no.onnx"]))'


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "2> >(exec true; :)", "2</dev/null", "2>&1 | :"])
def test_what_stderr_does_not_take_changes_no_exit_code(stderr):
  done = run(MESSAGE, f"{stderr}; exit ${{PIPESTATUS[0]}}")
  assert (done.returncode, done.stdout) == (Exit.INPUT, "")


def test_messages_are_whole_and_in_order():
  done = run(OPENS + 'import sys; print("ä" * 9999, file=sys.stderr); os.write(2, b"end")', "")
  assert done.stderr == "ä" * 9999 + "\nend"


def test_a_terminal_stays_one():
  ours, theirs = pty.openpty()
  subprocess.run(
    [sys.executable, "-c", OPENS + "import sys; print(sys.stderr.isatty(), file=sys.stderr)"],
    cwd=ROOT, stderr=theirs, check=True,
  )  # fmt: skip
  assert os.read(ours, 99).split() == [b"True"]
  os.close(ours)
  os.close(theirs)
