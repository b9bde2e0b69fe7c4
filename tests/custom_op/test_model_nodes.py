"""Custom nodes and bundle of a model file."""

import onnx
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data
from protos import typed
from refused import refused

from mirage_onnx.custom_op.model_nodes import ModelFile


def test_nodes_and_bundle(chain):
  file = ModelFile.read(chain.model.SerializeToString())
  nodes = file.custom_nodes()
  assert [(n.name, n.plan, n.domain, n.is_nested) for n in nodes] == [
    (name, k, "ai.mirage.v1.sm90a", False) for k, name in enumerate(chain.nodes)
  ]
  assert nodes[0].bundle == "mirage.bundle" and nodes[0].inputs[0] == "x0"
  assert nodes[2].outputs == (chain.model.graph.output[0].name,)
  assert len(file.bundle().plans) == 3
  assert file.external_folder is None


def test_nodes_of_subgraphs(chain):
  model = chain.model
  graph = model.graph
  inner = helper.make_graph(list(graph.node), "then", [], list(graph.output))
  del graph.node[:]
  graph.input.append(typed("if", TensorProto.BOOL, []))
  outputs = [o.name for o in graph.output]
  graph.node.append(helper.make_node("If", ["if"], outputs, then_branch=inner, else_branch=inner))
  nodes = ModelFile.read(model.SerializeToString()).custom_nodes()
  assert [n.name for n in nodes] == [*chain.nodes, *chain.nodes]
  assert all(n.is_nested for n in nodes)


def test_external_data(chain, tmp_path):
  model = chain.model
  convert_model_to_external_data(model, location="w.bin", size_threshold=0)
  onnx.save(model, tmp_path / "m.onnx")
  file = ModelFile.read(tmp_path / "m.onnx")
  assert file.external_folder == str(tmp_path.resolve())
  assert len(file.bundle().cubins) == 3
  again = ModelFile.read((tmp_path / "m.onnx").read_bytes(), str(tmp_path))
  assert again.bundle() == file.bundle()
  (tmp_path / "w.bin").unlink()
  with refused("EXTERNAL_DATA_MISSING"):
    file.bundle()


def test_files_that_are_no_models(tmp_path):
  (tmp_path / "junk.onnx").write_bytes(b"junk")
  for model, code in (
    (tmp_path / "none.onnx", "FILE_MISSING"),
    (tmp_path / "junk.onnx", "NOT_ONNX"),
    (b"junk", "NOT_ONNX"),
  ):
    with refused(code):
      ModelFile.read(model)


def test_nodes_must_share_one_bundle(chain):
  model = chain.model
  model.graph.node[0].input[0] = "another"
  with refused("BUNDLE_INVALID", "do not share one bundle"):
    ModelFile.read(model.SerializeToString()).bundle()


@pytest.mark.parametrize("number", ["²", "٣", "00", "-1", "+1", "9" * 5000, "1\n", ""])
def test_what_is_no_number_of_a_plan(chain, number):
  """int() takes some of them, and fails at others that str.isdigit takes."""
  model = chain.model
  model.graph.node[1].op_type = f"MuGraph_{number}"
  file = ModelFile.read(model.SerializeToString())
  assert [n.plan for n in file.custom_nodes()] == [0, 2]
  file.bundle()


@pytest.mark.parametrize("kind", [TensorProto.UNDEFINED, TensorProto.INT8, TensorProto.STRING, 99])
def test_a_bundle_of_other_elements(chain, kind):
  model = chain.model
  next(t for t in model.graph.initializer if t.name == "mirage.bundle").data_type = kind
  with refused("BUNDLE_INVALID", "the bundle is no tensor of bytes"):
    ModelFile.read(model.SerializeToString()).bundle()
