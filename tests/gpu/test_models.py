"""The models in ``models/``, optimized for the H200 and run on one: sessions and single kernels."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import mirage_onnx
from mirage_onnx import pipeline
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.custom_op.widen import widened
from mirage_onnx.importer import load_model
from mirage_onnx.target import H200
from mirage_onnx.tune.measure import Inputs, gpu_of, prepare
from mirage_onnx.tune.oracle import draw
from mirage_onnx.verify.weights import sample_weights

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"

pytestmark = pytest.mark.gpu

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
#: Exclusive upper bounds of integer inputs.
BOUNDS = {"input_ids": 128, "position_ids": 16, "attention_mask": 2}
#: A relative error that fp16 results may have beyond that of the original model.
SLACK = 1e-3


@dataclass
class Subject:
  """A model, what the pipeline made of it, and the file of the result."""

  name: str
  loaded: Any
  run: pipeline.Run
  original: Path
  optimized: Path

  def session(self, *, ours, **options):
    if ours:
      found = mirage_onnx.InferenceSession(self.optimized, providers=[(CUDA, options)])
    else:
      found = ort.InferenceSession(self.original, providers=[(CUDA, options)])
    assert found.get_providers()[0] == CUDA
    return found

  def feeds(self, seed):
    rng = np.random.default_rng(seed)
    found = {}
    for i in onnx.load(self.original).graph.input:
      shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
      if i.type.tensor_type.elem_type == TensorProto.FLOAT16:
        found[i.name] = rng.standard_normal(shape).astype(np.float16)
      else:
        found[i.name] = rng.integers(0, BOUNDS[i.name], shape)
    if "attention_mask" in found:
      found["attention_mask"][:, 0] = 1  # a row that attends to nothing has no value
    return found


@pytest.fixture(scope="module", params=["llama_decode", "lora", "bert", "rmsnorm_linear"])
def subject(request, tmp_path_factory, h200):
  if CUDA not in ort.get_available_providers():
    pytest.skip("this onnxruntime has no CUDA execution provider")
  original = MODELS / f"{request.param}.onnx"
  loaded = load_model(original)
  run = pipeline.run(loaded, pipeline.Options(H200))
  optimized = tmp_path_factory.mktemp("gpu") / original.name
  onnx.save(run.model, optimized)
  return Subject(request.param, loaded, run, original, optimized)


def exact(subject, feeds):
  """In fp32: a reference without fp16 rounding."""
  wide = widened(onnx.load(subject.original)).SerializeToString()
  session = ort.InferenceSession(wide, providers=[CPU])
  wide = {n: x.astype(np.float32) if x.dtype == np.float16 else x for n, x in feeds.items()}
  return list(session.run(None, wide))


def errors(got, want):
  assert all(np.isfinite(x).all() for x in (*got, *want))
  return [
    float(np.linalg.norm(g.astype(np.float64) - w) / max(np.linalg.norm(w), 1e-30))
    for g, w in zip(got, want, strict=True)
  ]


def assert_all_ran(session, subject):
  counts = mirage_onnx.launches(session)
  assert len(counts) == len(subject.run.chosen) > 0
  assert all(counts.values()), counts
  return counts


def test_session(subject):
  ours, theirs = subject.session(ours=True), subject.session(ours=False)
  on_cpu = ort.InferenceSession(subject.original, providers=[CPU])
  for seed in range(3):
    feeds = subject.feeds(seed)
    got, cuda, cpu = ours.run(None, feeds), theirs.run(None, feeds), on_cpu.run(None, feeds)
    want = exact(subject, feeds)
    mine, allowed = errors(got, want), errors(cuda, want)
    assert all(m <= 2 * a + SLACK for m, a in zip(mine, allowed, strict=True)), (mine, allowed)
    assert max(errors(got, [x.astype(np.float64) for x in cuda])) <= 5e-3
    assert max(errors(got, [x.astype(np.float64) for x in cpu])) <= 5e-3
  assert_all_ran(ours, subject)


def test_two_runs_give_the_same_bits(subject):
  feeds = subject.feeds(0)
  session = subject.session(ours=True)
  first = [session.run(None, feeds) for _ in range(2)] + [subject.session(ours=True).run(None, feeds)]
  for other in first[1:]:
    for a, b in zip(first[0], other, strict=True):
      assert a.tobytes() == b.tobytes()


def test_cuda_graph(subject):
  """Captured, then replayed on new inputs at the same addresses."""
  try:
    Graphed(subject, ours=False).run(subject.feeds(0))
  except Exception as error:
    pytest.skip(f"onnxruntime cannot capture the original: {str(error)[:200]}")
  plain = subject.session(ours=True)
  graphed = Graphed(subject, ours=True)
  for _ in range(3):
    graphed.run(subject.feeds(0))
  counts = assert_all_ran(graphed.session, subject)
  for seed in (1, 2):
    feeds = subject.feeds(seed)
    for got, want in zip(graphed.run(feeds), plain.run(None, feeds), strict=True):
      np.testing.assert_array_equal(got, want)
  assert mirage_onnx.launches(graphed.session) == counts  # the graph launched, not we


class Graphed:
  def __init__(self, subject, *, ours):
    self.session = subject.session(ours=ours, enable_cuda_graph="1")
    self.binding = self.session.io_binding()
    self.inputs = {n: ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0) for n, x in subject.feeds(0).items()}
    for name, value in self.inputs.items():
      self.binding.bind_ortvalue_input(name, value)
    self.outputs = []
    for o in self.session.get_outputs():
      value = ort.OrtValue.ortvalue_from_shape_and_type(o.shape, np.float16, "cuda", 0)
      self.binding.bind_ortvalue_output(o.name, value)
      self.outputs.append(value)
    for _ in range(3):
      self.session.run_with_iobinding(self.binding)

  def run(self, feeds):
    for name, value in feeds.items():
      self.inputs[name].update_inplace(value)
    for value in self.outputs:
      value.update_inplace(np.full(value.shape(), np.nan, np.float16))
    self.session.run_with_iobinding(self.binding)
    return [value.numpy() for value in self.outputs]


def test_threads(subject):
  session = subject.session(ours=True)
  feeds = [subject.feeds(seed) for seed in range(4)]
  want = [session.run(None, f) for f in feeds]
  wrong = []

  def work(i):
    for _ in range(25):
      got = session.run(None, feeds[i])
      if any(a.tobytes() != b.tobytes() for a, b in zip(got, want[i], strict=True)):
        wrong.append(i)

  with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
  assert not wrong
  assert min(assert_all_ran(session, subject).values()) >= 104  # 4 and 4 x 25 runs


def test_kernels_agree_with_float64(subject):
  """Each region's kernels by themselves, on outputs that were poisoned; twice the same bits."""
  gpu = gpu_of(H200)
  for outcome in {o.region.key: o for _, o in subject.run.chosen}.values():
    region, compiled = outcome.region, outcome.compiled
    assert compiled is not None
    data, oracle = draw(region, sample_weights(subject.loaded, region), np.random.default_rng(0))
    with gpu.scope():
      replay, outputs = prepare(gpu, region, compiled, Inputs(gpu, region, data))
      bits = []
      for _ in range(2):
        assert oracle.complaint(gpu, replay, outputs) is None, region.text
        sizes = {o.name: tuple(int(d) for d in o.tensor.shape or ()) for o in region.outputs}
        types = {o.name: o.dtype.numpy for o in region.outputs}
        bits.append([gpu.get(at, sizes[n], types[n]).tobytes() for n, at in outputs.items()])
      assert bits[0] == bits[1]


def test_a_kernel_compiled_again_is_reported_again():
  """NVRTC caches where there is a driver, and its cache holds no report of spills."""
  text = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 3.0f; }'
  first, second = (compile_cubin(text, H200, name="k") for _ in range(2))
  assert first.registers == second.registers > 0


def test_measured_choice(tmp_path, h200):
  """``optimize --target local``: timed against ONNX Runtime, faster, and still right."""
  original, output = MODELS / "rmsnorm_linear.onnx", tmp_path / "fast.onnx"
  report = mirage_onnx.optimize(original, output, target="local").report
  (region,) = (r for r in report["regions"] if r["status"] == "replaced")
  assert region["choice"] == "measured"
  assert 0 < region["measured_us"] <= 0.97 * region["baseline_us"]
  session = mirage_onnx.InferenceSession(output, providers=[CUDA])
  x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)
  theirs = ort.InferenceSession(original, providers=[CUDA])
  got, want = session.run(None, {"x": x}), theirs.run(None, {"x": x})
  assert max(errors(got, [w.astype(np.float64) for w in want])) <= 2e-3
  assert all(mirage_onnx.launches(session).values())
