"""``bench``: what is slower is said to be, what is not is not, and a crash is one line."""

from refused import refused
from timed_models import save

from mirage_onnx import api
from mirage_onnx.custom_op import race
from mirage_onnx.custom_op.child import Ended
from mirage_onnx.report.bench_report import verdict
from mirage_onnx.tune.paired import LOOKS


def test_the_slower_model(tmp_path):
  one, nine = save(tmp_path / "one.onnx", 1), save(tmp_path / "nine.onnx", 9)
  report = api.bench(one, nine, provider="cpu", seconds=600.0)
  (row,) = report.rows
  assert row.high < 1 and row.b_us > row.a_us > 0 and (row.sizes, row.how) == ("", "run")
  assert row.openings in LOOKS and verdict(report) == "slower" and not report.nodes


def test_every_size(tmp_path):
  path = save(tmp_path / "m.onnx", 3, "rows")
  found = api.bench(path, path, provider="cpu", shapes={"rows": (1, 512)}, seconds=0.1)
  assert [r.sizes for r in found.rows] == ["rows=1", "rows=512"]
  assert found.rows[1].a_us > found.rows[0].a_us


def test_one_opening_says_nothing(tmp_path):
  one, nine = save(tmp_path / "one.onnx", 1), save(tmp_path / "nine.onnx", 9)
  report = api.bench(one, nine, provider="cpu", seconds=1e-3)
  (row,) = report.rows
  assert (row.low, row.high, row.openings) == (0.0, None, 1) and verdict(report).startswith("not slower")


def test_refusals(tmp_path, monkeypatch):
  one, other = save(tmp_path / "one.onnx", 1), save(tmp_path / "other.onnx", 1, 65)
  options = {"provider": "cpu", "seconds": 0.1}
  with refused("SHAPES_DIFFER"):
    api.bench(one, other, **options)
  (tmp_path / "broken.onnx").write_bytes(b"no model")
  with refused("NOT_ONNX"):
    api.bench(one, str(tmp_path / "broken.onnx"), **options)
  monkeypatch.setattr(race, "in_child", lambda *_: Ended("1 running", "ended by SIGSEGV"))
  with refused("SESSION_FAILED", "1 running: ended by SIGSEGV"):
    api.bench(one, one, **options)
