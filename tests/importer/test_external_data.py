"""Weights outside the model's file, and what is refused of them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mirage_onnx.importer import import_model, load_model
from tests.importer.refusals import F32, refusal


class TestExternal:
  @pytest.fixture
  def path(self, tmp_path, bench):
    nodes = [
      helper.make_node("MatMul", ["x", "w"], ["a"]),
      helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 8)).astype(F32), "s": np.array(0.125, F32)}
    model = bench.model(nodes, {"x": (F32, [2, 4])}, ["y"], weights)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path

  def change(self, path, **entries):
    model = onnx.load(path, load_external_data=False)
    kept = {e.key: e.value for e in model.graph.initializer[0].external_data} | entries
    del model.graph.initializer[0].external_data[:]
    for key, value in kept.items():
      if value is not None:
        model.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())

  def test_read(self, path):
    loaded = load_model(path)
    program = import_model(loaded)
    assert loaded.proto.graph.initializer[0].data_location == TensorProto.EXTERNAL
    assert program.constants["s"].base == 0.125
    assert program.tensors["y"].shape == (2, 8)
    assert loaded.read(loaded.initializers["w"]).shape == (4, 8)
    assert all(n.barrier is None for n in program.nodes)

  def test_missing(self, path):
    (path.parent / "w.bin").unlink()
    assert refusal(path) == "EXTERNAL_DATA_MISSING: the tensor 'w' is in the file 'w.bin'"

  def test_short(self, path):
    data = path.parent / "w.bin"
    data.write_bytes(data.read_bytes()[:100])
    assert refusal(path) == (
      "EXTERNAL_DATA_MISSING: the tensor 'w' ends at byte 128 of 'w.bin', which has 100 bytes"
    )

  @pytest.mark.parametrize("location", ["../w.bin", "a/../../w.bin", "/etc/passwd", "C:\\w.bin", "..\\w.bin"])
  def test_outside(self, path, location):
    self.change(path, location=location)
    assert refusal(path) == (
      f"EXTERNAL_DATA_MISSING: the tensor 'w' refers to {location!r}, outside the model's folder"
    )

  @pytest.mark.parametrize("location", [".", "sub", "", None])
  def test_no_file(self, path, location):
    (path.parent / "sub").mkdir()
    self.change(path, location=location)
    assert refusal(path).startswith("EXTERNAL_DATA_MISSING: the tensor 'w' ")

  @pytest.mark.parametrize("offset", ["many", "-1", "+0", " 0", "1_0", "٣", "9" * 5000, ""])
  @pytest.mark.parametrize("key", ["offset", "length"])
  def test_numbers(self, path, key, offset):
    self.change(path, **{key: offset})
    assert refusal(path) == (
      "MODEL_INVALID: the tensor 'w' has an external offset or length that is not a number"
    )

  def test_a_number_that_is_no_text(self, path):
    """protobuf gives bytes where a string of a file is not UTF-8 (model_fuzz, seed 79825)."""
    self.change(path, offset="many")
    path.write_bytes(path.read_bytes().replace(b"many", b"\xff\xfe1\x80"))
    assert refusal(path).startswith("MODEL_INVALID: the tensor 'w' ")

  def test_twice(self, path):
    model = onnx.load(path, load_external_data=False)
    next(t for t in model.graph.initializer if t.name == "w").external_data.add(key="location", value="x")
    path.write_bytes(model.SerializeToString())
    assert refusal(path) == "MODEL_INVALID: the tensor 'w' says one thing of its external data twice"

  def test_entries(self, path):
    self.change(path, offset="0", length="4")
    assert refusal(path) == ("MODEL_INVALID: the tensor 'w' needs 128 bytes, its external entry has 4")

  def test_link(self, path):
    """Model hubs keep weights elsewhere and link to them."""
    store = path.parent / "blobs"
    store.mkdir()
    (path.parent / "w.bin").rename(store / "abc")
    (path.parent / "w.bin").symlink_to(store / "abc")
    assert import_model(load_model(path)).constants["s"].base == 0.125

  def test_in_memory(self, path):
    model = onnx.load(path, load_external_data=False)
    assert refusal(model) == (
      "EXTERNAL_DATA_MISSING: the tensor 'w' is in the file 'w.bin', and a model in memory has no folder"
    )
    assert load_model(model, base_dir=path.parent).base_dir == path.parent
