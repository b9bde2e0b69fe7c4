"""The scripts behind docs/compatibility.md, with the versions that are installed here."""

from importlib import metadata
from pathlib import Path

import nvrtc_versions
import onnxruntime
import ort_versions
import pytest

import mirage_onnx

ROOT = Path(__file__).parents[1]


def test_this_onnxruntime(tmp_path):
  (tmp_path / onnxruntime.__version__).mkdir()
  place = tmp_path / onnxruntime.__version__ / "onnxruntime"
  place.symlink_to(Path(onnxruntime.__file__).parent)
  model, made = ROOT / "models" / "rmsnorm_linear.onnx", tmp_path / "made.onnx"
  mirage_onnx.optimize(model, made, target="h200,a100", workers=1)
  assert ort_versions.check(onnxruntime.__version__, tmp_path, model, made) == ""
  assert "no kernel ran" in ort_versions.check(onnxruntime.__version__, tmp_path, model, model)
  (tmp_path / "1.0" / "onnxruntime").mkdir(parents=True)  # an empty one: the next on the path is found
  assert ort_versions.check("1.0", tmp_path, model, made) == f"version {onnxruntime.__version__} ran"


@pytest.mark.slow
def test_this_nvrtc(tmp_path):
  version = metadata.version("nvidia-cuda-nvrtc")
  files = metadata.files("nvidia-cuda-nvrtc")
  folder = next(f.locate() for f in files if f.name.startswith("libnvrtc.so")).parent
  (tmp_path / version).mkdir()
  for path in Path(folder).glob("libnvrtc*"):
    (tmp_path / version / path.name).symlink_to(path)
  found = nvrtc_versions.check(version, tmp_path, "goldens")
  assert found["failed"] == [] and found["kernels"] >= 27 and found["registers"] > 0
