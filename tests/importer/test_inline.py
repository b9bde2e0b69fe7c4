"""Weights of a model in one file, read where they are."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from small_models import Net

from mirage_onnx.importer import inline, load_model
from mirage_onnx.importer.inline import outside


@pytest.fixture
def written(tmp_path):
  net = Net(np.float32, seed=5)
  x = net.MatMul(net.input(4, 256), net.weight(256, 128))
  model = net.model(net.Add(net.MatMul(x, net.weight(128, 200)), net.weight(200, scale=1.0)))
  model.producer_name = "test"
  model.metadata_props.add(key="a", value="b")
  path = tmp_path / "m.onnx"
  path.write_bytes(model.SerializeToString())
  return model, path


def test_large_weights_are_in_the_file(written):
  model, path = written
  made = outside(load_model(path).proto, path)
  placed = [t.data_location == TensorProto.EXTERNAL for t in made.graph.initializer]
  assert placed == [len(t.raw_data) >= inline.LEAST_BYTES for t in model.graph.initializer]
  assert placed.count(True) == 2 and False in placed
  assert made.ByteSize() < 4000 < model.ByteSize()
  loaded = load_model(made, path.parent)
  for ours, theirs in zip(loaded.proto.graph.initializer, model.graph.initializer, strict=True):
    np.testing.assert_array_equal(loaded.read(ours), numpy_helper.to_array(theirs))
  onnx.load_external_data_for_model(made, str(path.parent))
  for t in made.graph.initializer:
    t.ClearField("data_location")
  assert made.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)


def test_what_is_not_in_this_file_stays(written, tmp_path):
  model, path = written
  assert outside(model, None) is model
  other = tmp_path / "other.onnx"
  for data in (b"", b"\xff" * 40, path.read_bytes()[:-7], path.read_bytes() + path.read_bytes()):
    other.write_bytes(data)
    assert outside(model, other) is model
  assert outside(model, tmp_path / "none.onnx") is model
  net = Net()
  small = net.model(net.Tanh(net.input(4)))
  assert outside(small, path) is small
