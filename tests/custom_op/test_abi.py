"""Our declarations of foreign ABIs against official headers, where a machine has them."""

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "cpp" / "ort_custom_ops"
ORT_PLACES = (os.environ.get("ORT_INCLUDE_DIR", ""), "/usr/include/onnxruntime")
CUDA_PLACES = (os.environ.get("CUDA_INCLUDE_DIR", ""), "/usr/local/cuda/include",
               "/usr/local/cuda-13.0/include")  # fmt: skip


def find(header, places):
  for place in places:
    if place and (Path(place) / header).is_file():
      return place
  pytest.skip(f"no official {header} in {' '.join(filter(None, places))}")


def compiles(source, *includes):
  options = [f"-I{path}" for path in (*includes, str(SOURCES))]
  command = ["g++", "-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof", *options, str(source)]
  done = subprocess.run(command, capture_output=True, text=True)
  return "" if done.returncode == 0 else done.stderr


def test_onnxruntime_slots_and_fields():
  include = find("onnxruntime_c_api.h", ORT_PLACES)
  assert compiles(HERE / "abi_check.cc", include) == ""


def test_a_wrong_slot_is_noticed(tmp_path):
  include = find("onnxruntime_c_api.h", ORT_PLACES)
  text = (SOURCES / "ort_abi.h").read_text()
  (tmp_path / "ort_abi.h").write_text(text.replace("X(GetDimensions, 62,", "X(GetDimensions, 63,"))
  assert "slot of OrtApi::GetDimensions" in compiles(HERE / "abi_check.cc", include, str(tmp_path))


def test_cuda_structures_and_enumerators():
  include = find("cuda.h", CUDA_PLACES)
  assert compiles(HERE / "cuda_abi_check.cc", include) == ""
