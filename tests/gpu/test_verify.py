"""``verify`` on a GPU: kernels run there, right ones pass, a wrong one is named."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import mirage_onnx
from mirage_onnx import api
from tests.support.rewritten import chain, permuted, tampered

pytestmark = pytest.mark.gpu

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture(autouse=True, scope="module")
def cuda(h200):
  if "CUDAExecutionProvider" not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")


@pytest.fixture(scope="module")
def small():
  return chain()


def save(model, path):
  onnx.save(model, path)
  return path


@pytest.mark.parametrize("name", ["rmsnorm_linear", "bert", "lora"])
def test_models(name, tmp_path):
  original, fast = MODELS / f"{name}.onnx", tmp_path / "fast.onnx"
  mirage_onnx.optimize(original, fast, target="h200")
  found = api.verify(original, fast, bisect=True)
  assert found.passed, found.to_dict()
  assert found.nodes and {n.path for n in found.nodes} == {"kernel"}
  assert {r.node for r in found.regions} == {n.name for n in found.nodes}
  assert found.source.endswith("byte for byte")


def test_the_gpu_and_the_emulator_agree(small, tmp_path):
  """The same kernels on the same inputs: within a rounding of fp16 and the order of sums."""
  path = save(small.model, tmp_path / "b.onnx")
  x = {"x0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)}
  on_gpu = mirage_onnx.InferenceSession(path, providers=["CUDAExecutionProvider"])
  emulated = mirage_onnx.InferenceSession(path, emulate=True)
  got, want = (s.run(None, x)[0].astype(np.float64) for s in (on_gpu, emulated))
  assert all(mirage_onnx.launches(s) == dict.fromkeys(small.nodes, 1) for s in (on_gpu, emulated))
  assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("bisect", [False, True])
def test_a_wrong_constant_is_named(small, tmp_path, bisect):
  wrong = small.using({1: small.recompiled(1, "const[-1/2]", "const[-9/16]")})
  a, b = save(small.original, tmp_path / "a.onnx"), save(wrong, tmp_path / "b.onnx")
  found = api.verify(a, b, provider="cuda", bisect=bisect)
  assert not found.passed
  assert found.first_divergence == small.nodes[1]
  assert [r.node for r in found.regions if not r.output.passed] == [small.nodes[1]]


def test_another_kernel_under_the_node_is_named(small, tmp_path):
  wrong = tampered(small.model, permuted([0, 0, 2]))
  a, b = save(small.original, tmp_path / "a.onnx"), save(wrong, tmp_path / "b.onnx")
  found = api.verify(a, b)
  assert {n.path for n in found.nodes} == {"kernel"}
  assert not found.passed and found.first_divergence == small.nodes[1]
