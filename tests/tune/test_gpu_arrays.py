"""Values of a region by cupy: the same as by numpy, which computes what cupy cannot."""

import time
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from mirage_onnx import deadline, pipeline
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.tune import gpu_arrays as gpu_arrays_module
from mirage_onnx.tune.gpu_arrays import SENT, as_given, gpu_arrays, interpreted
from mirage_onnx.tune.oracle import draw, hard_draws
from mirage_onnx.verify.weights import sample_weights


@pytest.fixture
def norm(net):
  loaded = load_model(net.model(net.Softmax(net.MatMul(net.rms(net.input(12, 64)), net.weight(64, 96)))))
  regions = [c.region for c in pipeline.find_candidates(import_model(loaded)).candidates]
  return loaded, max(regions, key=lambda r: len(r.nodes))


class Fake:
  """numpy under the name of another library; ``fails``: what it raises where it computes."""

  def __init__(self, fails=None):
    self.fails, self.freed = fails, 0

  def __getattr__(self, name):
    return getattr(np, name)

  def asarray(self, x):
    if self.fails:
      raise self.fails
    return np.asarray(x)

  def asnumpy(self, x):
    return x

  def get_default_memory_pool(self):
    return SimpleNamespace(free_all_blocks=self.free)

  def free(self):
    self.freed += 1


@pytest.mark.parametrize("fails", [None, MemoryError("the GPU is full"), AttributeError("no such function")])
def test_the_other_library_or_numpy(norm, fails):
  loaded, region = norm
  xp = Fake(fails)
  weights = sample_weights(loaded, region)
  (data, want), *_ = hard_draws(region, weights, np.random.default_rng(0))
  (same, got), *_ = hard_draws(region, weights, np.random.default_rng(0), xp)
  assert xp.freed >= 1 and all((data[n] == same[n]).all() for n in data)
  for name in (o.tensor.name for o in region.outputs):
    np.testing.assert_array_equal(got.exact[name], want.exact[name])
    np.testing.assert_array_equal(got.rounded[name], want.rounded[name])


def test_the_end_of_the_time_is_no_failure_of_the_library(norm):
  loaded, region = norm
  data, _ = draw(region, sample_weights(loaded, region), np.random.default_rng(0))
  wide = {i.tensor.name: data[i.source.name].astype(np.float64) for i in region.inputs}
  with pytest.raises(deadline.OverdueError), deadline.until(time.monotonic() - 1):
    interpreted(region, wide, [], xp=Fake())


@pytest.mark.parametrize(
  "dtype", [np.float16, np.float32, ml_dtypes.bfloat16, np.float64, np.int64, np.uint8]
)
def test_what_becomes_float64_on_the_gpu(dtype):
  """Every pattern of 16 bits; strided, as a transposed weight is."""
  few = np.dtype(dtype).itemsize == 2
  x = np.arange(1 << 16, dtype=np.uint16).view(dtype) if few else np.arange(1 << 16).astype(dtype)
  x = x.reshape(256, 256).T
  sent = as_given(x, Fake())
  assert sent.dtype == (x.dtype if dtype in SENT else np.float64)
  with np.errstate(invalid="ignore"):
    np.testing.assert_array_equal(gpu_arrays_module._wide(sent, Fake()), x.astype(np.float64))
    np.testing.assert_array_equal(as_given(x), x.astype(np.float64))


@pytest.mark.gpu
def test_cupy_and_numpy_agree(norm):
  loaded, region = norm
  xp = gpu_arrays()
  if xp is None:
    pytest.skip("there is no cupy")
  weights = sample_weights(loaded, region)
  (_, want), *_ = hard_draws(region, weights, np.random.default_rng(0))
  (_, got), *_ = hard_draws(region, weights, np.random.default_rng(0), xp)
  for name in (o.tensor.name for o in region.outputs):
    np.testing.assert_allclose(got.exact[name], want.exact[name], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got.rounded[name], want.rounded[name], rtol=2e-2, atol=1e-3)
