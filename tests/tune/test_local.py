"""``--target local``: rates that were measured once, or one line that says what is wrong here."""

from dataclasses import replace

import fake_driver
import msgspec
import pytest
from refused import refused

import mirage_onnx
from mirage_onnx import events
from mirage_onnx.target import H100, H200, Rated
from mirage_onnx.targets import get_target
from mirage_onnx.tune import device, local
from mirage_onnx.tune.baseline import load_table
from mirage_onnx.tune.chip_rates import ChipRates
from mirage_onnx.tune.local import local_target, others_here
from mirage_onnx.tune.machine import present_machine
from mirage_onnx.tune.operator_table import OperatorTimes
from mirage_onnx.tune.rates import Rates, keep_rates, kept_rates

TABLE = OperatorTimes("1.31.1", {"Add": ((512, 1.0),)}, ((1, 64, 64, 2.0),))
FOUND = Rates(1.2, 2.5, 0.33, 48.0, (), ChipRates(1.7, {"f16": 40.0}, 0.07), TABLE)


@pytest.fixture
def present(monkeypatch, tmp_path):
  """Call it with what the driver shows; the list says on what rates were measured."""
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)
  monkeypatch.delenv(local.VISIBLE, raising=False)
  monkeypatch.setattr(local, "_nvrtc_major", lambda: 13)
  monkeypatch.setattr(local, "Gpu", lambda target: target)
  measured = []
  monkeypatch.setattr(local, "measure_rates", lambda gpu: measured.append(gpu.name) or FOUND)

  def put(*gpus, **more):
    monkeypatch.setattr(device, "_driver", lambda: fake_driver.driver(*gpus, **more))
    return measured

  return put


def test_a_measured_row_is_taken_as_it_is(present):
  measured = present(fake_driver.H200)
  assert local_target() is H200 and not measured


@pytest.mark.parametrize(
  ("gpu", "name"),
  [(fake_driver.RTX3060, "sm_86x28"), (fake_driver.PART, "sm_90ax60"), (fake_driver.RTX4090, "rtx4090")],
)
def test_others_are_measured_once(present, gpu, name):
  measured = present(gpu)
  found, row = local_target(), get_target(name)
  assert measured == [name] and local_target() == found and measured == [name]
  assert (found.stream_tbps, found.mma_tflops, found.launch_us) == (0.33, 48.0, 1.2)
  assert (found.l2_tbps, found.barrier_us) == (1.258, 0.07)  # 1.7 in pure reads
  assert load_table(found).matmul_us(1, 64, 64) == 2.0
  assert found.rated is Rated.MEASURED and row.rated is Rated.DATASHEET
  assert (found.name, found.arch, found.smem_bytes) == (row.name, row.arch, row.smem_bytes)


def test_rates_without_a_table_are_of_an_older_version(present):
  measured = present(fake_driver.RTX3060)
  keep_rates(present_machine().text, msgspec.structs.replace(FOUND, chip=None, table=None))
  assert local_target().l2_tbps == 1.258 and measured == ["sm_86x28"]
  assert kept_rates(present_machine().text) == FOUND


def test_a_measured_row_gets_the_table_that_calibrate_left(present):
  present(fake_driver.H200)
  keep_rates(present_machine().text, FOUND)
  found = local_target()
  assert found == replace(H200, table=TABLE.text()) and load_table(found).op_us("Add", 512) == 1.0


def test_l2_is_what_the_rows_say_of_kernels():
  """A GPU with a measured row, calibrated as one without, gets the row's rate: costs are fitted to that."""
  calibrated = msgspec.structs.replace(FOUND, chip=ChipRates(7.455, {"f16": 636.2}, 0.0309))
  assert local.with_rates(H100, calibrated).l2_tbps == pytest.approx(H100.l2_tbps, rel=0.01)


def test_of_another_driver_or_gpu_they_are_measured_again(present):
  measured = present(fake_driver.RTX3060)
  local_target()
  present(fake_driver.RTX3060, api=13020)
  local_target()
  present(fake_driver.PART, api=13020)
  local_target()
  assert measured == ["sm_86x28", "sm_86x28", "sm_90ax60"]


@pytest.mark.parametrize(
  ("gpus", "more", "code", "said"),
  [
    ((), {}, "NO_GPU", "there is no usable GPU here;"),
    ((fake_driver.H200,), {"code": 100}, "NO_GPU", "there is no usable GPU here;"),
    ((fake_driver.T4,), {}, "NO_GPU", "Tesla T4 (sm_75, 40 multiprocessors), for which there are no kernels"),
    ((fake_driver.H200,), {"api": 12080}, "DRIVER_TOO_OLD", "the driver here serves CUDA 12, and NVRTC 13"),
  ],
)
def test_one_line_of_what_is_wrong(present, gpus, more, code, said):
  measured = present(*gpus, **more)
  with refused(code) as error:
    mirage_onnx.optimize("unread.onnx", target="local")
  line = error.value.line()
  assert said in line and "\n" not in line and not measured


@pytest.mark.parametrize("shown", ["7", "", "-1", "NoDevFiles", "GPU-8f3a", "MIG-b9d2\nx"])
def test_a_gpu_that_is_hidden(present, monkeypatch, shown):
  """The driver shows none then, whatever the words are; empty hides all of them."""
  present()
  monkeypatch.setenv(local.VISIBLE, shown)
  with refused("NO_GPU") as error:
    local_target()
  line = error.value.line()
  assert f"CUDA_VISIBLE_DEVICES is {shown!r}, which may hide it" in line and "\n" not in line


@pytest.mark.parametrize("shown", ["1,0", "MIG-b9d2", "0"])
def test_odd_words_that_show_one(present, monkeypatch, shown):
  """What is device 0 then is what counts; a part of a GPU has its own name and size."""
  measured = present(fake_driver.PART)
  monkeypatch.setenv(local.VISIBLE, shown)
  assert local_target().name == "sm_90ax60" and measured == ["sm_90ax60"]


def test_gpus_of_different_kinds(present):
  present(fake_driver.H200, fake_driver.H200)
  assert others_here() == ""
  present(fake_driver.H200, fake_driver.RTX3060)
  text = others_here()
  assert "chosen for GPU 0, NVIDIA H200" in text and "1 is NVIDIA GeForce RTX 3060" in text
  assert "CUDA_VISIBLE_DEVICES" in text and "\n" not in text
  said = []
  mirage_onnx.api.warn_of_gpus(said.append, H200, measure=True)
  assert said == [events.Warned(text)]


@pytest.mark.parametrize(
  ("gpus", "shown", "line"),
  [
    (
      (fake_driver.T4,),
      None,
      "the GPU here is Tesla T4 (sm_75, 40 multiprocessors), for which there are no kernels: "
      "kernels need sm_80",
    ),
    ((("a later one", (13, 0), 200, 227 * 1024),), None, "an architecture without a row (docs/adding.md)"),
    ((), "", "there is no usable GPU here (CUDA_VISIBLE_DEVICES is '', which may hide it)"),
    ((), None, ""),
  ],
)
def test_a_gpu_that_is_not_used_without_a_target(present, monkeypatch, tmp_path, gpus, shown, line):
  """The run is by prediction then, and says so in one line; with a target named nobody asks."""
  present(*gpus)
  if shown is not None:
    monkeypatch.setenv(local.VISIBLE, shown)
  said = []
  keep = lambda e: said.append(e.text) if isinstance(e, events.Warned) else None  # noqa: E731
  for target in (None, "h200"):
    mirage_onnx.optimize("models/rmsnorm_linear.onnx", None, target=target, budget_s=1, emit=keep)
  if not line:
    assert not said
    return
  (text,) = said
  assert line in text and text.endswith("; kernels are chosen by prediction, for h200") and "\n" not in text
