"""The number of cores is that of the process, not of the machine."""

import os
import subprocess
import sys

import pytest

from mirage_onnx.cores import available_cores

ONE_CORE = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from mirage_onnx.cores import available_cores
print(available_cores())
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_follows_affinity():
  assert available_cores() == len(os.sched_getaffinity(0))
  done = subprocess.run([sys.executable, "-c", ONE_CORE], capture_output=True, text=True, check=True)
  assert int(done.stdout) == 1


def test_without_affinity(monkeypatch):
  monkeypatch.delattr(os, "sched_getaffinity", raising=False)
  monkeypatch.setattr(os, "cpu_count", lambda: None)
  assert available_cores() == 1
