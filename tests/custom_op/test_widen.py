"""A model in fp32: every place that holds a 16-bit type, and weights beside the model."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.custom_op.widen import run_rounded, widened

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


@pytest.mark.parametrize(
  ("op", "bias"), [("SkipSimplifiedLayerNormalization", 3), ("SkipLayerNormalization", 4)]
)
@pytest.mark.parametrize("summed", [False, True], ids=["norm", "norm and sum"])
def test_a_sum_beyond_its_type(op, bias, summed):
  """A norm that also makes its sum, in 16 bits, reads it so: what is infinite there is no measure."""
  half = TensorProto.FLOAT16
  inputs = ["x", "skip", "gamma"] + [""] * (bias - 3) + ["b"]
  node = helper.make_node(op, inputs, ["y", "", "", "s"] if summed else ["y"], domain="com.microsoft")
  graph = helper.make_graph(
    [node], "g", [helper.make_tensor_value_info(n, half, (2, 8)) for n in ("x", "skip")],
    [helper.make_tensor_value_info("y", half, (2, 8))],
    [numpy_helper.from_array(np.ones(8, np.float16), n) for n in ("gamma", "b")],
  )  # fmt: skip
  opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
  model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
  x = np.tile(np.arange(8, dtype=np.float16), (2, 1))
  large = x.copy()
  large[1, 0] = 60000
  (y,) = run_rounded(model, None, {"x": large, "skip": large}).values()
  assert np.isfinite(y[0]).all() and np.isfinite(y[1]).all() != summed
  (small,) = run_rounded(model, None, {"x": x, "skip": x}).values()
  total = 2 * x.astype(np.float64) + 1
  centered = total - total.mean(-1, keepdims=True) * (bias == 4)
  want = centered / np.sqrt((centered**2).mean(-1, keepdims=True))
  np.testing.assert_allclose(small, want, rtol=2e-3, atol=2e-3)
