"""Runs of ONNX Runtime on bound memory, of every element type; the CPU stands for the GPU."""

import ctypes

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cached_steps import cached_step
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.tune import ort_run
from mirage_onnx.tune.hard_inputs import half_full, hard_inputs
from mirage_onnx.tune.ort_run import BoundSession, region_model

BF16 = np.dtype(ml_dtypes.bfloat16)
KINDS = (BF16, np.float16, np.float32, np.float64, np.int64, np.int32, np.bool_, np.uint8)


def write(at, x):
  ctypes.memmove(at, x.ctypes.data, x.nbytes)


def read(at, shape, dtype):
  x = np.empty(shape, dtype)
  ctypes.memmove(x.ctypes.data, at, x.nbytes)
  return x


def bound(model, feeds):
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  made = BoundSession(session, feeds, "cpu", write, read)
  session.run_with_iobinding(made.binding)
  return made


@pytest.mark.parametrize("dtype", KINDS)
def test_every_type_comes_and_goes(dtype):
  net = Net(dtype)
  feeds = {net.input(3, 5): (np.arange(15).reshape(3, 5) % 4 - 1).astype(dtype)}
  (name,) = feeds
  out = net.Identity(name)
  found = bound(net.model(out), feeds)
  assert found.inputs[name].shape() == [3, 5]
  (got,) = found.results().values()
  assert got.dtype == dtype and got.shape == (3, 5)
  np.testing.assert_array_equal(got.view(np.uint8), feeds[name].view(np.uint8))


def test_outputs_of_several_types():
  """A bfloat16 comes in; what is largest, whether it is large, and a scalar come out."""
  net = Net(np.float32)
  x = net.input(4, 6, dtype=BF16)
  wide = net.cast(x, np.float32)
  outputs = net.ArgMax(wide, axis=1, keepdims=0), net.Greater(wide, 0.0), net.ReduceSum(wide, keepdims=0)
  data = np.random.default_rng(0).standard_normal((4, 6)).astype(BF16)
  largest, large, total = bound(net.model(*outputs), {x: data}).results().values()
  np.testing.assert_array_equal(largest, data.astype(np.float32).argmax(1))
  np.testing.assert_array_equal(large, data > 0)
  assert (largest.dtype, large.dtype, total.shape) == (np.int64, np.bool_, ())
  assert total == pytest.approx(data.astype(np.float32).sum(), rel=1e-5)


def test_a_value_of_another_type_is_cast():
  net = Net(BF16)
  x = net.input(2, 2)
  (got,) = bound(net.model(net.Identity(x)), {x: np.full((2, 2), 1.5)}).results().values()
  assert got.dtype == BF16 and (got == 1.5).all()


@pytest.mark.parametrize("named", ["", "room"])
def test_a_step_with_a_cache_runs_at_the_size_that_is_assumed(named):
  loaded = load_model(cached_step(2, 1, 2, 32, 24, named=named))
  found = find_candidates(import_model(loaded), TIMED, {"room": 20}).candidates
  assert {n for c in found for n in c.nodes} == {"it", "it/attended"}
  for c in found:
    model = region_model(loaded, c.region)
    (total,) = (t for t in model.graph.initializer if t.name == "total")
    assert onnx.numpy_helper.to_array(total) == (10 if named else 12)  # half full
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = half_full(c.region, hard_inputs(c.region, {}, np.random.default_rng(0), 0))
    session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


@pytest.mark.parametrize("linked", [False, True])
def test_constants_in_files_are_read_there(monkeypatch, tmp_path, linked):
  """Where onnxruntime refuses the file (a link out of the folder), they are copied."""
  net = Net(np.float32)
  model = net.model(net.MatMul(net.input(2, 256), net.weight(256, 256)))
  folder, whole = tmp_path / "model", model.SerializeToString()  # saving takes the values out of it
  folder.mkdir()
  onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
  if linked:
    (folder / "w.bin").rename(tmp_path / "w.bin")
    (folder / "w.bin").symlink_to(tmp_path / "w.bin")
  loaded = load_model(folder / "m.onnx")
  region = max(
    (c.region for c in find_candidates(import_model(loaded)).candidates), key=lambda r: len(r.nodes)
  )
  asked = []

  class OnCpu:
    """What ``OrtRun`` makes of it, on the CPU."""

    def __init__(self, gpu, data, feeds, *, shared=None, folder=None):
      asked.append(len(data))
      options = ort.SessionOptions()
      if folder is not None:
        options.add_session_config_entry(ort_run.FOLDER_KEY, str(folder))
      self.results = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)

  monkeypatch.setattr(ort_run, "OrtRun", OnCpu)
  x = np.random.default_rng(0).standard_normal((2, 256), np.float32)
  feeds = {model.graph.input[0].name: x}
  made = ort_run.own_run(None, loaded, lambda out: region_model(loaded, region, outside=out), feeds)
  want = ort.InferenceSession(whole, providers=["CPUExecutionProvider"]).run(None, feeds)
  np.testing.assert_array_equal(made.results[0], want[0])
  assert asked[0] < 1000 and len(asked) == 1 + linked and (not linked or asked[1] > 256 * 256 * 4)
