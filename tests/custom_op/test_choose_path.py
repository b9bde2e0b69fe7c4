"""Where ``verify`` runs kernels if it is not told."""

from dataclasses import replace

import onnxruntime as ort
import pytest
from refused import refused

from mirage_onnx.custom_op import choose_path as module
from mirage_onnx.custom_op.choose_path import NO_COMPILER, choose_path
from mirage_onnx.target import H200

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


@pytest.fixture
def machine(monkeypatch):
  def set_up(gpu, *, compiler, cuda=True):
    providers = [CUDA, CPU] if cuda else [CPU]
    monkeypatch.setattr(ort, "get_available_providers", lambda: providers)
    monkeypatch.setattr(module, "present_target", lambda: gpu)
    monkeypatch.setattr(module, "has_host_compiler", lambda: compiler)

  return set_up


OTHER = replace(H200, suffix="sm100a")


@pytest.mark.parametrize(
  ("gpu", "cuda", "compiler", "provider", "emulate", "wanted"),
  [
    (H200, True, True, None, None, ("cuda", False, "")),
    (H200, False, True, None, None, ("cpu", True, "")),  # an onnxruntime without CUDA
    (OTHER, True, True, None, None, ("cpu", True, "")),  # another GPU
    (None, True, True, None, None, ("cpu", True, "")),
    (None, True, False, None, None, ("cpu", False, NO_COMPILER)),
    (H200, True, True, "cpu", None, ("cpu", True, "")),
    (H200, True, True, None, True, ("cpu", True, "")),
    (H200, True, True, None, False, ("cpu", False, "")),
    (None, True, False, "cpu", True, ("cpu", True, "")),  # refused later, by name
    (None, False, True, "cuda", None, ("cuda", False, "")),
    (None, False, True, "cuda", False, ("cuda", False, "")),
  ],
)
def test_defaults(chain, machine, gpu, cuda, compiler, provider, emulate, wanted):
  machine(gpu, compiler=compiler, cuda=cuda)
  assert choose_path(chain.model.SerializeToString(), provider, emulate) == wanted


def test_a_model_without_kernels_is_not_emulated(chain, machine):
  machine(None, compiler=True)
  model = chain.original.SerializeToString()
  assert choose_path(model, None, None) == ("cpu", False, "")


def test_the_emulator_has_no_cuda_provider(chain):
  with refused("OPTION_INVALID"):
    choose_path(chain.model.SerializeToString(), "cuda", True)
