"""What a measurement was made on, and that one process measures at a time."""

import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mirage_onnx import deadline
from mirage_onnx.tune import device, machine
from mirage_onnx.tune.device import PresentGpu
from mirage_onnx.tune.machine import driver_version, gpu_alone, machine_of, packages

GPU = PresentGpu("NVIDIA H200", (9, 0), 132, 232448)


def test_what_it_says():
  found = machine_of(GPU, "580.1").text
  assert found["gpu"] == "NVIDIA H200 (sm_90, 132 multiprocessors)"
  assert "onnxruntime" in found["onnxruntime"] and found["driver"] == "580.1"
  assert machine_of(replace(GPU, multiprocessors=16), "580.1").text != found
  assert machine_of(GPU, "580.2").text != found


def test_the_driver(tmp_path):
  file = tmp_path / "version"
  assert driver_version(13000, file) == "unknown, CUDA 13.0"
  file.write_text(
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\nGCC version: 12.2.0\n"
  )
  assert driver_version(13010, file) == "580.82.07, CUDA 13.1"
  file.write_bytes(b"\xff\xfe")
  assert driver_version(0, file) == "unknown, CUDA 0.0"


def test_packages():
  assert packages(("no-such-package", "numpy")).startswith("numpy ")
  assert packages(("no-such-package",)) == ""


def test_the_protocol_is_the_source_of_what_times(tmp_path, monkeypatch):
  before = machine.protocol_digest()
  for name in machine.PROTOCOL_FILES:
    (tmp_path / name).write_bytes((machine.Path(machine.__file__).with_name(name)).read_bytes())
  monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))
  machine.protocol_digest.cache_clear()
  assert machine.protocol_digest() == before
  (tmp_path / "race.py").write_text("SAMPLES = 16\n")
  machine.protocol_digest.cache_clear()
  assert machine.protocol_digest() != before
  monkeypatch.undo()
  machine.protocol_digest.cache_clear()


HOLDS = """
import sys
from pathlib import Path
from mirage_onnx.tune.machine import gpu_alone
with gpu_alone(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def another(tmp_path):
  """Another process that has the GPU until its input is closed."""
  process = subprocess.Popen(
    [sys.executable, "-c", HOLDS, str(tmp_path)],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
  )  # fmt: skip
  assert process.stdout.readline() == "held\n"
  yield process
  process.kill()
  process.wait()
  process.stdin.close()
  process.stdout.close()


def test_one_process_measures_at_a_time(tmp_path, another, monkeypatch):
  """Whoever waits looks at the time, and the other one goes on meanwhile."""
  looks = []

  def looked():
    looks.append(another.poll())
    if len(looks) == 3:
      another.stdin.close()

  monkeypatch.setattr(machine, "POLL_S", 0.01)
  monkeypatch.setattr(machine.deadline, "check", looked)
  with gpu_alone(tmp_path):
    assert len(looks) >= 3 and looks[:3] == [None] * 3
  with gpu_alone(tmp_path):
    pass


@pytest.mark.usefixtures("another")
def test_who_waits_for_the_gpu_ends_in_time(tmp_path):
  with pytest.raises(deadline.OverdueError), deadline.until(time.monotonic() + 0.3), gpu_alone(tmp_path):
    pytest.fail("it was not free")


def test_without_a_cache_nobody_waits(tmp_path, monkeypatch):
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  with gpu_alone():
    assert not (tmp_path / "cache").exists()
  (tmp_path / "file").write_text("no folder")
  with gpu_alone(tmp_path / "file"):  # nor where it cannot be written
    pass


def test_threads_take_turns_and_who_is_inside_may_ask_again(tmp_path):
  """A thread that works out values on the GPU waits for the one that times, which asks twice."""
  order = []
  inside = threading.Event()

  def other():
    assert inside.wait(60)
    with gpu_alone(tmp_path):
      order.append("other")

  thread = threading.Thread(target=other)
  thread.start()
  with gpu_alone(tmp_path), gpu_alone(tmp_path):
    inside.set()
    time.sleep(0.2)
    order.append("first")
  thread.join(60)
  assert order == ["first", "other"]
  with gpu_alone(tmp_path):  # and it is free again
    pass


@pytest.mark.usefixtures("another")  # of GPU 0, for no driver says which
def test_other_gpus_are_not_waited_for(tmp_path, monkeypatch):
  """Whatever their numbers are in a process: of one GPU all wait for each other."""
  monkeypatch.setattr(machine, "gpu_id", lambda: "ab12")
  with deadline.until(time.monotonic() + 60), gpu_alone(tmp_path):
    assert {p.name for p in tmp_path.glob("gpu-*")} == {"gpu-0.lock", "gpu-ab12.lock"}


def test_the_id_of_a_gpu(monkeypatch):
  class Driver:
    def cuInit(self, flags):  # noqa: N802
      return (0,)

    def cuDeviceGet(self, number):  # noqa: N802
      return 0, number

    def cuDeviceGetUuid(self, device):  # noqa: N802
      return 0, SimpleNamespace(bytes=b"\x01\xab" * 8)

  monkeypatch.setattr(device, "_driver", Driver)
  device.gpu_id.cache_clear()
  assert device.gpu_id() == "01ab" * 8
  monkeypatch.setattr(device, "_driver", lambda: SimpleNamespace(cuInit=lambda flags: (100,)))
  device.gpu_id.cache_clear()
  assert device.gpu_id() == "0"
  monkeypatch.undo()
  device.gpu_id.cache_clear()
