"""The last line of ``env``: ready, or the one thing to do."""

import pytest

from mirage_onnx.collect_env import PACKAGES, collect, verdict

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
    (facts(gpus=NO_GPU, onnxruntime=CPU), "ready to optimize for an H200 by prediction"),
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
    (facts() | {"packages": "none (OSError: x)"}, "ready"),
  ],
)
def test_verdict(found, said):
  text = verdict(found)
  assert said in text and text.startswith("ready") == said.startswith("ready") and "\n" not in text


def test_of_this_machine():
  assert collect()["verdict"].startswith("ready")
