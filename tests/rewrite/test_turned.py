"""Copies of large external weights in another order: streamed when they are written, never in memory."""

import tracemalloc

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from written_files import data_file

from mirage_onnx.errors import MirageError
from mirage_onnx.rewrite import turned as turned_module
from mirage_onnx.rewrite.save import External, save_model
from mirage_onnx.rewrite.turned import can_turn, held, turned, turned_of


def external(name, x, offset=0, location="w.bin"):
  t = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(x.dtype), dims=x.shape)
  t.data_location = TensorProto.EXTERNAL
  for key, value in (("location", location), ("offset", offset), ("length", x.nbytes)):
    t.external_data.add(key=key, value=str(value))
  return t


def model_of(*tensors):
  outputs = [helper.make_tensor_value_info(f"y{n}", t.data_type, [*t.dims]) for n, t in enumerate(tensors)]
  nodes = [helper.make_node("Identity", [t.name], [f"y{n}"]) for n, t in enumerate(tensors)]
  graph = helper.make_graph(nodes, "g", [], outputs, list(tensors))
  return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.fixture
def few(monkeypatch):
  monkeypatch.setattr(turned_module, "BLOCK_BYTES", 1000)
  monkeypatch.setattr(turned_module, "LEAST_BYTES", 64)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, ml_dtypes.bfloat16])
@pytest.mark.parametrize("how", [External.KEEP, External.COPY, External.INLINE])
def test_written_in_blocks(few, tmp_path, rng, dtype, how):
  x, y = (rng.standard_normal(s).astype(dtype) for s in ((37, 50), (4, 5, 6)))
  (tmp_path / "w.bin").write_bytes(b"12345678" + x.tobytes() + y.tobytes())
  sources = external("x", x, 8), external("y", y, 8 + x.nbytes)
  assert all(map(can_turn, sources))
  model = model_of(turned(sources[0], (1, 0), "a"), turned(sources[1], (2, 0, 1), "b"), sources[1])
  assert [turned_of(t) is not None for t in model.graph.initializer] == [True, True, False]
  before = model.SerializeToString()
  save_model(model, tmp_path / "out.onnx", tmp_path / "in.onnx", external=how)
  assert model.SerializeToString() == before
  got = [numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer]
  for a, want in zip(got, (x.T, y.transpose(2, 0, 1), y), strict=True):
    assert a.dtype == want.dtype and a.tobytes() == want.tobytes()
  written = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
  stays = any(e.value == "w.bin" for t in written for e in t.external_data)
  assert stays == (how is External.KEEP)
  assert any(tmp_path.glob("out.onnx.*.data")) == (how is not External.INLINE)


def test_nobody_else_reads_what_is_not_written(few, tmp_path, rng):
  x = rng.standard_normal((16, 8))
  (tmp_path / "w.bin").write_bytes(x.tobytes())
  model = model_of(turned(external("x", x), (1, 0), "a"))
  with pytest.raises(Exception, match=r"."):
    onnx.load_external_data_for_model(model, str(tmp_path))
  made = held(model, tmp_path)
  np.testing.assert_array_equal(numpy_helper.to_array(made.graph.initializer[0]), x.T)


def test_a_source_that_is_cut_off(few, tmp_path, rng):
  x = rng.standard_normal((16, 8))
  (tmp_path / "w.bin").write_bytes(x.tobytes()[:-1])
  model = model_of(turned(external("x", x), (1, 0), "a"))
  with pytest.raises(MirageError) as error:
    save_model(model, tmp_path / "out.onnx", tmp_path / "in.onnx")
  assert error.value.code == "EXTERNAL_DATA_MISSING"
  assert not (tmp_path / "out.onnx").exists()


def test_small_and_packed_ones_are_made_at_once():
  assert not can_turn(external("x", np.zeros((4, 4))))
  packed = external("x", np.zeros((4096, 1024), np.int8))
  packed.data_type = TensorProto.INT4
  assert not can_turn(packed)
  assert not can_turn(numpy_helper.from_array(np.zeros((1024, 1024)), "x"))


def test_what_is_streamed_is_in_no_memory(tmp_path, monkeypatch):
  """128 MB of a sparse file, turned and written with less than a quarter of that."""
  monkeypatch.setattr(turned_module, "BLOCK_BYTES", 8 << 20)
  shape = (8192, 8192)
  with (tmp_path / "w.bin").open("wb") as file:
    file.truncate(2 * shape[0] * shape[1])
    file.write(np.arange(7, dtype=np.float16).tobytes())
  x = np.broadcast_to(np.float16(0), shape)
  model = model_of(turned(external("x", x), (1, 0), "a"))
  tracemalloc.start()
  try:
    save_model(model, tmp_path / "out.onnx", tmp_path / "in.onnx")
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert peak < 32 << 20
  written = np.memmap(data_file(tmp_path / "out.onnx"), np.float16, "r", shape=shape)
  np.testing.assert_array_equal(written[:8, 0], [0, 1, 2, 3, 4, 5, 6, 0])
