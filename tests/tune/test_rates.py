"""Rates of a GPU from a model of one, whose rates are known; and what is kept of them."""

from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from mirage_onnx.target import H100
from mirage_onnx.tune import rates
from mirage_onnx.tune.rates import Rates, keep_rates, kept_rates, measure_rates


class ModelledGpu:
  """A GPU whose times follow from what is captured: ``launch_us`` a launch, and the bytes that it reads."""

  target = H100

  def __init__(self, launch_us=0.8, ramp_us=2.0, tbps=3.0, bytes_per_us=None):
    self.launch_us, self.ramp_us, self.rate = launch_us, ramp_us, tbps * 1e6
    self.rng, self.work, self.left = np.random.default_rng(1), [], 0

  @contextmanager
  def scope(self):
    self.left += 1
    yield
    self.left -= 1

  def put(self, x):
    assert x.any()  # random data, never zeros
    return 0

  def empty(self, size):
    return 0

  def load(self, cubin, name, smem_bytes=0):
    return name

  def launch(self, function, grid, block, arguments):
    # One shape is the best: the others have too little in flight.
    best = grid[0] == 4 * H100.multiprocessors and block == 512
    read = 16 * arguments[1] / self.rate * (1 if best else 1.5) + self.ramp_us if arguments else 0
    self.work.append(self.launch_us + read)

  def capture(self, work):
    self.work = []
    work()
    took = sum(self.work)
    return lambda: took

  def time_us(self, arms, samples):
    return np.array([[arm() * self.rng.normal(1, 0.002) for _ in range(samples)] for arm in arms])


@pytest.fixture
def compiled(monkeypatch):
  monkeypatch.setattr("mirage_onnx.codegen.compile.compile_cubin", lambda text, target, name: text)


@pytest.mark.parametrize(("launch", "ramp", "tbps"), [(0.8, 2.0, 3.0), (1.5, 4.0, 0.9)])
def test_the_rates_of_a_model_are_found(compiled, launch, ramp, tbps):
  found = measure_rates(ModelledGpu(launch, ramp, tbps), lambda gpu: 2 * rates.PRODUCT**3 / 600e6)
  assert found.launch_us == pytest.approx(launch, rel=0.1)
  assert found.stream_tbps == pytest.approx(tbps, rel=0.02)
  assert found.ramp_us == pytest.approx(ramp, abs=0.6)
  assert found.mma_tflops == pytest.approx(600)
  assert [r.mb for r in found.reads] == list(rates.SIZES_MB)
  assert {r.how.split(", ", 1)[1] for r in found.reads} == {"512 threads, 4 blocks per multiprocessor"}


def test_the_texts_compile():
  from mirage_onnx.codegen.compile import compile_cubin

  for unroll in (2, 16):
    assert compile_cubin(f"#define UNROLL {unroll}\n{rates.READ}", H100, name="read_all").image


def test_what_is_kept_is_of_one_machine(tmp_path, monkeypatch):
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)
  machine = {"gpu": "A", "driver": "1"}
  some = Rates(1.0, 2.0, 3.0, 4.0, ())
  assert kept_rates(machine) is None
  path = keep_rates(machine, some)
  assert path.parent == tmp_path / "rates" and kept_rates(dict(reversed(machine.items()))) == some
  assert kept_rates({**machine, "driver": "2"}) is None
  path.write_bytes(msgspec.json.encode(some)[:-9])
  assert kept_rates(machine) is None
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  assert keep_rates(machine, some) is None and kept_rates(machine) is None
