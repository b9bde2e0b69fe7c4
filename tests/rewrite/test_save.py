"""Saving: the old file or the whole new one, weights beside it, and no file of the user lost."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from refused import refused
from written_files import data_file

from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite import save as save_module
from mirage_onnx.rewrite import stream
from mirage_onnx.rewrite.model import BodyMaker, rewrite_model
from mirage_onnx.rewrite.save import check_output, save_model


@pytest.fixture
def source(toy, tmp_path):
  folder = tmp_path / "in"
  folder.mkdir()
  onnx.save(
    toy.build(2),
    folder / "in.onnx",
    save_as_external_data=True,
    size_threshold=64,
    location="in.data",
  )
  return folder / "in.onnx"


@pytest.fixture
def rewritten(toy, source):
  light = onnx.load(source, load_external_data=False)
  return rewrite_model(light, [toy.region(0)], toy.bundle, maker=BodyMaker(light, source.parent))


def refuse(code, *args, match=None, **options):
  with refused(code, match):
    save_model(*args, **options)


def files(folder):
  return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def locations(path):
  model = onnx.load(path, load_external_data=False)
  return {
    entry.value
    for tensor in model.graph.initializer
    for entry in tensor.external_data
    if entry.key == "location"
  }


def test_beside_the_source_references_are_kept(toy, x, source, rewritten):
  before = files(source.parent)
  out = source.with_name("out.onnx")
  save_model(rewritten, out, source)
  assert files(source.parent).keys() - before.keys() == {"out.onnx"}
  assert locations(out) == {"in.data"}
  assert toy.same(source, out, h0=x())


def test_large_weights_leave_the_model_file(toy, x, tmp_path):
  model = toy.build(2, np.float32, hidden=toy.hidden)
  typed = model.graph.initializer[-1]
  values = numpy_helper.to_array(typed)
  typed.ClearField("raw_data")
  typed.float_data.extend(values.ravel().tolist())
  out = tmp_path / "out.onnx"
  save_model(model, out, inline_limit_bytes=1500)
  assert locations(out) == {data_file(out).name}
  stored = {t.name: t for t in onnx.load(out, load_external_data=False).graph.initializer}
  assert stored["l0_w"].external_data
  assert not stored["eps"].external_data
  offsets = [int(e.value) for t in stored.values() for e in t.external_data if e.key == "offset"]
  assert [offset % 4096 for offset in offsets] == [0] * len(offsets) != []
  assert toy.same(model, out, h0=x(5, np.float32))

  small = tmp_path / "small.onnx"
  save_model(model, small)
  assert not locations(small)
  assert toy.same(model, small, h0=x(5, np.float32))


def test_equal_models_give_equal_bytes(source, rewritten, tmp_path):
  found = []
  for name in ("a", "b"):
    (tmp_path / name).mkdir()
    save_model(rewritten, tmp_path / name / "out.onnx", source)
    found.append(files(tmp_path / name))
  assert found[0] == found[1]


def test_external_tensors_everywhere_move(tmp_path):
  """Attributes, subgraphs and functions hold tensors as well; equal places are stored once."""
  folder = tmp_path / "in"
  folder.mkdir()
  (folder / "w.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())

  def tensor(name, **entries):
    result = TensorProto(name=name, data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
      result.external_data.add(key=key, value=str(value))
    return result

  def constant(name, **entries):
    return helper.make_node("Constant", [], [name], value=tensor("", **entries))

  out_type = typed("inner", 1, [4])
  inner = helper.make_graph([constant("inner", offset=16)], "inner", [], [out_type])
  function = helper.make_function(
    "f", "F", [], ["r"], [constant("r", offset=16, length=16)], [helper.make_opsetid("", 20)]
  )
  yes = numpy_helper.from_array(np.array(True), "yes")
  model = helper.make_model(
    helper.make_graph(
      [
        constant("c", length=16),
        new_node("If", "yes", "i", then_branch=inner, else_branch=inner),
        new_node("F", "", "f", domain="f"),
        new_node("Sum", "c i f w", "y"),
      ],
      "g",
      [],
      [typed("y", 1, [4])],
      [tensor("w", offset=0, length=16), yes],
    ),
    functions=[function],
    opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("f", 1)],
    ir_version=10,
  )
  out = tmp_path / "out.onnx"
  save_model(model, out, folder / "in.onnx")
  assert data_file(out).stat().st_size == 4096 + 16
  saved = onnx.load(out)
  assert numpy_helper.to_array(saved.graph.node[0].attribute[0].t).tolist() == [0, 1, 2, 3]
  branch = saved.graph.node[1].attribute[0].g
  assert numpy_helper.to_array(branch.node[0].attribute[0].t).tolist() == [4, 5, 6, 7]


def test_the_output_is_the_input(source, rewritten, tmp_path):
  before = files(source.parent)
  link, hard = tmp_path / "link.onnx", tmp_path / "hard.onnx"
  link.symlink_to(source)
  os.link(source, hard)
  for out in (source, source.parent / "." / "in.onnx", link, hard, source.with_name("in.data")):
    refuse("OUTPUT_IS_INPUT", rewritten, out, source)
  assert files(source.parent) == before


def test_the_input_data_has_the_name_of_the_output(toy, x, tmp_path):
  source = tmp_path / "in.onnx"
  onnx.save(toy.build(), source, save_as_external_data=True, size_threshold=64,
            location="out.onnx.data")  # fmt: skip
  model = onnx.load(source, load_external_data=False)
  before = files(tmp_path)
  save_model(model, tmp_path / "out.onnx", source, external=save_module.External.COPY)
  assert {k: v for k, v in files(tmp_path).items() if k in before} == before
  assert toy.same(source, tmp_path / "out.onnx", h0=x())


@pytest.mark.parametrize("kind", ["folder", "missing", "file", "fifo", "readonly", "long"])
def test_unwritable(toy, tmp_path, kind, monkeypatch):
  out = tmp_path / "out.onnx"
  match kind:
    case "folder":
      out.mkdir()
    case "missing":
      out = tmp_path / "no" / "out.onnx"
    case "file":
      out.write_bytes(b"")
      out = out / "out.onnx"
    case "fifo":
      os.mkfifo(out)
    case "readonly":
      out.write_bytes(b"mine")
      monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != out)
    case "long":
      out = tmp_path / ("x" * 254)
  refuse("OUTPUT_UNWRITABLE", toy.build(), out)
  assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("step", ["write_model", "_flush", "replace", "interrupt"])
def test_a_failure_leaves_the_old_file_and_nothing_else(source, rewritten, tmp_path, monkeypatch, step):
  out = tmp_path / "out.onnx"
  out.write_bytes(b"old")

  def fail(*_):
    if step == "interrupt":
      raise KeyboardInterrupt
    raise OSError(28, "No space left on device")

  match step:
    case "replace":
      monkeypatch.setattr(os, "replace", fail)
    case "interrupt":
      monkeypatch.setattr(save_module, "write_model", fail)
    case _:
      monkeypatch.setattr(save_module, step, fail)
  error = KeyboardInterrupt if step == "interrupt" else MirageError
  with pytest.raises(error) as caught:
    save_model(rewritten, out, source)
  if step != "interrupt":
    assert caught.value.code == "OUTPUT_UNWRITABLE"
    assert "No space left" in caught.value.detail
  assert files(tmp_path) == {"out.onnx": b"old"}


def test_too_large_without_weights(rewritten, source, tmp_path, monkeypatch):
  monkeypatch.setattr(stream, "MOST_BYTES", 1000)
  with pytest.raises(MirageError, match="> 2 GB"):
    save_model(rewritten, tmp_path / "out.onnx", source)
  assert not files(tmp_path)


def test_missing_and_short_data(source, rewritten, tmp_path):
  data = source.with_name("in.data")
  whole = data.read_bytes()
  data.write_bytes(whole[:100])
  refuse("EXTERNAL_DATA_MISSING", rewritten, tmp_path / "out.onnx", source)
  data.unlink()
  refuse("EXTERNAL_DATA_MISSING", rewritten, tmp_path / "out.onnx", source)
  refuse("INTERNAL", rewritten, tmp_path / "out.onnx", match="source_path")
  assert not files(tmp_path)


def test_permissions_follow_the_umask(toy, tmp_path):
  old = os.umask(0o027)
  try:
    save_model(toy.build(), tmp_path / "out.onnx")
  finally:
    os.umask(old)
  assert (tmp_path / "out.onnx").stat().st_mode & 0o777 == 0o640


def test_a_link_is_written_through(toy, tmp_path):
  (tmp_path / "real.onnx").write_bytes(b"old")
  (tmp_path / "out.onnx").symlink_to(tmp_path / "real.onnx")
  save_model(toy.build(), tmp_path / "out.onnx")
  assert (tmp_path / "out.onnx").is_symlink()
  assert onnx.load(tmp_path / "real.onnx").graph.name == "toy"


def test_check_output_writes_nothing(tmp_path):
  check_output(tmp_path / "out.onnx", tmp_path / "in.onnx")
  assert not files(tmp_path)
