"""The stand-in for libcuda: what it answers, and what reaches Python."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from mirage_onnx.emulator.driver import Driver, DriverLaunch, open_driver
from mirage_onnx.target import H200


class Attribute(ctypes.Structure):
  _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint64 * 8))


class Config(ctypes.Structure):
  _fields_ = (
    ("grid", ctypes.c_uint * 3),
    ("block", ctypes.c_uint * 3),
    ("smem", ctypes.c_uint),
    ("stream", ctypes.c_void_p),
    ("attributes", ctypes.POINTER(Attribute)),
    ("count", ctypes.c_uint),
  )


class Host(ctypes.Structure):
  _fields_ = (
    ("counter", ctypes.c_uint64),
    ("numbers", ctypes.c_uint32 * 4),
    ("bytes", ctypes.POINTER(ctypes.c_uint64)),
  )


#: A device of its own: the driver of the H200 may be in use by emulated sessions.
TARGET = replace(H200, capability=(9, 9))


@pytest.fixture(scope="module")
def driver():
  return Driver(TARGET)


@pytest.fixture
def cuda(driver):
  return ctypes.CDLL(str(driver.path))


def kernel(cuda, name):
  library, found, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
  zero = (None, None, 0, None, None, 0)
  assert cuda.cuLibraryLoadData(ctypes.byref(library), b"any image", *zero) == 0
  assert cuda.cuLibraryGetKernel(ctypes.byref(found), library, name) == 0
  assert cuda.cuKernelGetFunction(ctypes.byref(function), found) == 0
  return function


def launch(cuda, name, counter, *, host=True):
  values = (ctypes.c_uint64 * 2)(11, 22)
  params = (ctypes.c_void_p * 2)(*(ctypes.addressof(values) + 8 * i for i in range(2)))
  sizes = (ctypes.c_uint64 * 2)(64, 0)
  told = Host(counter, (3, 1, 2, 2), sizes)
  attributes = (Attribute * 2)()
  attributes[0].id, attributes[0].value[0] = 4, 8
  attributes[1].id, attributes[1].value[0] = 0x4D475500, ctypes.addressof(told)
  config = Config((16, 2, 1), (128, 1, 1), 4096, None, attributes, 1 + host)
  return int(cuda.cuLaunchKernelEx(ctypes.byref(config), kernel(cuda, name), params, None))


def message(cuda):
  text = ctypes.c_char_p()
  assert cuda.cuGetErrorName(719, ctypes.byref(text)) == 0
  return (text.value or b"").decode()


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_it_is_one_device_of_the_targets_kind(capability):
  target = replace(H200, capability=capability, smem_bytes=166912, has_clusters=False)
  cuda = ctypes.CDLL(str(Driver(target).path))
  count, value = ctypes.c_int(), ctypes.c_int()
  assert cuda.cuInit(0) == cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
  assert count.value == 1
  for attribute, wanted in zip((75, 76, 97, 111, 120), (*capability, 166912, 1024, 0), strict=True):
    assert cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
    assert value.value == wanted
  assert cuda.cuDeviceGetAttribute(ctypes.byref(value), 1, 0) != 0


def test_there_is_one_driver_in_the_process():
  assert open_driver(TARGET) is open_driver(TARGET)


def test_a_launch_arrives_whole(driver, cuda):
  seen = []
  driver.set_runner(seen.append)
  assert launch(cuda, b"some_kernel", 7) == 0
  assert seen == [
    DriverLaunch(
      "some_kernel", (16, 2, 1), (128, 1, 1), 8, 4096,
      counter=7, plan=3, variant=1, launch=2, args=((11, 64), (22, 0)),
    )
  ]  # fmt: skip


def test_an_exception_is_the_drivers_message(driver, cuda):
  def runner(_):
    raise ValueError("first line\nsecond line " + "x" * 5000)

  driver.set_runner(runner)
  assert launch(cuda, b"k", 1) != 0
  assert message(cuda).startswith("ValueError: first line second line xxx")


def test_who_launches_must_be_said(driver, cuda):
  driver.set_runner(lambda _: None)
  assert launch(cuda, b"k", 1, host=False) != 0
  assert "does not say whose launch it is" in message(cuda)


def test_messages_belong_to_their_thread(driver, cuda):
  start, found = threading.Barrier(4), {}

  def runner(launched):
    start.wait(10)  # all four are in the driver at once
    raise ValueError(f"launch {launched.counter}")

  def work(i):
    launch(cuda, b"k", i)
    found[i] = message(cuda)

  driver.set_runner(runner)
  with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
  assert found == {i: f"ValueError: launch {i}" for i in range(4)}
