"""Measuring without a GPU: kernels on the emulator, ONNX Runtime's region models on the CPU."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import stand_ins
from emulated_gpu import EmulatedGpu, drawn

from mirage_onnx import pipeline
from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.importer import load_model
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import RegionTensor
from mirage_onnx.ir.view import View
from mirage_onnx.target import H200
from mirage_onnx.tune import hard_inputs, measure
from mirage_onnx.tune.measure import Inputs, measure_region, prepare
from mirage_onnx.tune.oracle import Oracle, draw
from mirage_onnx.tune.ort_run import region_model
from mirage_onnx.verify.weights import sample_weights

MODELS = Path(__file__).resolve().parents[2] / "models"


def run_of(name):
  loaded = load_model(MODELS / f"{name}.onnx")
  return loaded, pipeline.run(loaded, pipeline.Options(H200, budget_s=3000.0))


@pytest.fixture(scope="module")
def small():
  return run_of("rmsnorm_linear")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_decode", "lora", "bert", "rmsnorm_linear"])
def test_chosen_kernels_agree_with_the_oracle(name, kept_searches):
  with kept_searches(name):
    loaded, run = run_of(name)
  assert run.chosen
  for outcome in {o.region.key: o for _, o in run.chosen}.values():
    gpu = EmulatedGpu()
    data, oracle = drawn(loaded, outcome.region)
    inputs = Inputs(gpu, outcome.region, data)
    assert outcome.compiled is not None
    replay, outputs = prepare(gpu, outcome.region, outcome.compiled, inputs)
    assert oracle.complaint(gpu, replay, outputs) is None


@pytest.mark.parametrize("name", ["llama_decode", "lora", "bert", "rmsnorm_linear"])
def test_a_region_is_a_model_that_onnxruntime_runs(name):
  loaded = load_model(MODELS / f"{name}.onnx")
  matches = pipeline.find_candidates(pipeline.import_model(loaded))
  for region in {c.region.key: c.region for c in matches.candidates}.values():
    check_region_model(loaded, region, *drawn(loaded, region))


def check_region_model(loaded, region, data, oracle):
  model = region_model(loaded, region).SerializeToString()
  session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
  feeds = {i.source.name: data[i.source.name] for i in region.given if not i.is_weight}
  for o in region.outputs:
    (x,) = session.run([o.source.name], feeds)
    got, want = region.part(o, x), oracle.exact[o.tensor.name]
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= 1e-2 * np.linalg.norm(want)


def test_parts_of_tensors(net):
  """A weight, an activation and a result are read and written in parts; memory is theirs."""
  x = net.rms(net.Slice(net.input(4, 3, 64), [1], [2], [1]))
  y = net.MatMul(x, net.weight(64, 96))
  halves = [net.Slice(y, [n], [n + 48], [2]) for n in (0, 48)]
  out = net.Concat(net.Mul(halves[0], net.Sigmoid(halves[1])), net.input(4, 1, 8), axis=-1)
  loaded = load_model(net.model(out))
  run = pipeline.run(loaded, pipeline.Options(H200, margin=-20.0))
  viewed = [o for _, o in run.chosen if any(i.view for i in o.region.inputs)]
  assert viewed
  for outcome in viewed:
    region, gpu = outcome.region, EmulatedGpu()
    data, oracle = drawn(loaded, region)
    replay, outputs = prepare(gpu, region, outcome.compiled, Inputs(gpu, region, data))
    assert oracle.complaint(gpu, replay, outputs) is None
    assert len(set(outputs.values())) == len({o.source.name for o in region.outputs})
    check_region_model(loaded, region, data, oracle)


def test_rows_that_a_run_picks(net):
  """Rows are drawn within the table; a result of one column is judged by its other dimensions."""
  rows = net.Unsqueeze(net.input(4, dtype=np.int64), [1])
  products = net.MatMul(net.GatherND(net.weight(3, 48, 64), rows), net.Exp(net.input(4, 64, 1)))
  loaded = load_model(net.model(net.Tanh(products)))
  run = pipeline.run(loaded, pipeline.Options(H200, margin=-20.0))
  ((_, outcome),) = run.chosen
  region, gpu = outcome.region, EmulatedGpu()
  data, oracle = drawn(loaded, region)
  (picks,) = region.picks
  assert set(data[picks.source.name]) <= set(range(3))
  replay, outputs = prepare(gpu, region, outcome.compiled, Inputs(gpu, region, data))
  assert oracle.complaint(gpu, replay, outputs) is None
  check_region_model(loaded, region, data, oracle)
  (name,) = outputs

  def one_wrong():
    replay()
    gpu.arrays[outputs[name]].view(np.float16)[5] += 1

  assert oracle.complaint(gpu, one_wrong, outputs)


def test_an_unwritten_or_wrong_output_is_noticed(small):
  loaded, run = small
  ((_, outcome),) = run.chosen
  gpu = EmulatedGpu()
  data, oracle = drawn(loaded, outcome.region)
  replay, outputs = prepare(gpu, outcome.region, outcome.compiled, Inputs(gpu, outcome.region, data))
  (name,) = outputs
  assert oracle.complaint(gpu, lambda: None, outputs)

  def one_wrong():
    replay()
    gpu.arrays[outputs[name]].view(np.float16)[5] += 1

  assert oracle.complaint(gpu, replay, outputs) is None
  complaint = oracle.complaint(gpu, one_wrong, outputs)
  assert complaint is not None and "float64" in complaint


def timed(monkeypatch, *looks):
  """A GPU whose looks at the arms give these times, in us."""
  gpu, left = EmulatedGpu(), iter(looks)
  gpu.time_us = lambda arms, samples: np.repeat([[t] for t in next(left)], samples, axis=1)
  monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)
  monkeypatch.setattr(measure, "ort_replay", lambda *args: None)


@pytest.mark.parametrize(
  ("looks", "choice"),
  [
    ([(30.0, 12.0, 10.0), (30.0, 10.0, 12.0)], 1),
    ([(30.0, 12.0, 10.0), (30.0, 10.1, 10.0)], 0),
    ([(30.0, 12.0, 10.0), (30.0, 10.0, 10.0)], 0),
    ([(9.8, 9.9, 9.8), (9.8, 9.9, 9.85)], None),
  ],
  ids=["fastest", "fastest in the end", "a tie is the canonical first's", "no gain"],
)
def test_choice(small, monkeypatch, looks, choice):
  loaded, run = small
  ((_, outcome),) = run.chosen
  timed(monkeypatch, *looks)
  compiled = [replace(outcome.compiled) for _ in range(2)]
  best, measured = measure_region(loaded, outcome.region, compiled, H200)
  if choice is None:
    assert best is None
    assert isinstance(measured, Rejection) and measured.code == "NOT_FASTER"
  else:
    assert best is compiled[choice]
    assert (measured.kernel_us, measured.ort_us) == (10.0, 30.0)


def test_further_looks(small, monkeypatch):
  loaded, run = small
  ((_, outcome),) = run.chosen
  timed(monkeypatch, (30, 10, 12), (10, 12, 8), (8, 10, 12, 11), (30, 8, 10, 11, 12))
  first, second, third, fourth = (replace(outcome.compiled) for _ in range(4))
  asked = []

  def more(best, tried):
    asked.append((best, len(tried)))
    return {2: [third], 3: [fourth], 4: []}[len(tried)]

  best, measured = measure_region(loaded, outcome.region, [first, second], H200, more)
  assert [n for _, n in asked] == [2, 3, 4] and best is third
  assert asked[0][0] is first and asked[1][0] is asked[2][0] is third
  assert (measured.kernel_us, measured.tried) == (8.0, 4)


def test_all_candidates_wrong(small, monkeypatch):
  loaded, run = small
  ((_, outcome),) = run.chosen
  gpu = EmulatedGpu()
  monkeypatch.setattr(gpu, "launch_source", lambda *args: None)
  monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)
  best, refused = measure_region(loaded, outcome.region, [outcome.compiled], H200)
  assert best is None
  assert isinstance(refused, Rejection) and refused.code == "KERNEL_WRONG"


@pytest.mark.parametrize(("error", "right"), [(5e-4, True), (5e-3, False)])
def test_a_part_of_a_row_is_judged_by_the_whole_row(error, right):
  """A score that is nearly zero beside others: its own error is 5 %, that of its row 0.05 %."""
  source = Tensor("y", DType.F32, (1, 5))
  parts = [("o0", "left", 0, 4), ("o1", "right", 4, 1)]
  region = stand_ins.region(
    outputs=[
      RegionTensor(n, DType.F32, (), Tensor(t, DType.F32, (1, size)), view=View(source, (0, start), (1, 5)))
      for n, t, start, size in parts
    ]
  )
  exact = {"left": np.array([[1.0, -1, 1, -1]]), "right": np.array([[0.01]])}
  oracle = Oracle(region, exact, exact)
  gpu = EmulatedGpu()
  at = gpu.put(np.array([1, -1, 1, -1, 0.01 + error], np.float32))
  memory = gpu.arrays[at].copy()
  complaint = oracle.complaint(gpu, lambda: np.copyto(gpu.arrays[at], memory), {"o0": at, "o1": at})
  assert (complaint is None) == right, complaint


def test_inputs_are_uploaded_once_per_order(small):
  loaded, run = small
  region = run.chosen[0][1].region
  gpu = EmulatedGpu()
  inputs = Inputs(gpu, region, drawn(loaded, region)[0])
  weight = next(i for i in region.inputs if len(i.axes) == 2 and i.is_weight)
  first = inputs.address(weight.name, weight.axes)
  assert inputs.address(weight.name, weight.axes) == first
  other = inputs.address(weight.name, weight.axes[::-1])
  assert other is not None and other != first
  size = [region.extents[a] for a in weight.axes]
  assert prod(size) * 2 == len(gpu.arrays[other])
  a, b = (gpu.arrays[x].view(np.float16) for x in (first, other))
  np.testing.assert_array_equal(a.reshape(size).T, b.reshape(size[::-1]))
  assert inputs.address("t0", ("a0",)) is None


def test_what_is_made_ready_is_what_is_uploaded(small, monkeypatch):
  """While nobody waits for the GPU."""
  loaded, run = small
  _, outcome = run.chosen[0]
  data = drawn(loaded, outcome.region)[0]
  plain, ahead = EmulatedGpu(), EmulatedGpu()
  first, second = (Inputs(gpu, outcome.region, data) for gpu in (plain, ahead))
  prepare(plain, outcome.region, outcome.compiled, first)
  second.make_ready([outcome.compiled])
  monkeypatch.setattr(measure, "stored", None)
  second.make_ready([outcome.compiled])
  prepare(ahead, outcome.region, outcome.compiled, second)
  for i in outcome.region.inputs:
    a, b = (x.address(i.name, i.axes) for x in (first, second))
    np.testing.assert_array_equal(plain.arrays[a], ahead.arrays[b])


def test_what_is_large_repeats_what_is_drawn(net, monkeypatch):
  """No two rows are the same."""
  monkeypatch.setattr(hard_inputs, "MOST_DRAWN", 101)
  loaded = load_model(net.model(net.Tanh(net.Mul(net.input(16, 48), 0.5))))
  ((_, outcome),) = pipeline.run(loaded, pipeline.Options(H200, margin=-20.0)).chosen
  data, oracle = drawn(loaded, outcome.region)
  (x,) = data.values()
  assert x.shape == (16, 48)
  assert oracle.finite
  np.testing.assert_array_equal(x.ravel()[101:], x.ravel()[:-101])
  assert len(np.unique(x, axis=0)) == 16
  assert len(np.unique(x)) > 80


def test_a_region_without_finite_values(small):
  loaded, run = small
  region = run.chosen[0][1].region
  weights = {n: np.full_like(x, np.inf) for n, x in sample_weights(loaded, region).items()}
  with pytest.raises(RejectionError, match="finite") as error:
    draw(region, weights, np.random.default_rng(0))
  assert error.value.rejection.code == "INCONCLUSIVE"


def test_a_measured_region_counts_as_its_share_of_the_predicted_time(small):
  _, run = small
  ((_, outcome),) = run.chosen
  timed_ones = replace(outcome, baseline_us=20.0, measured=measure.Measured(25.0, 50.0, 3))
  assert timed_ones.price_us(0.2) == 10.0
  predicted = outcome.compiled.candidate.predicted_us
  assert outcome.price_us(0.2) == pytest.approx(predicted / 0.8)
