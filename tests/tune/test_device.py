"""Which profile a GPU has: that of its name and size, else one of its architecture and its size."""

from dataclasses import replace

import fake_driver
import pytest

from mirage_onnx.target import H100, H200, Rated
from mirage_onnx.targets import ARCHITECTURES, get_target
from mirage_onnx.tune import device
from mirage_onnx.tune.device import PresentGpu, present_gpu, present_gpus, present_target


@pytest.fixture
def present(monkeypatch):
  def put(*gpus, **more):
    monkeypatch.setattr(device, "_driver", lambda: fake_driver.driver(*gpus, **more))

  return put


def test_a_gpu_with_a_row(present):
  present(fake_driver.H200)
  assert present_target() is H200
  assert str(present_gpu()) == "NVIDIA H200 (sm_90, 132 multiprocessors)"
  present(fake_driver.H100)
  assert present_target() is H100
  present(fake_driver.RTX4090)
  assert present_target() is get_target("rtx4090")


@pytest.mark.parametrize(
  ("name", "multiprocessors"),
  [
    ("NVIDIA H100 NVL", 132),
    ("NVIDIA H20", 78),
    ("NVIDIA H200 NVL", 132),
    ("NVIDIA H200 MIG 3g.71gb", 60),
    ("NVIDIA H200", 60),  # a part of one under its whole name, as a limit of MPS may show it
  ],
)
def test_others_with_the_same_instructions_are_not_it(present, name, multiprocessors):
  present((name, (9, 0), multiprocessors, 227 * 1024))
  found = present_target()
  assert found.name == f"sm_90ax{multiprocessors}" and found.multiprocessors == multiprocessors
  assert found.rated is Rated.DATASHEET and get_target(found.name) == found
  assert (found.arch, found.suffix, found.instructions) == (H200.arch, H200.suffix, H200.instructions)


@pytest.mark.parametrize("architecture", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_a_gpu_of_every_architecture_has_a_profile(present, architecture):
  present(("something new", architecture.capability, 17, architecture.smem_bytes))
  found = present_target()
  assert (found.suffix, found.smem_bytes) == (architecture.suffix, architecture.smem_bytes)
  assert found.multiprocessors == 17


@pytest.mark.parametrize(
  ("gpu", "why"),
  [
    (fake_driver.T4, "sm_80 (Ampere) or newer"),
    (("a later one", (13, 0), 200, 227 * 1024), "an architecture without a row"),
    (("half the memory", (8, 0), 108, 80 * 1024), "81920 bytes of shared memory, not 166912"),
  ],
)
def test_a_gpu_without_kernels(present, gpu, why):
  present(gpu)
  assert present_target() is None and why in present_gpu().why_none


def test_an_h200_of_another_capability_is_none(present):
  present(("NVIDIA H200", (10, 0), 132, 227 * 1024))
  assert present_target().name == "sm_100ax132"


def test_what_the_driver_says_of_a_gpu_without_a_row(present):
  """Its L2 and its clock are in its profile, and not the share of another chip's."""
  said = {"L2_CACHE_SIZE": 3 << 20, "CLOCK_RATE": 1777000, "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536}
  present(fake_driver.RTX3060, more=said)
  found, of_name = present_target(), get_target("sm_86x28")
  assert (found.l2_bytes, found.cycles_per_us) == (3 << 20, 1777.0)
  assert replace(found, l2_bytes=of_name.l2_bytes, cycles_per_us=of_name.cycles_per_us) == of_name
  present(fake_driver.RTX4090, more=said)  # a row has its own figures
  assert present_target() is get_target("rtx4090")


@pytest.mark.parametrize(
  ("gpu", "said", "why"),
  [
    (fake_driver.PART, {"CLUSTER_LAUNCH": 0}, "it has no clusters"),
    (fake_driver.H200, {"CLUSTER_LAUNCH": 0}, "it has no clusters"),  # a row, but not all of it
    (fake_driver.RTX3060, {"MAX_REGISTERS_PER_MULTIPROCESSOR": 32768}, "have 32768 registers, not 65536"),
  ],
)
def test_a_gpu_that_lacks_what_its_architecture_has(present, gpu, said, why):
  present(gpu, more=said)
  assert present_target() is None and why in present_gpu().why_none
  present(gpu, more={})
  assert present_target() is not None


@pytest.mark.parametrize(
  ("name", "mb"),
  [("h200", 256), ("h100", 256), ("b200", 256), ("l4", 256), ("a100", 240), ("a10", 64), ("orin", 64)],
)
def test_what_empties_the_l2(name, mb):
  """Many times what it holds; as much as was measured with on an H100 and an H200."""
  target = get_target(name)
  assert device.flush_bytes(target) == mb << 20 >= 2 * target.l2_bytes
  assert 1.25 * target.l2_bytes <= device.look_flush_bytes(target) <= device.flush_bytes(target)


def test_the_first_of_several(present):
  present(fake_driver.RTX3060, fake_driver.H200)
  assert present_gpu() == PresentGpu(*fake_driver.RTX3060) and len(present_gpus()) == 2
  assert replace(present_gpus()[1], name="x").multiprocessors == 132


def test_no_gpu(present, monkeypatch):
  present(fake_driver.H200, code=100)
  assert present_gpu() is None and present_target() is None
  present()
  assert present_gpu() is None

  def missing():
    raise RuntimeError("no libcuda")

  monkeypatch.setattr(device, "_driver", missing)
  assert present_target() is None
