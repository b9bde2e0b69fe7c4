"""The verb ``calibrate``: of a GPU that is as its profile, a worse one, an unknown one, and none."""

import json

import fake_driver
import pytest

from mirage_onnx.cli import main
from mirage_onnx.target import H100
from mirage_onnx.tune import device, local
from mirage_onnx.tune.chip_rates import ChipRates
from mirage_onnx.tune.device import PresentGpu
from mirage_onnx.tune.operator_table import OperatorTimes
from mirage_onnx.tune.rates import Rates

TABLE = OperatorTimes(
  "1.31.1", {"Add": ((512, 1.0),)}, ((1, 64, 64, 2.0),), ("Gelu (8, 64): no such operator",)
)
MORE = ChipRates(7.2, {"f16": 640.0, "bf16": 648.0}, 0.031), TABLE
OWN = Rates(H100.launch_us, H100.ramp_us, H100.stream_tbps, H100.mma_tflops, (), *MORE)


@pytest.fixture
def present(monkeypatch, tmp_path):
  """Call it with the GPU that is here and its rates; the list says on what they were measured."""
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)
  monkeypatch.setattr(local, "_nvrtc_major", lambda: 13)
  monkeypatch.setattr(local, "Gpu", lambda target: target)
  measured = []

  def use(*gpus, found=OWN):
    monkeypatch.setattr(device, "_driver", lambda: fake_driver.driver(*gpus))
    monkeypatch.setattr(local, "measure_rates", lambda gpu: measured.append(gpu) or found)
    return measured

  return use


GPU = PresentGpu(*fake_driver.H100)


def test_as_its_profile_says(present, capsys, tmp_path):
  measured, file = present(fake_driver.H100), tmp_path / "mine.json"
  assert main(["calibrate", "--profile", str(file)]) == 0
  said = capsys.readouterr()
  assert "as the row of h100 says" in said.out and "worse" not in said.out
  assert "L2 7.2 TB/s; barrier 0.031 us; mma f16 640, bf16 648 TFLOP/s" in said.out
  assert "2 times of operators of onnxruntime 1.31.1, 1 could not be had (Gelu (8, 64): no such" in said.out
  assert json.loads(file.read_text())["rates"]["stream_tbps"] == H100.stream_tbps
  assert main(["calibrate", "--json"]) == 0
  found = json.loads(capsys.readouterr().out)
  assert found["kept"] and found["profile"] == "h100" and found["worse"] == [] and measured == [H100]
  assert found["machine"]["gpu"] == str(GPU) and "driver" in found["machine"]
  assert main(["calibrate", "--again"]) == 0 and measured == [H100, H100]


def test_a_part_of_a_gpu_is_told(present, capsys):
  slow = Rates(H100.launch_us + 0.2, H100.ramp_us, H100.stream_tbps / 2, H100.mma_tflops * 2, (), *MORE)
  present(fake_driver.H100, found=slow)
  assert main(["calibrate", "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["worse"] == ["stream_tbps"]
  assert main(["calibrate"]) == 0
  assert "worse than h100's row" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("gpu", "said"),
  [
    (fake_driver.PART, "it has no row of its own"),
    (fake_driver.RTX4090, "the row of rtx4090 is from its data sheet"),
  ],
)
def test_a_gpu_that_was_not_measured(present, capsys, gpu, said):
  present(gpu)
  assert main(["calibrate"]) == 0
  assert f"{said}: --target local uses these rates" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("gpus", "said"), [((), "no usable GPU here"), ((fake_driver.T4,), "for which there are no kernels")]
)
def test_none_that_could_be_measured(present, capsys, gpus, said):
  measured = present(*gpus)
  assert main(["calibrate"]) == 2
  line = capsys.readouterr().err
  assert "NO_GPU" in line and said in line and line.count("\n") == 1 and not measured
