"""The optimized models load everywhere, and launch counts tell which path ran.

(a) stock onnxruntime; (b) with the library, no GPU; (c) a GPU of another architecture, or a plan
version that this library does not know; (d) the kernels themselves, in the CPU emulator behind the
real custom-op library. (e), the GPU, is ``tests/gpu``.
"""

import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.importer import load_model
from mirage_onnx.pipeline import Options
from mirage_onnx.target import H200
from tests.support.emulated_session import host_session

ROOT = Path(__file__).parents[1]
BOUNDS = {"input_ids": 128, "position_ids": 16, "attention_mask": 2}
MODELS = (
  "rmsnorm_linear",
  pytest.param("bert", marks=pytest.mark.slow),
  pytest.param("llama_decode", marks=pytest.mark.slow),
  pytest.param("lora", marks=pytest.mark.slow),
)


@pytest.fixture(scope="module", params=MODELS)
def case(request, kept_searches):
  path = ROOT / "models" / f"{request.param}.onnx"
  with kept_searches(request.param):
    return path, pipeline.run(load_model(path), Options(H200, budget_s=3000.0))


def feeds(session, seed=0):
  rng = np.random.default_rng(seed)
  found = {}
  for i in session.get_inputs():
    if i.type == "tensor(int64)":
      found[i.name] = rng.integers(0, BOUNDS.get(i.name, 2), i.shape)
    else:
      found[i.name] = rng.standard_normal(i.shape).astype(np.float16)
  if "attention_mask" in found:
    found["attention_mask"][:, -1] = 1  # a query sees itself at least
  return found


def original(path):
  session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
  data = feeds(session)
  return data, session.run(None, data)


def same(got, want):
  return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(got, want, strict=True))


def test_stock_onnxruntime_runs_the_bodies(case):
  path, run = case
  assert run.chosen
  data, want = original(path)
  stock = ort.InferenceSession(run.model.SerializeToString(), providers=["CPUExecutionProvider"])
  assert same(stock.run(None, data), want)


def test_with_the_library_and_no_gpu_the_bodies_run(case):
  path, run = case
  data, want = original(path)
  session = mirage_onnx.InferenceSession(run.model.SerializeToString(), providers=["CPUExecutionProvider"])
  assert same(session.run(None, data), want)
  counts = mirage_onnx.launches(session)
  assert len(counts) == len(run.chosen)
  assert set(counts.values()) == {0}


def test_another_architecture_runs_the_bodies(case):
  path, run = case
  data, want = original(path)
  session = host_session(run.model.SerializeToString(), (8, 0))
  assert same(session.run(None, data), want)
  assert set(mirage_onnx.launches(session).values()) == {0}


def test_a_newer_plan_version_runs_the_bodies(case):
  path, run = case
  newer = onnx.ModelProto()
  newer.CopyFrom(run.model)
  for owner in (*newer.graph.node, *newer.functions, *newer.opset_import):
    owner.domain = owner.domain.replace("ai.mirage.v1", "ai.mirage.v2")
  data, want = original(path)
  session = host_session(newer.SerializeToString(), (9, 0))
  assert same(session.run(None, data), want)
  assert set(mirage_onnx.launches(session).values()) == {0}


def test_the_kernels_give_the_outputs(case):
  """Plan, stored weights, workspace and generated text together, kernel by kernel emulated."""
  path, run = case
  data, want = original(path)
  session = mirage_onnx.InferenceSession(run.model.SerializeToString(), emulate=True)
  got = session.run(None, data)
  counts = mirage_onnx.launches(session)
  assert len(counts) == len(run.chosen)
  assert all(n >= 1 for n in counts.values())
  for x, y in zip(got, want, strict=True):
    error = np.linalg.norm(x.astype(np.float64) - y) / np.linalg.norm(y.astype(np.float64))
    assert error < 5e-3, error


def test_every_region_agrees_by_itself(case):
  path, run = case
  found = compare_models(path, run.model.SerializeToString(), emulate=True, draws=1, int_limits=BOUNDS)
  assert found.passed, found.to_dict()
  assert {r.node for r in found.regions} == {n.name for n in found.nodes}
  assert all(n.path == "emulated" for n in found.nodes)


def test_a_session_of_plain_onnxruntime_takes_the_library(case):
  path, run = case
  options = ort.SessionOptions()
  options.register_custom_ops_library(mirage_onnx.get_library_path())
  session = ort.InferenceSession(run.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
  data, want = original(path)
  assert same(session.run(None, data), want)


def test_the_library_has_no_cuda_dependency():
  shown = subprocess.run(["ldd", mirage_onnx.get_library_path()], capture_output=True, text=True, check=True)
  assert "cuda" not in shown.stdout
