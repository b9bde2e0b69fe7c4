"""``optimize`` in real processes: Ctrl-C keeps the best, and whatever ended a run, it goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import onnx
import pytest

from mirage_onnx.cores import available_cores
from mirage_onnx.errors import Exit

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("hears_interrupts")]

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "bert.onnx"
STEPS = 30


def command(output, budget_s):
  options = ["--target", "h200", "--budget", str(budget_s)]
  return [
    sys.executable,
    "-m",
    "mirage_onnx",
    "optimize",
    str(MODEL),
    "-o",
    str(output),
    *options,
  ]


def steps(journal):
  return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def until(holds, seconds=600.0):
  end = time.monotonic() + seconds
  while not holds():
    assert time.monotonic() < end
    time.sleep(0.05)


def is_gone(pid):
  """A process that nobody waits for stays as a zombie."""
  try:
    return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
  except (FileNotFoundError, ProcessLookupError):
    return True


@contextmanager
def searching(output):
  """A run in the middle of its search, in a process group of its own as under a shell.

  And the seconds until then, of this machine.
  """
  journal = output.with_name(f"{output.name}.journal")
  start = time.monotonic()
  process = subprocess.Popen(
    command(output, 3000), cwd=ROOT, stderr=subprocess.PIPE, text=True, process_group=0
  )
  assert process.stderr is not None
  workers = []
  try:
    until(lambda: steps(journal) >= STEPS or process.poll() is not None)
    assert process.poll() is None
    took = time.monotonic() - start
    for task in Path(f"/proc/{process.pid}/task").iterdir():
      with suppress(OSError):  # a thread that has ended meanwhile
        workers += map(int, (task / "children").read_text().split())
    yield process, took
    until(lambda: all(map(is_gone, workers)))
  finally:
    process.kill()
    process.wait()
    process.stderr.close()
  assert workers or available_cores() == 1


def goes_on(output, took):
  """Run the same command again, shortly; how many steps it took from the journal.

  ``took``: seconds, of which it needs less for what is before its search.
  """
  done = subprocess.run(command(output, 6 + 2 * took), cwd=ROOT, capture_output=True, text=True, check=True)
  found = re.search(r"goes on from (\d+) finished steps in ", done.stderr)
  assert found, done.stderr
  return int(found[1])


def test_ctrl_c_keeps_the_best_and_the_same_command_goes_on(tmp_path):
  output, journal = tmp_path / "out.onnx", tmp_path / "out.onnx.journal"
  with searching(output) as (process, took):
    os.killpg(process.pid, signal.SIGINT)
    text = process.stderr.read()
    assert process.wait() == Exit.INTERRUPTED
  assert text.endswith("interrupted\n") and "Traceback" not in text
  assert f"the same command goes on from {journal}" in text
  assert onnx.load(output).graph.node
  before = steps(journal)
  assert before >= STEPS and goes_on(output, took) == before
  assert sorted(os.listdir(tmp_path)) == ["out.onnx", "out.onnx.lock"]


def test_killed_it_goes_on(tmp_path):
  output, journal = tmp_path / "out.onnx", tmp_path / "out.onnx.journal"
  with searching(output) as (process, took):
    process.send_signal(signal.SIGKILL)
    process.wait()
  assert os.listdir(tmp_path) == [journal.name]
  assert goes_on(output, took) >= STEPS
  assert sorted(os.listdir(tmp_path)) == ["out.onnx", "out.onnx.lock"]


def test_ctrl_c_twice_aborts(tmp_path):
  output = tmp_path / "out.onnx"
  with searching(output) as (process, _):
    process.send_signal(signal.SIGINT)
    time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.stderr.read().splitlines()[-1] == "interrupted"
    assert process.wait() == Exit.INTERRUPTED
  assert steps(tmp_path / "out.onnx.journal") >= STEPS
