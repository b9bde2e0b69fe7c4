"""A new model where its check finds it: no byte is copied, and no file that a reader wants has two names."""

import os

import pytest
from onnx.external_data_helper import set_external_data

from mirage_onnx.rewrite.as_written import as_written


@pytest.fixture
def model(net):
  found = net.model(net.MatMul(net.input(2, 8), net.weight(8, 8)))
  set_external_data(found.graph.initializer[0], "old.data")
  return found


def new(folder, *names):
  files = {name: folder / f".{name}.tmp" for name in names}
  for name, file in files.items():
    file.write_text(name)
  return files


def test_a_model_alone_stays(tmp_path, model):
  files = new(tmp_path, "m.onnx")
  with as_written(tmp_path / "m.onnx", files, model, tmp_path) as found:
    assert found == files["m.onnx"]
  assert list(tmp_path.iterdir()) == [files["m.onnx"]]


@pytest.mark.parametrize("fails", [False, True])
def test_new_data_moves_there_and_back(tmp_path, model, fails):
  files = new(tmp_path, "m.onnx", "m.onnx.data")
  (tmp_path / "old.data").write_text("old")
  before = sorted(tmp_path.iterdir())
  try:
    with as_written(tmp_path / "m.onnx", files, model, tmp_path) as found:
      assert {p.name: p.read_text() for p in found.parent.iterdir()} == {
        "m.onnx": "m.onnx", "m.onnx.data": "m.onnx.data", "old.data": "old",
      }  # fmt: skip
      assert [(found.parent / n).stat().st_nlink for n in files] == [1, 1]
      if fails:
        raise ZeroDivisionError
  except ZeroDivisionError:
    assert fails
  assert sorted(tmp_path.iterdir()) == before
  assert all(p.stat().st_nlink == 1 for p in before)


def test_no_links(tmp_path, model, monkeypatch):
  def refused(*_):
    raise OSError("no links here")

  monkeypatch.setattr(os, "link", refused)
  files = new(tmp_path, "m.onnx", "m.onnx.data")
  with as_written(tmp_path / "m.onnx", files, model, tmp_path) as found:
    assert found is None
  assert sorted(tmp_path.iterdir()) == sorted(files.values())
