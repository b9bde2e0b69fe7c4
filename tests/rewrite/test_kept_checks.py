"""A check that was passed is not run again for the same bytes, and for those only."""

import os

import onnx
import pytest
from small_models import Net

from mirage_onnx import api
from mirage_onnx.rewrite import kept_checks as module
from mirage_onnx.rewrite.kept_checks import EARLIER, KeptChecks
from mirage_onnx.rewrite.stock_check import Found

PASSED = Found(said="the same bits", ran=True)


@pytest.fixture
def files(tmp_path):
  """An original with its weights outside, and what was written of it."""
  net = Net(seed=1)
  model = net.model(net.MatMul(net.input(4, 64), net.weight(64, 64)))
  source = tmp_path / "in.onnx"
  onnx.save(model, source, save_as_external_data=True, location="in.data", size_threshold=64)
  (tmp_path / "new").write_bytes(b"written")
  return tmp_path


def checks(files, folder="checks"):
  given = onnx.load(files / "in.onnx", load_external_data=False)
  return KeptChecks(files / folder, files / "in.onnx", given)


def test_what_passed_is_known_to_the_next_run(files):
  assert checks(files).passed(files / "new") is None
  checks(files).keep(files / "new", PASSED)
  os.rename(files / "new", files / "of another name")
  found = checks(files).passed(files / "of another name")
  assert found == Found(said="the same bits" + EARLIER) and not found.problem


@pytest.mark.parametrize("changed", ["new", "in.onnx", "in.data", "times of in.data", "versions"])
def test_what_changed_is_checked_again(files, changed, monkeypatch):
  checks(files).keep(files / "new", PASSED)
  if changed == "versions":
    monkeypatch.setattr(module, "_setting", lambda: {"onnxruntime": "9"})
  elif changed == "times of in.data":
    os.utime(files / "in.data", ns=(1, 1))
  elif changed == "in.onnx":
    model = onnx.load(files / "in.onnx", load_external_data=False)
    model.doc_string = "another"
    (files / "in.onnx").write_bytes(model.SerializeToString())
  else:
    (files / changed).write_bytes((files / changed).read_bytes() + b"x")
  assert checks(files).passed(files / "new") is None


@pytest.mark.parametrize(
  "found", [Found(problem="output 'y' differs"), Found(said="not run, for its weights are too many"), Found()]
)
def test_what_did_not_run_or_failed_is_not_kept(files, found):
  checks(files).keep(files / "new", found)
  assert checks(files).passed(files / "new") is None


def test_damage_and_missing_files_are_no_answer(files):
  checks(files).keep(files / "new", PASSED)
  for entry in (files / "checks").iterdir():
    entry.write_bytes(entry.read_bytes()[:-7])
  assert checks(files).passed(files / "new") is None
  assert checks(files).passed(files / "nothing") is None and not checks(files).has_any
  checks(files).keep(files / "nothing", PASSED)
  none = KeptChecks(None, files / "in.onnx", onnx.ModelProto())
  none.keep(files / "new", PASSED)
  assert none.passed(files / "new") is None


def test_a_repeated_run_says_so(tmp_path, monkeypatch):
  """Through ``optimize``: the second one starts no onnxruntime; another output is checked."""
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  net = Net(seed=2)
  onnx.save(
    net.model(net.Tanh(net.MatMul(net.rms(net.input(4, 64)), net.weight(64, 64)))), tmp_path / "in.onnx"
  )
  paths, options = (
    (tmp_path / "in.onnx", tmp_path / "out.onnx"),
    {"target": "h200", "margin": -20.0, "workers": 1},
  )
  first = api.optimize(*paths, **options).report["checked"]
  want = paths[1].read_bytes()
  monkeypatch.setattr("mirage_onnx.writing.check_written", lambda *a: pytest.fail("it was checked before"))
  assert api.optimize(*paths, **options).report["checked"] == first + EARLIER
  assert paths[1].read_bytes() == want and "the same bits" in first
  asked = []
  monkeypatch.setattr("mirage_onnx.writing.check_written", lambda *a: asked.append(a) or PASSED)
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  assert api.optimize(*paths, **options).report["checked"] == "the same bits" and asked


def test_an_original_with_a_result_that_passed_is_known(tmp_path):
  """Then a repeat does not run it ahead."""
  (original := tmp_path / "in.onnx").write_bytes(b"one")
  (written := tmp_path / "out.onnx").write_bytes(b"two")
  given = onnx.ModelProto()
  checks = KeptChecks(tmp_path / "kept", original, given)
  checks.keep(written, Found(problem="wrong", ran=True))
  assert not checks.has_any
  checks.keep(written, Found(said="right", ran=True))
  assert checks.has_any and KeptChecks(tmp_path / "kept", original, given).has_any
  original.write_bytes(b"another")
  assert (
    not KeptChecks(tmp_path / "kept", original, given).has_any
    and not KeptChecks(None, original, given).has_any
  )
