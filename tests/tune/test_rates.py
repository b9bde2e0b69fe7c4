"""Rates of a GPU from a model of one, whose rates are known; and what is kept of them."""

import time

import msgspec
import pytest
from modelled_gpu import ModelledGpu
from refused import refused

from mirage_onnx.target import H100
from mirage_onnx.tune import rates
from mirage_onnx.tune.chip_rates import ChipRates
from mirage_onnx.tune.operator_table import OperatorTimes
from mirage_onnx.tune.rates import Rates, keep_rates, kept_rates, measure_rates

TABLE = OperatorTimes("1", {"Add": ((512, 1.0),)}, ((1, 64, 64, 2.0),))


@pytest.fixture
def compiled(monkeypatch):
  monkeypatch.setattr("mirage_onnx.compiler.compile.compile_cubin", lambda text, target, name: text)


@pytest.mark.parametrize(("launch", "ramp", "tbps"), [(0.8, 2.0, 3.0), (1.5, 4.0, 0.9)])
def test_the_rates_of_a_model_are_found(compiled, launch, ramp, tbps):
  ends, product_us = [], 2 * rates.PRODUCT**3 / 600e6
  began = time.monotonic()
  found = measure_rates(
    ModelledGpu(launch, ramp, tbps), lambda gpu: product_us, lambda gpu, end: ends.append(end) or TABLE
  )
  assert found.launch_us == pytest.approx(launch, rel=0.1)
  assert found.stream_tbps == pytest.approx(tbps, rel=0.02)
  assert found.ramp_us == pytest.approx(ramp, abs=0.6)
  assert found.mma_tflops == pytest.approx(600)
  assert found.table is TABLE and ends[0] <= began + 60
  assert found.chip.l2_tbps == pytest.approx(5.0, rel=0.02)
  assert [r.mb for r in found.reads] == list(rates.SIZES_MB)
  assert {r.how.split(", ", 1)[1] for r in found.reads} == {"512 threads, 4 blocks per multiprocessor"}


@pytest.mark.parametrize("tbps", [0.2, 0.3, 0.6, 3.0])
def test_where_memory_is_slow_there_is_time_for_operators(compiled, monkeypatch, tbps):
  """An Orin, an L4, an A10: what empties their L2 takes 1 to 3 ms, and half of the time is the table's."""
  gpu, asked = ModelledGpu(0.9, 3.0, tbps), []
  monkeypatch.setattr(rates.time, "monotonic", lambda: gpu.seconds)
  found = measure_rates(gpu, lambda gpu: 1e4, lambda gpu, end: asked.append(end - gpu.seconds) or TABLE)
  assert asked[0] > 25 and found.stream_tbps == pytest.approx(tbps, rel=0.02)
  assert [r.mb for r in found.reads] == list(rates.SIZES_MB)[-len(found.reads) :]
  assert len(found.reads) >= (len(rates.SIZES_MB) if tbps > 0.3 else rates.LEAST_READS)


def test_an_onnxruntime_that_has_no_cuda_ends_it_in_a_line(compiled):
  """At once, as here, where it is one for the CPU."""
  gpu = ModelledGpu()
  gpu.stream_address = 0
  with refused("SESSION_FAILED") as error:
    measure_rates(gpu, table=lambda gpu, end: TABLE)
  line = error.value.line()
  assert "does not run here on CUDA" in line and "mirage-onnx env" in line and "\n" not in line
  assert gpu.seconds == 0


def test_the_texts_compile():
  from mirage_onnx.compiler.compile import compile_cubin

  for unroll in (2, 16):
    assert compile_cubin(f"#define UNROLL {unroll}\n{rates.READ}", H100, name="read_all").image


def test_what_is_kept_is_of_one_machine(tmp_path, monkeypatch):
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)
  machine = {"gpu": "A", "driver": "1"}
  some = Rates(1.0, 2.0, 3.0, 4.0, (), ChipRates(5.0, {"f16": 6.0}, 0.1), TABLE)
  assert kept_rates(machine) is None
  path = keep_rates(machine, some)
  assert path.parent == tmp_path / "rates" and kept_rates(dict(reversed(machine.items()))) == some
  assert kept_rates({**machine, "driver": "2"}) is None
  path.write_bytes(msgspec.json.encode(some)[:-9])
  assert kept_rates(machine) is None
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  assert keep_rates(machine, some) is None and kept_rates(machine) is None
