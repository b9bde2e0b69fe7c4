"""The archive of exported architectures: what is stored comes back, whatever the order."""

import shutil
from pathlib import Path

import graph_archive
import implied
import numpy as np
import onnx
import pytest
import short_names
import weights
from onnx import TensorProto, helper
from protos import new_node, typed


@pytest.fixture
def archive(tmp_path, monkeypatch):
  path = tmp_path / "graphs.tar.xz"
  monkeypatch.setattr(weights, "ARCHIVE", path)
  graph_archive.read.cache_clear()
  yield path
  graph_archive.read.cache_clear()


def graph(source):
  w = TensorProto(name="w", data_type=TensorProto.FLOAT16, dims=(16, 32), doc_string=source)
  x = typed("x", TensorProto.FLOAT16, (1, 16))
  y = typed("y", TensorProto.FLOAT16, (1, 32))
  node = new_node("MatMul", "x w", "y")
  model = helper.make_model(helper.make_graph([node], "g", [x], [y], [w]))
  short_names.leave_out(model.graph)
  return model.SerializeToString()


def weight(name):
  (tensor,) = weights.load(name).graph.initializer
  return onnx.numpy_helper.to_array(tensor)


def test_stored_graphs_come_back(archive):
  weights.store("plain", graph("layer.weight"))
  weights.store("a_turned_one", graph("layer.weight^T"))
  assert weights.names() == ("a_turned_one", "plain")
  plain = weights.values("layer.weight", (16, 32), TensorProto.FLOAT16)
  turned = weights.values("layer.weight", (32, 16), TensorProto.FLOAT16).T
  np.testing.assert_array_equal(weight("plain"), plain)
  np.testing.assert_array_equal(weight("a_turned_one"), turned)
  assert not weights.load("plain").graph.initializer[0].doc_string
  weights.store("plain", graph("other.weight"))
  assert (weight("plain") != plain).any(), "a second graph of a name replaces the first"


def test_order_of_storing_does_not_matter(archive):
  found = []
  for names in (("a", "b"), ("b", "a")):
    archive.unlink(missing_ok=True)
    graph_archive.read.cache_clear()
    for name in names:
      weights.store(name, graph(f"{name}.weight"))
    found.append(archive.read_bytes())
  assert found[0] == found[1]


def test_the_committed_archive_is_what_storing_gives(archive):
  """Its graphs, stored again, give models with every weight in place."""
  shutil.copy(Path(weights.__file__).parent / "graphs.tar.xz", archive)
  assert len(weights.names()) == 42
  before = weights.load("vit").SerializeToString(deterministic=True)
  weights.store("vit", weights._graphs()["vit"])
  assert len(weights.names()) == 42
  model = weights.load("vit")
  assert model.SerializeToString(deterministic=True) == before
  onnx.checker.check_model(model, full_check=True)


@pytest.mark.parametrize("name", ["clip_text", "clip_vision", "gemma3_decode", "mamba"])
def test_parameters_are_recognised(name):
  """A model without its weights is the stored graph again; these have every spelling."""
  stored = weights._graphs()[name]
  graph = onnx.load_from_string(stored).graph
  short_names.put_in(graph)
  tensors = graph.initializer
  parameters = dict.fromkeys(t.doc_string.split("^")[0] for t in tensors if t.doc_string)
  assert weights.bare(weights.load(name), parameters) == stored


def test_what_is_not_implied_is_refused():
  model = weights.load("vit")
  implied.leave_out(model)
  assert not model.graph.value_info
  implied.put_in(model)
  assert model == weights.load("vit")
  for damage in (lambda g: g.value_info.pop(), lambda g: g.node[3].ClearField("name")):
    other = weights.load("vit")
    damage(other.graph)
    with pytest.raises(ValueError, match="not those that the rest"):
      implied.leave_out(other)
