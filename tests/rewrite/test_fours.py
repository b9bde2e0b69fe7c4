"""Integers of 4 bits of their bytes: bit for bit, in every order, by onnxruntime."""

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.ir.dtype import DType, in_memory
from mirage_onnx.rewrite.fours import restored_fours
from mirage_onnx.rewrite.replacement import WeightUse

KINDS = {DType.U4: (ml_dtypes.uint4, 0), DType.I4: (ml_dtypes.int4, -8)}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("perm", [(0, 1), (1, 0)])
def test_restored(dtype, perm, rng):
  kind, low = KINDS[dtype]
  values = rng.integers(low, low + 16, (6, 34)).astype(kind)
  stored = in_memory(np.ascontiguousarray(values.transpose(perm)))
  assert stored.dtype == np.uint8 and stored.size == values.size // 2
  nodes = restored_fours("i0", WeightUse("w", perm, dtype, values.shape))
  nodes.append(helper.make_node("Cast", ["i0_restored"], ["y"], to=TensorProto.FLOAT))
  graph = helper.make_graph(
    nodes, "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, values.shape)],
    [numpy_helper.from_array(stored, "i0")],
  )  # fmt: skip
  model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
  session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
  np.testing.assert_array_equal(session.run(None, {})[0], values.astype(np.float32))


def test_a_use_of_fours_is_no_identity():
  assert not WeightUse("w", (0, 1), DType.U4, (6, 34)).is_identity and WeightUse("w", (0, 1)).is_identity
