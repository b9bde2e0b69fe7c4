"""Parts of a data file: every tensor finds its bytes, on a page, and what is shared comes once."""

import io

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mirage_onnx import file_facts
from mirage_onnx.rewrite.data_parts import ALIGN_BYTES, DataParts
from mirage_onnx.rewrite.turned import turned

SHAPE = (640, 512)


@pytest.fixture
def folder(tmp_path):
  rng = np.random.default_rng(1)
  arrays = {n: rng.standard_normal(SHAPE).astype(np.float32) for n in ("a", "b")}
  tensors = [numpy_helper.from_array(x, n) for n, x in arrays.items()]
  tensors.append(numpy_helper.from_array(np.arange(7, dtype=np.int64), "odd"))
  model = helper.make_model(helper.make_graph([], "g", [], [], tensors), ir_version=10)
  onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1)
  return tmp_path


def test_every_tensor_finds_its_bytes(folder):
  source = {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "m.onnx").graph.initializer}
  model = onnx.load(folder / "m.onnx", load_external_data=False)
  twin = model.graph.initializer.add()
  twin.CopyFrom(next(t for t in model.graph.initializer if t.name == "a"))
  twin.name = "twin"
  b = next(t for t in model.graph.initializer if t.name == "b")
  model.graph.initializer.append(turned(b, (1, 0), "b turned"))
  inside = [helper.make_tensor("typed", onnx.TensorProto.INT64, [300], range(300))]
  inside.append(helper.make_tensor("text", onnx.TensorProto.STRING, [1], [b"a" * 2000]))
  model.graph.initializer.extend(inside)
  parts = DataParts(folder)
  parts.add_external(model)
  parts.add_inline(t for t in model.graph.initializer if t.name in ("typed", "text"))
  parts.add_turned(model.graph.initializer)
  with (folder / "new.data").open("wb") as stream:
    parts.write(stream)
  assert (folder / "new.data").stat().st_size == parts.size_bytes
  parts.refer("new.data")
  onnx.save(model, folder / "new.onnx")
  where = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer}
  assert where["twin"] == where["a"] and not where["text"]
  assert all(
    e["location"] == "new.data" and int(e["offset"]) % ALIGN_BYTES == 0
    for n, e in where.items()
    if n != "text"
  )
  got = {
    t.name: numpy_helper.to_array(t)
    for t in onnx.load(folder / "new.onnx").graph.initializer
    if t.name != "text"
  }
  want = {**source, "twin": source["a"], "b turned": source["b"].T, "typed": np.arange(300)}
  assert {n: x.shape for n, x in got.items()} == {n: x.shape for n, x in want.items()}
  assert all(np.array_equal(got[n], want[n]) for n in want)


def test_nothing_is_an_empty_file():
  parts, stream = DataParts(None), io.BytesIO()
  parts.write(stream)
  assert parts.size_bytes == 0 and not stream.getvalue() and parts.facts() == ()


def test_facts_tell_order_place_and_type(folder, monkeypatch):
  """Two data files of other bytes never have the same facts."""
  model = onnx.load(folder / "m.onnx", load_external_data=False)
  a, b, _ = model.graph.initializer
  monkeypatch.setattr(file_facts, "SETTLED_S", -1.0)
  seen = set()
  for make in (
    lambda p: p.add_turned([turned(a, (1, 0), "t")]),
    lambda p: p.add_turned([turned(b, (1, 0), "t")]),
    lambda p: p.add_turned([turned(a, (0, 1), "t")]),
    lambda p: p.add_turned([turned(a, (1, 0), "t"), turned(b, (1, 0), "t")]),
    lambda p: p.add_turned([turned(b, (1, 0), "t"), turned(a, (1, 0), "t")]),
    lambda p: p.add_external(model),
    lambda p: p.add_inline([numpy_helper.from_array(np.zeros(SHAPE, np.float32), "z")]),
    lambda p: p.add_inline([numpy_helper.from_array(np.ones(SHAPE, np.float32), "z")]),
  ):
    parts = DataParts(folder)
    make(parts)
    seen.add(parts.facts())
  assert len(seen) == 8 and None not in seen
