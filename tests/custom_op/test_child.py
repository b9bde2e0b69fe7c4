"""A child process that answers, fails, crashes or hangs: always a value, never an exception."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import child_work
import pytest

from mirage_onnx.custom_op.child import Child, Ended, in_child


@pytest.mark.parametrize("request_", ["answer", "print"])
def test_an_answer(request_):
  assert in_child("child_work", request_, 60) == (request_, 3)


@pytest.mark.parametrize(
  ("request_", "how"),
  [("fail", "ValueError: two lines"), ("crash", "ended by SIGSEGV"), ("exit", "ended with status 7")],
)
def test_no_answer(request_, how):
  found = in_child("child_work", request_, 60)
  assert isinstance(found, Ended) and not found.late
  assert found.at == f"the step {request_}" and how in str(found)


def test_no_end():
  start = time.monotonic()
  found = in_child("child_work", "hang", 2)
  assert isinstance(found, Ended) and found.late and "no end after 2 s" in found.how
  assert time.monotonic() - start < 300  # of 600


def test_a_module_that_is_not_there():
  found = in_child("there_is_no_such_module", "x", 60)
  assert isinstance(found, Ended) and found.at == "its start"


PARENT = """
import os, signal, sys, threading
from mirage_onnx.custom_op.child import in_child
threading.Timer(float(sys.argv[1]), os.kill, (os.getpid(), signal.SIGKILL)).start()
in_child("child_work", "late", 60)
"""


@pytest.mark.parametrize("after_s", [0.0, 1.5])
def test_a_parent_that_is_killed(after_s):
  """The child has nobody to tell, and says nothing."""
  support = Path(child_work.__file__).parent
  done = subprocess.run(
    [sys.executable, "-c", PARENT, str(after_s)],
    env={**os.environ, "PYTHONPATH": os.pathsep.join([str(support), *sys.path])},
    capture_output=True, text=True, timeout=60, check=False,
  )  # fmt: skip
  assert done.returncode == -signal.SIGKILL
  assert done.stderr == ""


def test_one_process_for_many_requests_and_a_new_one_behind_a_crash():
  child = Child("child_work")
  try:
    child.begin()
    first = child._worker.pid
    assert child.ask("answer", 60) == ("answer", 3) and "ValueError" in str(child.ask("fail", 60))
    assert child.ask("print", 60) == ("print", 3) and child._worker.pid == first
    assert "SIGSEGV" in str(child.ask("crash", 60)) and child._worker is None
    assert child.ask("hang", 2).late
    assert child.ask("answer", 60) == ("answer", 3) and child._worker.pid != first
  finally:
    child.close()
  assert child._worker is None
