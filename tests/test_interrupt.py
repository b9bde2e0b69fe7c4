"""Ctrl-C in real processes: the first is a question, the second is the end."""

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from mirage_onnx.interrupt import Interrupt

pytestmark = pytest.mark.usefixtures("hears_interrupts")

POLLING = """
import signal, time
from mirage_onnx.interrupt import Interrupt
before = signal.getsignal(signal.SIGINT)
with Interrupt() as interrupt:
    stop = interrupt.then("best so far")
    assert stop() is None
    print("ready", flush=True)
    end = time.monotonic() + 60
    while stop() is None and time.monotonic() < end:
        sum(range(1000))
    print(stop(), interrupt.asked, flush=True)
    %s
assert signal.getsignal(signal.SIGINT) is before
print("after", flush=True)
time.sleep(%d)
"""


@contextmanager
def running(*values):
  process = subprocess.Popen(
    [sys.executable, "-c", POLLING % values],
    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip
  assert process.stdout is not None and process.stderr is not None
  try:
    lines = (line.rstrip() for line in process.stdout)
    assert next(lines) == "ready"
    process.send_signal(signal.SIGINT)
    assert next(lines) == "best so far True"
    yield process, lines
  finally:
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def last_line(process):
  return process.stderr.read().splitlines()[-1]


def test_once_keeps_the_best():
  with running("pass", 0) as (process, lines):
    assert next(lines) == "after"
    assert process.wait() == 0


def test_twice_aborts():
  with running("time.sleep(60)", 0) as (process, lines):
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert last_line(process) == "KeyboardInterrupt"
    assert process.wait() != 0 and list(lines) == []
    assert time.monotonic() - start < 30


def test_afterwards_it_is_as_before():
  with running("pass", 60) as (process, lines):
    assert next(lines) == "after"
    process.send_signal(signal.SIGINT)
    assert last_line(process) == "KeyboardInterrupt"


def test_an_ignored_signal_stays_ignored():
  """As for a background job of a shell."""
  present = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    with Interrupt() as interrupt:
      signal.raise_signal(signal.SIGINT)
      signal.raise_signal(signal.SIGINT)
      assert not interrupt.asked
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
  finally:
    signal.signal(signal.SIGINT, present)


def test_one_inside_another():
  with Interrupt() as outer:
    with Interrupt() as inner:
      signal.raise_signal(signal.SIGINT)
      with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert inner.asked and not outer.asked
    signal.raise_signal(signal.SIGINT)
    assert outer.asked


def test_in_another_thread_it_does_nothing():
  before = signal.getsignal(signal.SIGINT)
  found = []

  def enter():
    with Interrupt() as interrupt:
      found.append((interrupt.asked, signal.getsignal(signal.SIGINT)))

  thread = threading.Thread(target=enter)
  thread.start()
  thread.join()
  assert found == [(False, before)] and signal.getsignal(signal.SIGINT) is before
