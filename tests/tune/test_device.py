"""Which GPU has a profile: the one of its name and size, not any with the same instructions."""

from types import SimpleNamespace

import pytest
from refused import refused

import mirage_onnx
from mirage_onnx.target import H100, H200
from mirage_onnx.tune import device
from mirage_onnx.tune.device import no_profile, present_gpu, present_target, runnable_target


def driver(name, capability=(9, 0), multiprocessors=132, code=0):
  """A stand-in for cuda.bindings.driver."""
  attributes = SimpleNamespace(
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=2,
  )
  values = (*capability, multiprocessors)
  return SimpleNamespace(
    CUdevice_attribute=attributes,
    cuInit=lambda flags: (code,),
    cuDeviceGet=lambda i: (0, i),
    cuDeviceGetAttribute=lambda a, d: (0, values[a]),
    cuDeviceGetName=lambda size, d: (0, name.encode() + bytes(size - len(name))),
  )


@pytest.fixture
def present(monkeypatch):
  def put(*args, **more):
    monkeypatch.setattr(device, "_driver", lambda: driver(*args, **more))

  return put


def test_an_h200(present):
  present("NVIDIA H200")
  assert present_target() is H200
  assert str(present_gpu()) == "NVIDIA H200 (sm_90, 132 multiprocessors)"


def test_an_h100_runs_what_is_made_for_an_h200(present):
  present("NVIDIA H100 80GB HBM3")
  assert present_target() is H100 and runnable_target().arch == H100.arch


@pytest.mark.parametrize(
  ("name", "multiprocessors"),
  [
    ("NVIDIA H100 PCIe", 114),
    ("NVIDIA GH200 480GB", 132),
    ("NVIDIA H20", 78),
    ("NVIDIA H200 NVL", 132),
    ("NVIDIA H200 MIG 3g.71gb", 60),
    ("NVIDIA H200", 60),  # a part of one under its whole name
  ],
)
def test_others_with_the_same_instructions_are_none(present, name, multiprocessors):
  present(name, multiprocessors=multiprocessors)
  assert present_target() is None and runnable_target() is H200
  with refused("NO_GPU") as error:
    mirage_onnx.optimize("unread.onnx", target="local")
  line = error.value.line()
  assert f"{name} (sm_90, {multiprocessors} multiprocessors)" in line
  assert "h200 is NVIDIA H200 with 132" in line and "--target h200" in line


def test_an_h200_of_another_capability_is_none(present):
  present("NVIDIA H200", capability=(10, 0))
  assert present_target() is runnable_target() is None


def test_no_gpu(present, monkeypatch):
  present("NVIDIA H200", code=100)
  assert present_gpu() is None and present_target() is None
  assert no_profile() == "there is no usable GPU here"

  def missing():
    raise RuntimeError("no libcuda")

  monkeypatch.setattr(device, "_driver", missing)
  assert present_target() is None
