"""Two models beside each other: what is slower is said to be, what is not is not, and a crash is one line."""

import numpy as np
import pytest
from refused import refused
from timed_models import busy, save

from mirage_onnx.custom_op import model_times
from mirage_onnx.custom_op.child import Ended
from mirage_onnx.custom_op.model_times import LEAST_PAIRS, compare, interval, time_models


def test_numbers():
  rng = np.random.default_rng(0)
  a_us, b_us, speedup, low, high, pairs = compare((busy(4e-3), busy(2e-3)), 0.3, rng)
  assert a_us > b_us >= 2000 and 1.2 < low <= speedup <= high and pairs >= LEAST_PAIRS


@pytest.mark.parametrize("mean", [0.8, 1.0, 1.3])
def test_interval_holds_the_median(mean):
  rng = np.random.default_rng(1)
  found = [interval(rng.normal(mean, 0.1, 60), rng) for _ in range(200)]
  assert 0.88 < np.mean([low <= mean <= high for low, high in found]) < 0.99
  assert np.mean([high - low for low, high in found]) < 0.09


def test_the_slower_model(tmp_path):
  one, nine = save(tmp_path / "one.onnx", 1), save(tmp_path / "nine.onnx", 9)
  (row,) = time_models(one, nine, provider="cpu", dims={}, seconds=0.3).rows
  assert row.high < 1 and row.b_us > row.a_us > 0 and row.sizes == ""


def test_every_size(tmp_path):
  path = save(tmp_path / "m.onnx", 3, "rows")
  found = time_models(path, path, provider="cpu", dims={"rows": (1, 512)}, seconds=0.1)
  assert [r.sizes for r in found.rows] == ["rows=1", "rows=512"]
  assert found.rows[1].a_us > found.rows[0].a_us and not found.launches


def test_refusals(tmp_path, monkeypatch):
  one, other = save(tmp_path / "one.onnx", 1), save(tmp_path / "other.onnx", 1, 65)
  options = {"provider": "cpu", "dims": {}, "seconds": 0.1}
  with refused("SHAPES_DIFFER"):
    time_models(one, other, **options)
  (tmp_path / "broken.onnx").write_bytes(b"no model")
  with refused("SESSION_FAILED"):
    time_models(one, str(tmp_path / "broken.onnx"), **options)
  monkeypatch.setattr(model_times, "in_child", lambda *_: Ended("running both", "ended by SIGSEGV"))
  with refused("SESSION_FAILED", "running both: ended by SIGSEGV"):
    time_models(one, one, **options)
