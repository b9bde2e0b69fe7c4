"""What kernels are checked on before they are timed: rows of every kind. What is wrong in one is refused."""

from pathlib import Path

import numpy as np
import pytest
import stand_ins
from cached_steps import cached_step
from emulated_gpu import EmulatedGpu
from onnx import numpy_helper
from onnxruntime import InferenceSession

from mirage_onnx import pipeline
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import RegionTensor
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.target import H200
from mirage_onnx.tune import measure
from mirage_onnx.tune.expected_rows import ExpectedRows
from mirage_onnx.tune.hard_inputs import KINDS, draws, half_full, hard_inputs, kinds_of
from mirage_onnx.tune.measure import Inputs, measure_region, prepare
from mirage_onnx.tune.oracle import Buffers, Oracle, draw, hard_draws
from mirage_onnx.tune.ort_run import region_model
from mirage_onnx.verify.weights import sample_weights

MODELS = Path(__file__).resolve().parents[2] / "models"
NAMES = [name for name, _ in KINDS]


def chosen_of(loaded):
  """With the options of ``tests/test_loading.py``: what is searched for depends on the margin, too."""
  run = pipeline.run(loaded, pipeline.Options(H200, budget_s=3000.0))
  assert run.chosen
  return {o.region.key: o for _, o in run.chosen}.values()


def regions_of(model):
  loaded = load_model(model)
  found = {c.region.key: c.region for c in pipeline.find_candidates(pipeline.import_model(loaded)).candidates}
  return loaded, list(found.values())


@pytest.fixture(scope="module")
def small():
  loaded = load_model(MODELS / "rmsnorm_linear.onnx")
  (outcome,) = chosen_of(loaded)
  return loaded, outcome


def test_lengths_are_within_what_they_end():
  """All but the last element first, then any; not the small numbers of other integers."""
  loaded = load_model(cached_step(2, 1, 2, 32, 1000, rotary=False))
  found = find_candidates(import_model(loaded), TIMED).candidates
  for c in found:
    assert hard_inputs(c.region, {}, np.random.default_rng(0), 0)["lengths"].tolist() == [999, 999]
  region = next(c.region for c in found if c.outputs == {"y"})
  rng = np.random.default_rng(0)
  first, second = (hard_inputs(region, {}, rng, n)["lengths"] for n in range(2))
  assert first.tolist() == [999, 999] and first.dtype == np.int32
  assert (second >= 0).all() and (second < 1000).all() and second.max() > 20
  assert draw(region, {}, rng)[0]["lengths"].max() > 20


def test_what_is_timed_is_half_full():
  """Lengths only are others; of a cache of one place it is the first."""
  for room, last in ((1000, 499), (1, 0)):
    loaded = load_model(cached_step(2, 1, 2, 32, room, rotary=False))
    region = next(
      c.region for c in find_candidates(import_model(loaded), TIMED).candidates if c.outputs == {"y"}
    )
    data = hard_inputs(region, {}, np.random.default_rng(0), 0)
    timed = half_full(region, data)
    assert timed["lengths"].tolist() == [last, last] and timed["lengths"].dtype == np.int32
    assert timed.keys() == data.keys() and all(timed[n] is data[n] for n in data if n != "lengths")
  bench = measure.GpuBench(loaded, region, H200, lambda: [(data, None)])
  assert bench._timed_on["lengths"].tolist() == [0, 0]


def test_the_operator_alone_is_told_how_long_it_is():
  loaded = load_model(cached_step(2, 1, 2, 32, 24))
  for c in find_candidates(import_model(loaded), TIMED).candidates:
    model = region_model(loaded, c.region)
    (total,) = (t for t in model.graph.initializer if t.name == "total")
    assert numpy_helper.to_array(total) == 12
    InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def drawn(loaded, region):
  return hard_draws(region, sample_weights(loaded, region), np.random.default_rng(0))


def test_rows_of_every_kind(net):
  loaded, regions = regions_of(net.model(net.MatMul(net.rms(net.input(12, 64)), net.weight(64, 96))))
  region = max(regions, key=lambda r: len(r.nodes))
  ((data, oracle),) = drawn(loaded, region)
  (x,) = (i for i in region.inputs if not i.is_weight)
  rows = data[x.source.name].astype(np.float64)
  kinds = kinds_of(region, x, 0)[:, 0] % len(KINDS)
  assert sorted(set(kinds)) == list(range(len(KINDS)))
  size = {name: np.abs(rows[kinds == n]).mean(axis=1) for n, name in enumerate(NAMES)}
  assert (size["scale 2^-8"] < 0.01).all() and (size["scale 2^8"] > 100).all()
  assert (rows[kinds == NAMES.index("constant")] == 1.5).all()
  assert (size["large offset"] > 50).all() and ((size["normal"] > 0.5) & (size["normal"] < 1.5)).all()
  assert (
    np.abs(rows[kinds == NAMES.index("outlier channels")]).max(axis=1) > 8 * size["normal"].mean()
  ).all()
  assert oracle.measured == 1.0


def test_one_row_has_a_draw_of_each_kind(net):
  loaded, regions = regions_of(net.model(net.MatMul(net.rms(net.input(1, 64)), net.weight(64, 96))))
  region = max(regions, key=lambda r: len(r.nodes))
  assert draws(region) == len(KINDS)
  (x,) = (i.source.name for i in region.inputs if not i.is_weight)
  sizes = [np.abs(data[x].astype(np.float64)).mean() for data, _ in drawn(loaded, region)]
  assert len(sizes) == len(KINDS) and min(sizes) < 0.01 and max(sizes) > 100


def test_rows_of_one_axis(net):
  """An elementwise region has one axis only: its rows are of kinds all the same."""
  loaded, regions = regions_of(net.model(net.Tanh(net.Mul(net.input(16, 48), 0.5))))
  region = max(regions, key=lambda r: len(r.nodes))
  ((data, _),) = drawn(loaded, region)
  (x,) = data.values()
  sizes = np.abs(x.astype(np.float64)).mean(axis=1)
  assert sizes.min() < 0.01 and sizes.max() > 100


def test_masked_rows(net):
  """Rows of an additive mask: nothing, every second element, everything."""
  logits = net.MatMul(net.input(6, 32), net.weight(32, 40))
  masked = net.Add(logits, net.input(6, 40))
  loaded, regions = regions_of(net.model(net.Softmax(masked, axis=-1)))
  region = max(regions, key=lambda r: len(r.nodes))
  data = hard_inputs(region, sample_weights(loaded, region), np.random.default_rng(0), 0)
  mask = data[loaded.proto.graph.input[1].name]
  hidden = (mask < -60000).mean(axis=1)
  assert set(np.unique(mask)) == {0.0, np.float16(-65504)}
  assert 0.0 in hidden and 1.0 in hidden and any(0.2 < h < 0.8 for h in hidden)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama_decode", "lora", "bert"])
def test_right_kernels_pass(name, kept_searches):
  loaded = load_model(MODELS / f"{name}.onnx")
  with kept_searches(name):
    chosen = chosen_of(loaded)
  check_right(loaded, chosen)


def test_right_kernel_passes(small):
  check_right(small[0], [small[1]])


def check_right(loaded, outcomes):
  for outcome in outcomes:
    gpu, region = EmulatedGpu(), outcome.region
    several = drawn(loaded, region)
    inputs = Inputs(gpu, region, several[0][0])
    replay, outputs = prepare(gpu, region, outcome.compiled, inputs)
    for data, oracle in several:
      inputs.become(data)
      assert oracle.complaint(gpu, replay, outputs) is None, region.text


@pytest.mark.parametrize("kind", range(len(NAMES)), ids=NAMES)
def test_a_kernel_that_is_wrong_in_one_kind_of_rows_is_refused(small, monkeypatch, kind):
  """2 percent off in such rows. Plain numbers see that in normal rows only."""
  loaded, outcome = small
  region = outcome.region
  gpu = EmulatedGpu()
  (out,) = region.outputs
  launch = gpu.launch_source

  def wrong(function, source, at):
    launch(function, source, at)
    if out.name in at:
      shape = region.shape(out.source)
      (x,) = (i for i in region.inputs if not i.is_weight)
      rows = gpu.get(at[x.name], region.shape(x.source), x.dtype.numpy).astype(np.float64)
      got = gpu.get(at[out.name], shape, out.dtype.numpy)
      got[is_of(kind, rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])] *= 1.02

  monkeypatch.setattr(gpu, "launch_source", wrong)
  monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)
  best, refused = measure_region(loaded, region, [outcome.compiled], H200)
  assert best is None and isinstance(refused, Rejection) and refused.code == "KERNEL_WRONG", refused
  data, oracle = draw(region, sample_weights(loaded, region), np.random.default_rng(0))
  replay, outputs = prepare(gpu, region, outcome.compiled, Inputs(gpu, region, data))
  assert (oracle.complaint(gpu, replay, outputs) is None) == (NAMES[kind] != "normal")


def is_of(kind, rows):
  """Which rows are of a kind, by their values."""
  size, most, middle = np.abs(rows).mean(axis=1), np.abs(rows).max(axis=1), rows.mean(axis=1)
  found = {
    "scale 2^-8": size < 0.1,
    "scale 2^8": (size > 100) & (abs(middle) < 30),
    "constant": np.ptp(rows, axis=1) == 0,
    "large offset": middle > 30,
    "outlier channels": (size > 0.5) & (size < 20) & (most > 5) & (middle < 30) & (np.ptp(rows, axis=1) > 0),
    "normal": (size > 0.5) & (most < 5) & (np.ptp(rows, axis=1) > 0),
  }
  return found[NAMES[kind]]


def test_a_workspace_that_is_not_written_is_noticed():
  """A first kernel that ran once and never again: what it left is poisoned before the check."""
  source = Tensor("y", DType.F32, (2, 4))
  region = stand_ins.region(outputs=[RegionTensor("o", DType.F32, (), source)])
  exact = {"y": np.arange(8.0).reshape(2, 4)}
  oracle, gpu, outputs = Oracle(region, exact, exact), EmulatedGpu(), Buffers()
  between = gpu.put(exact["y"].astype(np.float32))
  outputs["o"] = gpu.empty(32)

  def second():
    np.copyto(gpu.arrays[outputs["o"]], gpu.arrays[between])

  assert oracle.complaint(gpu, second, outputs) is None
  outputs.scratch[between] = 32
  assert oracle.complaint(gpu, second, outputs)


def test_a_boolean_that_is_not_written_is_noticed():
  source = Tensor("y", DType.BOOL, (2, 4))
  region = stand_ins.region(outputs=[RegionTensor("o", DType.BOOL, (), source)])
  exact = {"y": np.ones((2, 4))}
  oracle, gpu, outputs = Oracle(region, exact, exact), EmulatedGpu(), Buffers()
  outputs["o"] = gpu.empty(8)

  def written(count):
    gpu.arrays[outputs["o"]][:count] = 1

  assert oracle.complaint(gpu, lambda: written(8), outputs) is None
  assert oracle.complaint(gpu, lambda: written(7), outputs)


def test_what_fails_in_a_measurement_is_a_reason(small, monkeypatch):
  """The driver, or a region model that onnxruntime refuses: this region stays, the run goes on."""
  loaded, outcome = small
  gpu = EmulatedGpu()
  gpu.time_us = lambda arms, samples: np.ones((len(arms), 1))
  monkeypatch.setattr(measure, "gpu_of", lambda target: gpu)

  def fails(*args):
    raise RuntimeError("[ONNXRuntimeError] : 10 : INVALID_GRAPH\n  this is no model")

  monkeypatch.setattr(measure, "ort_replay", fails)
  best, refused = measure_region(loaded, outcome.region, [outcome.compiled], H200)
  assert best is None and refused.code == "MEASURE_FAILED" and refused.nodes == outcome.region.nodes
  assert "INVALID_GRAPH this is no model" in refused.reason
  monkeypatch.setattr(measure, "gpu_of", fails)
  assert measure_region(loaded, outcome.region, [outcome.compiled], H200)[1].code == "MEASURE_FAILED"


def test_what_another_kernel_made_to_the_bit_is_compared_once(net, monkeypatch):
  """What differs in one bit is compared, and so is what was right before."""
  x = net.input(8, 64)
  _, (region,) = regions_of(net.model(net.Tanh(net.Mul(x, x))))
  data = hard_inputs(region, {}, np.random.default_rng(0), 0)
  oracle = Oracle.of(region, data)
  (o,) = region.outputs
  right = oracle.rounded[o.tensor.name].astype(o.dtype.numpy).reshape(region.shape(o.source))
  asked, errors = [], ExpectedRows.errors
  monkeypatch.setattr(ExpectedRows, "errors", lambda self, got: asked.append(1) or errors(self, got))
  wrong = right.copy()
  wrong[3, 5] = np.nan
  for made, count, fine in ((right, 1, True), (right.copy(), 1, True), (wrong, 2, False), (right, 3, True)):
    assert (oracle.complaint_of({o.tensor.name: made}) is None) == fine and len(asked) == count
  assert oracle.complaint_of({o.tensor.name: right.astype(np.float64)}) is None and len(asked) == 4
