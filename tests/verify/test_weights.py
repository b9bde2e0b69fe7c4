"""Weights are read when asked for and measured once in a run, by whoever asks first."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from math import isnan, nan

import ml_dtypes
import numpy as np
import pytest
from packed_models import product
from small_models import Net

from mirage_onnx import deadline, searching
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir.interval import Interval
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.searching import Setting, search_all
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.target import H200
from mirage_onnx.verify import extremes as module
from mirage_onnx.verify import weights
from mirage_onnx.verify.extremes import extremes
from mirage_onnx.verify.range_check import RangeCheck
from mirage_onnx.verify.weights import ModelWeights, sample_weights


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (9,), (1, 5), (5, 6), (3, 1, 4), (4, 3, 5)])
def test_extremes(shape, dtype, block, monkeypatch):
  monkeypatch.setattr(module, "BLOCK", block)
  data = np.random.default_rng(0).normal(0.3, 40, shape).astype(dtype)
  found, wide = extremes(data), np.float64(data)
  assert (found.range.lo, found.range.hi) == (wide.min(), wide.max())
  norms = [np.linalg.norm(wide, axis=n).max() for n in range(len(shape))]
  np.testing.assert_allclose(found.norms, norms, rtol=1e-12)
  if data.size > 1:
    data.reshape(-1)[-2] = nan
    bad = extremes(data)
    assert all(map(isnan, (bad.range.lo, bad.range.hi, *bad.norms)))


def test_a_number_is_an_array():
  for x in (np.float16(-2.0), np.bool_(True), np.array(3)):
    assert extremes(x) == module.Extremes(Interval(float(x), float(x)), ())


def test_nothing_has_no_range():
  with pytest.raises(ValueError, match="an empty array has no range"):
    extremes(np.zeros((0, 4)))


@pytest.mark.parametrize("zero", [False, True])
def test_weights_of_few_bits_are_not_looked_at_element_by_element(zero, monkeypatch):
  """Bounds of integers by their bits; scales measured once each, however many elements one has."""
  loaded = load_model(product(1, 512, 96, block=32, zero=zero))
  region = max(find_candidates(import_model(loaded)).candidates, key=lambda c: len(c.nodes)).region
  found, looked = sample_weights(loaded, region), []
  monkeypatch.setattr(weights, "extremes", lambda x: looked.append(x.size) or extremes(x))
  parts = [i for i in region.inputs if i.is_weight and i.view]
  assert len(parts) == 2 + zero
  for i in parts:
    shape = tuple(region.extents[a] for a in i.axes)
    exact, told = extremes(found[i.tensor.name].reshape(shape)), found.extremes(i.tensor.name, shape)
    if i.dtype.is_packed and i.view.repeats == ():
      assert told.range == Interval(-8.0, 7.0)
      assert all(a <= b <= 2 * a for a, b in zip(exact.norms, told.norms, strict=True))
    elif i.dtype.is_packed:
      assert told.range.lo <= exact.range.lo and exact.range.hi <= told.range.hi
    else:
      assert told.range == exact.range
      np.testing.assert_allclose(told.norms, exact.norms, rtol=1e-12)
  assert looked == [96 * 512 // 32]


def gated(width=32):
  net = Net()
  y = net.rms(net.input(4, width), net.weight(width))
  gate, up = (net.MatMul(y, net.weight(width, width)) for _ in range(2))
  loaded = load_model(net.model(net.Mul(net.Mul(gate, net.Sigmoid(gate)), up)))
  found = {c.region.key: c.region for c in find_candidates(import_model(loaded)).candidates}
  return loaded, list(found.values())


class Counted:
  def __init__(self, monkeypatch, pause_s=0.0):
    self.shapes: list[tuple[int, ...]] = []
    self._pause_s = pause_s
    monkeypatch.setattr(weights, "extremes", self)

  def __call__(self, data):
    self.shapes.append(data.shape)
    time.sleep(self._pause_s)
    return extremes(data)


def test_a_weight_is_measured_once_for_all_regions(monkeypatch):
  (loaded, regions), counted = gated(), Counted(monkeypatch)
  model = ModelWeights(loaded)
  checks = [RangeCheck(r, model.of(r)) for r in regions]
  assert len(regions) > 8 and sorted(counted.shapes) == [(32,), (32, 32), (32, 32)]
  for region, check in zip(regions, checks, strict=True):
    plain = RangeCheck(region, dict(sample_weights(loaded, region)))
    assert (plain._weights, plain.magnitude) == (check._weights, check.magnitude)


def test_only_what_is_asked_for_is_read():
  loaded, regions = gated()
  region = max(regions, key=lambda r: len(r.nodes))
  found = ModelWeights(loaded, lambda name, shape: extremes(np.ones(shape))).of(region)
  names = {i.tensor.name for i in region.inputs if i.is_weight}
  assert {*found} == names and len(found) == 3 and "x" not in found
  RangeCheck(region, found)
  assert not found._arrays
  name = min(names)
  assert found[name] is found[name] and {*found._arrays} == {name}
  with pytest.raises(KeyError):
    found["x"]


def test_threads_wait_for_one_that_measures_the_same(monkeypatch):
  (loaded, regions), counted = gated(), Counted(monkeypatch, pause_s=0.05)
  model, ready = ModelWeights(loaded), threading.Barrier(4)
  name = next(i.tensor.name for r in regions for i in r.inputs if len(i.axes) == 2 and i.is_weight)

  def ask(_):
    ready.wait(60)
    return model.extremes(name, (32, 32))

  with ThreadPoolExecutor(4) as pool:
    assert len({id(x) for x in pool.map(ask, range(4))}) == 1
  assert counted.shapes == [(32, 32)]


@pytest.mark.parametrize("workers", [1, 2])
def test_once_in_a_run(workers, monkeypatch):
  """Workers ask their parent, which measures."""
  (loaded, regions), counted = gated(), Counted(monkeypatch)
  monkeypatch.setattr(searching, "MIN_REGIONS", 2)
  setting = Setting(H200, SearchBound(), time.monotonic() + 300)
  results = []
  search_all(loaded, regions[-4:], setting, workers=workers, done=lambda _, r: results.append(r))
  assert any(r.candidates for r in results)
  assert sorted(counted.shapes) == [(32,), (32, 32), (32, 32)]


def test_hashes_made_side_by_side_are_the_same(monkeypatch):
  """Each weight is read once; none beyond the time."""
  net = Net()
  x, w = net.input(4, 32), net.weight(32, 32)
  model = net.model(net.Add(net.Exp(net.MatMul(x, w)), net.MatMul(net.Exp(x), net.weight(32, 32))))
  regions = [c.region for c in find_candidates(import_model(load_model(model))).candidates]
  want = [ModelWeights(load_model(model)).digest(r) for r in regions]
  loaded, read = load_model(model), []
  own = ModelWeights(loaded)
  monkeypatch.setattr(own, "_array", lambda name, real=own._array: read.append(name) or real(name))
  with pytest.raises(deadline.OverdueError), deadline.until(time.monotonic() - 1):
    own.hash_ahead(regions, 3)
  read.clear()
  own.hash_ahead(regions, 3)
  assert sorted(read) == sorted(set(read)) and len(read) == 2
  assert [own.digest(r) for r in regions] == want and len(read) == 2


def test_large_weights_are_hashed_beside(monkeypatch):
  net = Net()
  model = net.model(net.MatMul(net.Exp(net.MatMul(net.input(4, 64), net.weight(64, 64))), net.weight(64, 8)))
  regions = [c.region for c in find_candidates(import_model(load_model(model))).candidates]
  want = [ModelWeights(load_model(model)).digest(r) for r in regions]
  monkeypatch.setattr(weights, "LARGE_BYTES", 4000)
  monkeypatch.setattr(weights, "available_cores", lambda: 2)
  loaded = load_model(model)
  weights.hash_beside(loaded)
  end = time.monotonic() + 60
  while len(weights._DIGESTS.get(loaded, ({}, {}))[0]) < 1 and time.monotonic() < end:
    time.sleep(0.01)
  own = ModelWeights(loaded)
  assert len(own._digests) == 1, "the small one is not"
  assert [own.digest(r) for r in regions] == want and len(own._digests) == 2
