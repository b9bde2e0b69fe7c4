"""The compiler is the newest that the driver takes, and then it is that one that compiles."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mirage_onnx import nvrtc_choice
from mirage_onnx.nvrtc_choice import Nvrtc, chosen, chosen_version, installed, suited

NEW = Nvrtc("nvidia-cuda-nvrtc", "13.5.37", Path("new"))
OLD = Nvrtc("nvidia-cuda-nvrtc-cu12", "12.9.86", Path("old"))


@pytest.mark.parametrize(
  ("compilers", "serves", "wanted"),
  [
    ((NEW, OLD), 0, NEW),  # no driver: the file is for another machine
    ((NEW, OLD), 13000, NEW),  # a newer minor version is taken
    ((NEW, OLD), 14010, NEW),
    ((NEW, OLD), 12080, OLD),
    ((NEW,), 12080, NEW),  # refused by DRIVER_TOO_OLD where it matters
    ((OLD,), 13000, OLD),
    ((), 13000, None),
  ],
)
def test_the_newest_that_the_driver_takes(compilers, serves, wanted):
  assert suited(compilers, serves) is wanted


def test_what_is_installed_here():
  first = installed()[0]
  assert first.package == "nvidia-cuda-nvrtc" and first.path.is_file()
  assert first.version == metadata.version("nvidia-cuda-nvrtc") == chosen_version()
  assert chosen() == first, "no driver here serves CUDA 12 only"


def test_without_any_package(monkeypatch):
  monkeypatch.setattr(nvrtc_choice, "_folders", list)
  assert installed() == ()


def test_one_that_lacks_an_option_is_passed_over(monkeypatch):
  monkeypatch.setattr(nvrtc_choice.metadata, "version", lambda _: "12.8.93")
  assert installed() == ()
  monkeypatch.setattr(nvrtc_choice.metadata, "version", lambda _: "12.9.86")
  assert [c.version for c in installed()] == ["12.9.86"]


CHILD = """
from mirage_onnx import nvrtc_choice
nvrtc_choice.driver_serves = lambda: 12080
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.target import get_target
made = compile_cubin('extern "C" __global__ void nop() {}', get_target("h200"), name="nop")
print(len(made.image) > 0, nvrtc_choice.chosen_version())
print(sorted({line.split()[-1] for line in open("/proc/self/maps") if "libnvrtc.so" in line}))
"""


def test_an_older_one_is_loaded_for_an_older_driver(tmp_path):
  """A package of CUDA 12's name beside the one that is here (with the same library in it)."""
  here = installed()[0].path
  folder = tmp_path / "nvidia" / "cuda_nvrtc" / "lib"
  folder.mkdir(parents=True)
  for path in here.parent.glob("libnvrtc*"):
    (folder / path.name.replace("libnvrtc.so.13", "libnvrtc.so.12")).write_bytes(path.read_bytes())
  info = tmp_path / "nvidia_cuda_nvrtc_cu12-12.9.86.dist-info"
  info.mkdir()
  (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cuda-nvrtc-cu12\nVersion: 12.9.86\n")
  root = Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, "-c", CHILD], capture_output=True, text=True, check=False,
    env={"PYTHONPATH": f"{root}:{tmp_path}", "MIRAGE_ONNX_CACHE": "off", "PATH": "/usr/bin:/bin"},
  )  # fmt: skip
  said = done.stdout.splitlines()
  assert said[:1] == ["True 12.9.86"], done.stderr
  assert said[1] == str([str(folder / "libnvrtc.so.12")])
