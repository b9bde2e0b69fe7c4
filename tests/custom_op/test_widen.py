"""A model in fp32: every place that holds a 16-bit type, and weights beside the model."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.custom_op.widen import widened

BRANCH = helper.make_graph(
  [helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.float16(3), "k")),
   helper.make_node("Cast", ["k"], ["z"], to=TensorProto.FLOAT16)],
  "branch", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT16, [])],
)  # fmt: skip


def model(weight):
  """y = double(x) * w + (3 if c else 3), with a function and a subgraph."""
  kind = weight.data_type
  x, c, y = (helper.make_tensor_value_info(n, t, s) for n, t, s in
             (("x", kind, [2]), ("c", TensorProto.BOOL, []), ("y", kind, [2])))  # fmt: skip
  nodes = [
    helper.make_node("Double", ["x"], ["d"], domain="local"),
    helper.make_node("Mul", ["d", "w"], ["p"]),
    helper.make_node("If", ["c"], ["z"], then_branch=BRANCH, else_branch=BRANCH),
    helper.make_node("Cast", ["z"], ["q"], to=kind),
    helper.make_node("Add", ["p", "q"], ["y"]),
  ]
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
  add = helper.make_function("local", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
                             opsets[:1])  # fmt: skip
  graph = helper.make_graph(nodes, "g", [x, c], [y], [weight])
  return helper.make_model(graph, opset_imports=opsets, functions=[add], ir_version=10)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("external", [False, True])
def test_nothing_is_rounded_to_16_bits(tmp_path, dtype, external):
  given = model(numpy_helper.from_array(np.array([0.5, 2049], dtype), "w"))
  onnx.save(given, tmp_path / "m.onnx", save_as_external_data=external, size_threshold=0, location="w.bin")
  given = onnx.load(tmp_path / "m.onnx", load_external_data=False)
  before = given.SerializeToString()
  wide = widened(given, tmp_path)
  onnx.checker.check_model(wide, full_check=True)
  assert given.SerializeToString() == before
  session = ort.InferenceSession(wide.SerializeToString(), providers=["CPUExecutionProvider"])
  x = np.array([1 / 3, 1 / 3], np.float32)
  (found,) = session.run(None, {"x": x, "c": np.array(True)})
  exact = x * 2 * np.array([0.5, 2049], dtype).astype(np.float32) + 3
  assert found.dtype == np.float32
  np.testing.assert_allclose(found, exact, rtol=1e-6)
