"""A data file that is there as it was written is not written again; whatever may differ is."""

import os
import time
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from written_files import data_file

from mirage_onnx import file_facts
from mirage_onnx.rewrite import data_parts, kept_data
from mirage_onnx.rewrite import save as save_module
from mirage_onnx.rewrite.data_parts import DataParts
from mirage_onnx.rewrite.save import save_model
from mirage_onnx.rewrite.turned import turned

WIDTH = 768
#: Of the clock that files are stamped with, and more.
TICK_S = 0.03


@pytest.fixture(autouse=True)
def everything_is_kept(monkeypatch, tmp_path):
  """Of files of any size and age, in a cache of the test's own."""
  monkeypatch.setattr(kept_data, "LEAST_BYTES", 1)
  monkeypatch.setattr(file_facts, "SETTLED_S", -1.0)
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.delenv("MIRAGE_ONNX_CACHE", raising=False)


@pytest.fixture
def written(monkeypatch):
  """How often the bytes of a data file were written, and read to be named."""
  counts = {"written": 0, "named": 0}
  write, digits = DataParts.write, save_module.NamedBeside

  def counted(self, stream, *told):
    counts["written"] += 1
    write(self, stream, *told)

  def named(data, size):
    counts["named"] += 1
    return digits(data, size)

  monkeypatch.setattr(DataParts, "write", counted)
  monkeypatch.setattr(save_module, "NamedBeside", named)
  return counts


@pytest.fixture
def source(tmp_path):
  """A model with a weight outside that stays, and one that a kernel wants turned."""
  folder = tmp_path / "in"
  folder.mkdir()
  rng = np.random.default_rng(0)
  weights = [
    numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), name) for name in "ab"
  ]
  model = helper.make_model(helper.make_graph([], "g", [], [], weights), ir_version=10)
  path = folder / "in.onnx"
  onnx.save(model, path, save_as_external_data=True, location="in.data", size_threshold=64)
  return path


def model_of(source, small=0.0):
  """What rewriting could have made of it: a turned copy, and a weight of its own in the model."""
  model = onnx.load(source, load_external_data=False)
  b = next(t for t in model.graph.initializer if t.name == "b")
  b.CopyFrom(turned(b, (1, 0), "b"))
  model.graph.initializer.append(numpy_helper.from_array(np.full(512, small, np.float32), "c"))
  return model


def save(source, out, **more):
  save_model(model_of(source, **more), out, source)
  return values_of(out)


def values_of(out):
  return {t.name: numpy_helper.to_array(t) for t in onnx.load(out).graph.initializer}


def want_of(source, small=0.0):
  found = values_of(source)
  return {"a": found["a"], "b": found["b"].T, "c": np.full(512, small, np.float32)}


def same(got, want):
  return all(np.array_equal(got[n], want[n]) for n in want)


def test_the_same_is_not_written_again(source, tmp_path, written):
  out = tmp_path / "out.onnx"
  assert same(save(source, out), want_of(source))
  first, model = os.stat(data_file(out)), out.read_bytes()
  assert same(save(source, out), want_of(source))
  assert written == {"written": 1, "named": 1}
  assert os.stat(data_file(out)) == first and out.read_bytes() == model


def test_elsewhere_it_is_written_under_the_name_that_is_known(source, tmp_path, written):
  out, other = tmp_path / "out.onnx", tmp_path / "other.onnx"
  save(source, out)
  assert same(save(source, other), want_of(source))
  assert written == {"written": 2, "named": 1}
  assert data_file(other).name.split(".")[2] == data_file(out).name.split(".")[2]
  assert same(save(source, other), want_of(source)) and same(save(source, out), want_of(source))
  assert written == {"written": 2, "named": 1}


def test_the_name_is_that_of_the_content(source, tmp_path, monkeypatch):
  """With and without what is kept the same bytes come out."""
  out = tmp_path / "out.onnx"
  save(source, out)
  save(source, tmp_path / "else.onnx")
  data_file(out).unlink()
  save(source, out)
  files = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name.startswith("out")}
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")
  for p in tmp_path.glob("out*"):
    p.unlink()
  save(source, out)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name.startswith("out")} == files


def change_in_place(source, _):
  data = source.parent / "in.data"
  times = os.stat(data)
  with data.open("r+b") as file:
    file.seek(WIDTH * 4 * 100)
    file.write(b"\x00\x00\x80\x3f")
  os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))  # who hides it cannot set the time of that


def change_by_another(source, _):
  data = source.parent / "in.data"
  times, content = os.stat(data), bytearray(data.read_bytes())
  content[:4] = b"\x00\x00\x80\x3f"
  new = data.with_name("new")
  new.write_bytes(content)
  os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
  os.replace(new, data)


def change_the_output(_, out):
  data = data_file(out)
  times = os.stat(data)
  with data.open("r+b") as file:
    file.write(b"\xff" * 64)
  os.utime(data, ns=(times.st_atime_ns, times.st_mtime_ns))


def cut_the_output(_, out):
  os.truncate(data_file(out), 4096)


def copy_of_the_output(_, out):
  data = data_file(out)
  content = data.read_bytes()
  data.unlink()
  data.write_bytes(bytes(len(content)))


def remove_the_output(_, out):
  data_file(out).unlink()


@pytest.mark.parametrize(
  "change",
  [
    change_in_place,
    change_by_another,
    change_the_output,
    cut_the_output,
    copy_of_the_output,
    remove_the_output,
  ],
)
def test_what_has_changed_is_written_again(source, tmp_path, written, change):
  out = tmp_path / "out.onnx"
  save(source, out)
  time.sleep(TICK_S)
  change(source, out)
  assert same(save(source, out), want_of(source))
  assert written["written"] == 2
  assert same(save(source, out), want_of(source)) and written["written"] == 2


def test_another_weight_of_the_model_is_another_file(source, tmp_path, written):
  out = tmp_path / "out.onnx"
  save(source, out)
  assert same(save(source, out, small=2.0), want_of(source, small=2.0))
  assert written == {"written": 2, "named": 2}


def test_a_file_of_just_now_is_not_trusted(source, tmp_path, written, monkeypatch):
  """Within a tick of the clock it could change and keep its times."""
  now = [os.stat(source.parent / "in.data").st_ctime + 1.9]
  monkeypatch.setattr(file_facts, "SETTLED_S", 2.0)
  monkeypatch.setattr(data_parts, "time", SimpleNamespace(time=lambda: now[0]))
  out = tmp_path / "out.onnx"
  for n in (1, 2):
    assert same(save(source, out), want_of(source))
    assert written["written"] == n
  now[0] += 0.2
  for _ in range(2):
    assert same(save(source, out), want_of(source))
    assert written["written"] == 3


def test_what_changes_while_it_is_read_is_not_remembered(source, tmp_path, written, monkeypatch):
  out, counted = tmp_path / "out.onnx", DataParts.write

  def changed(self, stream, *told):
    counted(self, stream, *told)
    time.sleep(TICK_S)
    change_in_place(source, out)

  with monkeypatch.context() as patch:
    patch.setattr(DataParts, "write", changed)
    save(source, out)
  assert same(save(source, out), want_of(source)) and written["written"] == 2


def test_a_damaged_cache_costs_time_only(source, tmp_path, written):
  out = tmp_path / "out.onnx"
  save(source, out)
  for entry in (tmp_path / "cache" / "data").iterdir():
    entry.write_bytes(entry.read_bytes()[:-10] + b"0123456789")
  assert same(save(source, out), want_of(source)) and written == {"written": 2, "named": 2}


def test_what_a_cache_says_is_no_path(source, tmp_path, monkeypatch):
  monkeypatch.setattr(kept_data.KeptFolder, "get", lambda *_: {"digits": "../../else", "file": ""})
  out = tmp_path / "out.onnx"
  assert same(save(source, out), want_of(source))
  assert data_file(out).parent == tmp_path


def test_small_files_are_written(source, tmp_path, written, monkeypatch):
  monkeypatch.setattr(kept_data, "LEAST_BYTES", 1 << 40)
  for n in (1, 2):
    save(source, tmp_path / "out.onnx")
    assert written == {"written": n, "named": n}
  assert not (tmp_path / "cache" / "data").exists()
