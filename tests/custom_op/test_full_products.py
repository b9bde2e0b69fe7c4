"""What of MatMulNBits a CPU would round is not rounded in a comparison."""

import onnx
import pytest
from onnx import helper
from packed_models import MS, product

from mirage_onnx.custom_op.full_products import in_full


def rounding(kind):
  """A model with the attribute: in its graph, in a function, or in a subgraph."""
  model = product()
  (node,) = model.graph.node
  node.attribute.append(helper.make_attribute("accuracy_level", 4))
  if kind == "function":
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
    model.functions.append(helper.make_function("own", "f", node.input, node.output, [node], opsets))
    node.domain, node.op_type = "own", "f"
    del node.attribute[:]
  if kind == "subgraph":
    branches = {f"{b}_branch": helper.make_graph([node], b, [], []) for b in ("then", "else")}
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], **branches))
  return model


def named(model):
  return onnx.load_from_string(model).SerializeToString().count(b"accuracy_level")


@pytest.mark.parametrize("kind", ["graph", "function", "subgraph"])
@pytest.mark.parametrize("is_file", [False, True])
def test_the_attribute_is_taken_away(kind, is_file, tmp_path):
  model = rounding(kind)
  content = model.SerializeToString()
  (path := tmp_path / "m.onnx").write_bytes(content)
  found, folder = in_full(path if is_file else content, None)
  assert named(content) and not named(found) and folder is None
  (node,) = (n for n in onnx.load_from_string(found).graph.node if n.op_type != "If")
  assert [*node.output] == [*model.graph.node[0].output]
  assert path.read_bytes() == content


def test_other_models_are_given_on_as_they_are(tmp_path):
  content = product().SerializeToString()
  assert in_full(content, "there")[0] is content
  (path := tmp_path / "accuracy_level.onnx").write_bytes(content)
  assert in_full(path, None) == (path, None)
  (empty := tmp_path / "empty.onnx").write_bytes(b"")
  assert in_full(empty, None) == (empty, None)
  named_so = product()
  named_so.graph.node[0].name = "accuracy_level"
  content = named_so.SerializeToString()
  assert in_full(content, None)[0] is content
