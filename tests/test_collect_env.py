"""The last line of ``env``: ready, or the one thing to do."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mirage_onnx.collect_env import PACKAGES, _built_for, collect, verdict

GPU = ["0: NVIDIA H200, sm_90, 132 multiprocessors"]
NO_GPU = "none (OSError: libcuda.so.1: cannot open shared object file)"
BOTH = "1.31.1, CUDAExecutionProvider, CPUExecutionProvider"
CPU = "1.31.1, CPUExecutionProvider"


def facts(packages=(), **change):
  found = {"packages": {**dict.fromkeys(PACKAGES, "1.0"), **dict(packages)}, "onnxruntime": BOTH,
           "ops library": "ops.so", "nvrtc": "13.0", "gpus": GPU}  # fmt: skip
  return {**found, **{k.replace("_", " "): v for k, v in change.items()}}


@pytest.mark.parametrize(
  ("found", "said"),
  [
    (facts(), "ready"),
    (facts(gpus=NO_GPU, onnxruntime=CPU), "ready to optimize by prediction, for an H200 or another --target"),
    (
      facts(gpus=["0: Tesla T4, sm_75, 40 units"], onnxruntime=CPU),
      "ready, but not for this GPU: kernels need",
    ),
    (facts(gpus=["0: a later one, sm_130, 9 units"]), "ready, but not for this GPU: sm_130 has no row"),
    (facts(gpus=["0: NVIDIA H100 80GB HBM3 MIG 3g.40gb, sm_90, 60 multiprocessors"]), "ready"),
    (facts(gpus=[]), "ready to optimize"),
    (facts([("scipy", "not installed")]), "not ready: pip install scipy"),
    (
      facts([("onnxruntime", "not installed"), ("onnxruntime-gpu", "not installed")]),
      "pip install 'mirage-onnx[cu13]'",
    ),
    (facts(onnxruntime=f"{BOTH} (ORT_CONFLICT: two)"), "pip uninstall onnxruntime onnxruntime-gpu"),
    (facts(onnxruntime="none (ImportError: libcudart)"), "cannot be imported: none (ImportError: libcudart)"),
    (facts(ops_library="none (MirageError: OPS_LIBRARY_MISSING)"), "make build"),
    (facts(nvrtc="none (ImportError: x)"), "nvidia-cuda-nvrtc"),
    (facts(onnxruntime=CPU), "not ready for this GPU: pip uninstall onnxruntime;"),
    (facts(gpus=[f"{GPU[0]}, driver for CUDA 12.8"]), "not ready for this GPU: its driver serves CUDA 12"),
    (
      facts(gpus=[f"{GPU[0]}, driver for CUDA 11.8"]),
      "not ready for this GPU: its driver serves CUDA 11: update",
    ),
    (facts(gpus=[f"{GPU[0]}, driver for CUDA 13.2"]), "ready"),
    (facts(gpus=[*GPU, "1: NVIDIA H200, sm_90, 132 multiprocessors"]), "ready"),
    (
      facts(gpus=[*GPU, "1: NVIDIA L4, sm_89, 58 multiprocessors"]),
      "ready; kernels are chosen for GPU 0: NVIDIA H200:",
    ),
    (facts() | {"packages": "none (OSError: x)"}, "ready"),
  ],
)
def test_verdict(found, said):
  text = verdict(found)
  assert said in text and text.startswith("ready") == said.startswith("ready") and "\n" not in text
  assert text == said or said != "ready"


@pytest.mark.parametrize(
  ("serves", "built", "said"),
  [
    (
      "12.8",
      "13.0",
      "serves CUDA 12, and onnxruntime is built for CUDA 13: update the driver, or pip install",
    ),
    ("11.4", "12.8", "serves CUDA 11, and onnxruntime is built for CUDA 12: update the driver"),
    ("12.8", "12.8", "its driver serves CUDA 12: update it, or pip install nvidia-cuda-nvrtc-cu12"),
    ("13.0", "13.0", "ready"),
    ("13.0", "12.8", "ready"),  # a newer driver runs it
  ],
)
def test_an_onnxruntime_that_the_driver_does_not_run(serves, built, said):
  """Its CUDA provider fails there, whatever compiles the kernels."""
  own = facts(onnxruntime=f"{BOTH}, built for CUDA {built}", gpus=[f"{GPU[0]}, driver for CUDA {serves}"])
  text = verdict(own)
  assert said in text and (text == "ready") == (said == "ready")


def test_what_onnxruntime_was_built_for(monkeypatch):
  name = "onnxruntime.capi.build_and_package_info"
  monkeypatch.setitem(sys.modules, name, SimpleNamespace(cuda_version="13.0"))
  assert _built_for() == ", built for CUDA 13.0" and collect()["onnxruntime"].endswith(_built_for())
  for none in (SimpleNamespace(package_name="onnxruntime"), None):
    monkeypatch.setitem(sys.modules, name, none)
    assert _built_for() == ""


@pytest.mark.parametrize("shown", ["", "7", "MIG-b9d2"])
def test_a_gpu_that_is_hidden(monkeypatch, shown):
  monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
  assert "hide" not in verdict(facts(gpus=[]))
  monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
  assert f"no GPU here; CUDA_VISIBLE_DEVICES is {shown!r}, which may hide it)" in verdict(facts(gpus=[]))


def test_of_this_machine():
  found = collect()
  assert found["verdict"].startswith("ready") and found["telemetry"] == "ORT_DISABLE_TELEMETRY=1"


@pytest.mark.parametrize(("given", "wanted"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_unless_wanted(given, wanted):
  env = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
  env |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
  code = "import os, mirage_onnx; print(os.environ['ORT_DISABLE_TELEMETRY'])"
  done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
  assert done.stdout.strip() == wanted
