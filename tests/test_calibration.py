"""The verb ``calibrate``: of a GPU that is as its profile, a worse one, an unknown one, and none."""

import json

import pytest

from mirage_onnx import calibration
from mirage_onnx.cli import main
from mirage_onnx.target import H100
from mirage_onnx.tune.device import PresentGpu
from mirage_onnx.tune.rates import Rates

OWN = Rates(H100.launch_us, H100.ramp_us, H100.stream_tbps, H100.mma_tflops, ())


@pytest.fixture
def present(monkeypatch, tmp_path):
  """Call it with the GPU that is here and its rates; the list says how often they were measured."""
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)
  measured = []

  def use(gpu, found=OWN):
    monkeypatch.setattr(calibration, "present_gpu", lambda: gpu)
    own = gpu and next((t for t in (H100,) if t.capability == gpu.capability), None)
    monkeypatch.setattr(calibration, "runnable_target", lambda: own)
    monkeypatch.setattr(calibration, "Gpu", lambda target: target)
    monkeypatch.setattr(calibration, "measure_rates", lambda gpu: measured.append(gpu) or found)
    return measured

  return use


GPU = PresentGpu(H100.gpu, H100.capability, H100.multiprocessors)


def test_as_its_profile_says(present, capsys, tmp_path):
  measured, file = present(GPU), tmp_path / "mine.json"
  assert main(["calibrate", "--profile", str(file)]) == 0
  said = capsys.readouterr()
  assert "as the row of h100 says" in said.out and "worse" not in said.out
  assert json.loads(file.read_text())["rates"]["stream_tbps"] == H100.stream_tbps
  assert main(["calibrate", "--json"]) == 0
  found = json.loads(capsys.readouterr().out)
  assert found["kept"] and found["profile"] == "h100" and found["worse"] == [] and measured == [H100]
  assert found["machine"]["gpu"] == str(GPU) and "driver" in found["machine"]
  assert main(["calibrate", "--again"]) == 0 and measured == [H100, H100]


def test_a_part_of_a_gpu_is_told(present, capsys):
  present(GPU, Rates(H100.launch_us + 0.2, H100.ramp_us, H100.stream_tbps / 2, H100.mma_tflops * 2, ()))
  assert main(["calibrate", "--json"]) == 0
  assert json.loads(capsys.readouterr().out)["worse"] == ["stream_tbps"]
  assert main(["calibrate"]) == 0
  assert "worse than h100's row" in capsys.readouterr().out


def test_a_gpu_without_a_profile(present, capsys):
  present(PresentGpu("NVIDIA GH200 480GB", (9, 0), 132))
  assert main(["calibrate"]) == 0
  assert "no profile, so --target local is refused" in capsys.readouterr().out


@pytest.mark.parametrize(
  ("gpu", "said"), [(None, "no usable one here"), (PresentGpu("Tesla T4", (7, 5), 40), "no kernels yet")]
)
def test_none_that_could_be_measured(present, capsys, gpu, said):
  measured = present(gpu)
  assert main(["calibrate"]) == 2
  line = capsys.readouterr().err
  assert "NO_GPU" in line and said in line and line.count("\n") == 1 and not measured
